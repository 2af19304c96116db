"""Of the changes of pairs, how many captions say, and how many of those they say are true.

Each sentence of a caption claims one change. Claimed and true changes are matched one to one, as
many as possible, where the sentence is right of the change by `fact_scores.judge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Matched:
    """Numbers of changes of one pair, or of several pairs together.

    Attributes:
        true: Of the pair.
        claimed: By the caption.
        right: Claimed ones that are true, no true one counted twice.
    """

    true: int
    claimed: int
    right: int

    def __add__(self, other: Matched) -> Matched:
        return Matched(
            self.true + other.true, self.claimed + other.claimed, self.right + other.right
        )

    @property
    def precision(self) -> float:
        """The share of the claimed changes that are true, 0 to 1; 1 if none is claimed."""
        return self.right / self.claimed if self.claimed else 1.0

    @property
    def recall(self) -> float:
        """The share of the true changes that are claimed, 0 to 1; 1 if there are none."""
        return self.right / self.true if self.true else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 0 to 1; 1 if there is no change at all."""
        total = self.true + self.claimed
        return 2 * self.right / total if total else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts and shares."""
        counts = {"true": self.true, "claimed": self.claimed, "right": self.right}
        return {**counts, "precision": self.precision, "recall": self.recall, "F1": self.f1}


def match(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """A largest one-to-one matching: the row of each matched column.

    Args:
        fits: Which columns each row can have.
    """
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        place(row, set())
    return row_of


def to_json(counted: Iterable[Matched]) -> dict[str, Any]:
    """The entry `changes` of scores of facts: of all pairs, and by the number of their changes.

    Args:
        counted: Of each pair.
    """
    by_number: dict[int, tuple[int, Matched]] = {}
    for one in counted:
        pairs, sums = by_number.get(one.true, (0, Matched(0, 0, 0)))
        by_number[one.true] = pairs + 1, sums + one
    total = sum((sums for _, sums in by_number.values()), Matched(0, 0, 0))
    rows = sorted(by_number.items())
    return {
        **total.to_json(),
        "by number": {str(n): {"pairs": pairs, **sums.to_json()} for n, (pairs, sums) in rows},
    }


def table(content: Mapping[str, Any]) -> list[str]:
    """What `to_json` gives as lines of Markdown."""
    lines = ["| changes of a pair | precision, % | recall, % | F1, % | right | claimed | true |"]
    lines.append("|---" * 7 + "|")
    for name, row in {"all": content, **content["by number"]}.items():
        shares = (f"{100 * row[key]:.1f}" for key in ("precision", "recall", "F1"))
        counts = (f"{row[key]:,}" for key in ("right", "claimed", "true"))
        lines.append(f"| {' | '.join((name, *shares, *counts))} |")
    return lines
