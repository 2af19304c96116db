"""A package for each published system."""
