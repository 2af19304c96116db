"""Which validation of a run is the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

# A figure, whether more of it is better, and a second figure, of which more is better, that decides
# where the first one is equal.
Best: TypeAlias = tuple[str, bool] | tuple[str, bool, str]


def better(
    best: Mapping[str, float], figures: Mapping[str, float], step: int, by: Best
) -> dict[str, float]:
    """The validation at `step` where it is at least as good as the best one so far, else that one.

    best: `step` and figures of the best one so far; empty where there is none. figures: of the
    validation at `step`, all finite; without the first figure of `by` it is not the best one. Of
    equal ones the later is taken: it has learned more.
    """
    name, more = by[:2]
    names = (name, *by[2:])
    if name not in figures:
        return dict(best)
    new: dict[str, float] = {"step": step, **{n: figures[n] for n in names if n in figures}}
    if name not in best:
        return new

    def rank(one: Mapping[str, float]) -> tuple[float, ...]:
        first = one[name] if more else -one[name]
        return (first, *(one.get(second, -math.inf) for second in names[1:]))

    return new if rank(new) >= rank(best) else dict(best)
