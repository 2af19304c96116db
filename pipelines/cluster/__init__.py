"""Resources of Ray: what is free on each node, the workers that fit, and broken GPUs."""
