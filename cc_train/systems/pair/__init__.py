"""A captioner of pairs: frozen grid features, explicit differences, and what a renderer knows."""
