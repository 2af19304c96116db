"""Checks, figures and pages on data sets and on what a job has written."""
