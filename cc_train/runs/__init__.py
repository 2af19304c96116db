"""A training's folder: what lies where in it, its checkpoints, and the network of one read back."""
