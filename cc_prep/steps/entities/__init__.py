"""Entities of a change: noun phrases of training captions that fit the changed regions.

Source: DAVIR, equations 8 and 9. docs/changes.md says where this departs from the paper.
"""
