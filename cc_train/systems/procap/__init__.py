"""ProCap: a procedure encoder (stage 1) and a captioner on procedure queries (stage 2)."""
