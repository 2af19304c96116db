"""Inside a worker: how a step's work on one batch overlaps that on the next."""
