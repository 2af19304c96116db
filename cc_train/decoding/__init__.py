"""Word by word from a network to a sentence."""
