"""Captions by multi-modal LLMs that nobody trained on the data: `cc-train baseline`."""
