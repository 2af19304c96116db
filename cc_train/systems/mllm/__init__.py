"""Multi-modal language models as captioners: adapters, attention control, entity prompts."""
