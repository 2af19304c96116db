"""Mutation testing: which changed operators and constants does the suite not notice?

`make mutants` runs it; CONTRIBUTING.md ("Tests that bite") says how to read what it prints.
"""
