"""`cc-train`: the trainer's command line."""

from __future__ import annotations

import click

from cc_prep import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cc-train")
def cli() -> None:
    """Trains on the shards that cc-prep makes. No command has been built yet (see CHANGELOG.md)."""


def main() -> None:
    """Runs the command."""
    cli()
