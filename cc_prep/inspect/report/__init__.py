"""Self-contained HTML pages that show what a job made."""
