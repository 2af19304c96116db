"""Inside a worker: what it gets, the step of `build`, and how work on batches overlaps."""
