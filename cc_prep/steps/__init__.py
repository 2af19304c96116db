"""The steps of the preparation: a record in, a record out."""
