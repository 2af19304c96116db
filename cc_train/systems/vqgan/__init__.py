"""VQGAN: frames to discrete tokens and back."""
