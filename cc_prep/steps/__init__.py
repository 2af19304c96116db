"""The steps of the preparation, as functions from record to record."""
