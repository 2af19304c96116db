"""Inside a worker: its shards, the step of `build`, and the overlap of work on batches."""
