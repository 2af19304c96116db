"""The steps: what a worker does for some pairs, with the networks that it needs held inside."""
