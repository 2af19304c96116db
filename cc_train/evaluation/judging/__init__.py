"""A language model as the judge of captions: `evaluate --judge` and `judge-check`."""
