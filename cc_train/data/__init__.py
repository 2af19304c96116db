"""Shards to samples to batches."""
