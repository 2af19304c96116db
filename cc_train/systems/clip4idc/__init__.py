"""CLIP4IDC: how well a pair of images fits a sentence."""
