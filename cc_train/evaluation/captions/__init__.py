"""Scores of captions against references: one module for each measure."""
