"""Packages of the extras: one line for a user who did not install them, with one remedy for all."""

from __future__ import annotations

from importlib.util import find_spec

from cc_prep.errors import UserError

# Modules whose package has another name, as a user reads it.
PACKAGES = {"sklearn": "scikit-learn", "spacy": "spaCy"}


def require(module: str, purpose: str, extra: str = "mllm") -> None:
    """Raises UserError if that top-level module is not installed. Imports nothing.

    Args:
        purpose: What needs it.
        extra: That brings it.
    """
    if find_spec(module) is None:
        raise UserError(
            f"{purpose} needs {PACKAGES.get(module, module)}, which is not installed",
            install(extra),
        )


def install(extra: str) -> str:
    """How a user installs an extra: the toolkit is not on PyPI, so from the checkout."""
    return f"Install the extra in the checkout: pip install '.[{extra}]'"
