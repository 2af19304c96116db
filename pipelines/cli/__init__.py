"""The `cc-prep` command: each file holds a group of commands, and each function is one command.

A command imports what it needs inside its function, so that `cc-prep --help` is quick.
"""

from pipelines.cli.main import cli, main

__all__ = ["cli", "main"]
