"""METEOR 1.5 for English in Python: the figures of the Java program that pycocoevalcap carries."""
