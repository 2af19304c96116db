"""JSON that may come from strangers: read by one function, which refuses what contradicts itself.

Python's own reader takes the last of two values of one key, in silence, and ends a text of many
levels with a RecursionError.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100  # levels of lists and objects


def loads(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: For what is no JSON, for a key that occurs twice in an object, and for more than
            MAX_DEPTH levels.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated[:40]!r} occurs twice")
    return value
