"""Trained networks for others: a folder with a card, and the hub."""
