"""What lies on disk: every file name and layout is known here and nowhere else."""
