"""Programs that measure, each against a named alternative in the same run."""
