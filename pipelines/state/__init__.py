"""What a job knows of itself on disk: finished shards, pairs in progress, the lock."""
