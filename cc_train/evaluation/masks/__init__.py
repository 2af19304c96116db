"""Predicted change masks against the true ones."""
