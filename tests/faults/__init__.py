"""Faults caused on purpose. `TRIES=50 make faults` tries more of them than the tests do."""

from __future__ import annotations

import os


def tries(few: int) -> int:
    """How often to try what is random: `few` in the tests, or what TRIES says."""
    return int(os.environ.get("TRIES") or few)
