"""A training's folder: its files, its checkpoints, and the network read from one."""
