"""`python -m cc_train`, for torchrun."""

from cc_train.cli import main

main()
