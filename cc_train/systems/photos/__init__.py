"""A captioner of photographs: a comparison says what happened, a detector to what and where."""
