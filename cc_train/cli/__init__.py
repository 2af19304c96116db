"""The `cc-train` command: each file holds a group of commands, and each function is one command.

A command imports what it needs inside its function, so that `cc-train --help` is quick.
"""

from cc_train.cli.main import cli, main

__all__ = ["cli", "main"]
