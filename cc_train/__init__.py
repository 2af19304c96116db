"""The trainer: streams the shards that `cc_prep` and `pipelines` make. No Ray here."""
