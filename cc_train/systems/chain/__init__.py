"""A captioner that also predicts masks: regions, their caption, and rounds that refine both."""
