"""Scores of captions against references: a module a measure."""
