"""What only a GPU shows: `make gpu-smoke` runs these, five minutes on one GPU, and prints a table.

Without CUDA they are skipped. They were never run.
"""
