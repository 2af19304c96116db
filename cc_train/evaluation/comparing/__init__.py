"""The implementation of `cc-train compare`: rows of several runs and of papers; the bootstrap."""
