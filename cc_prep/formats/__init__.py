"""Files on disk: every file name and layout is defined here and nowhere else."""
