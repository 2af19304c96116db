"""A reader for each published layout, and for own data."""
