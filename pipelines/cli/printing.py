"""Output of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cc_prep.errors import UserError
from cc_prep.terminal import echo


@contextmanager
def damage_is_a_user_error(path: str) -> Iterator[None]:
    """Turns a damaged or missing shard under `path` into a UserError that points to `verify`."""
    from cc_prep.formats.tar import DamagedShard

    try:
        yield
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(str(error), f"Look closer with: cc-prep verify {path}") from None


def print_tree(figures: dict[str, Any]) -> None:
    """Prints nested figures as an aligned list."""
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        if isinstance(value, dict):
            value = ", ".join(_words(k, v) for k, v in value.items())
        elif isinstance(value, int):
            value = f"{value:,}"
        echo(f"{name:{width}}  {value if value != '' else '–'}")


def _words(name: str, value: Any) -> str:
    """A figure, or a group of figures, with its name."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return f"{name} {value:,}"
    if value.keys() == {"mean", "frames"}:
        return f"{name} {value['mean']:,} over {value['frames']:,}"
    return f"\n    {name}: " + ", ".join(f"{k} {v:,}" for k, v in value.items())
