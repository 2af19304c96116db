"""The zoo: what we measured, as rows with the files that prove them."""
