"""Blocks that several systems use."""
