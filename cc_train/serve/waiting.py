"""The pairs of --pairs: which of them wait for captions, and what they are called until then."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection as Names
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep.errors import JobFailed, RejectedPair
from cc_prep.media import images
from cc_train.serve.collection import Collection, Row

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
Pair = tuple[str, str]


class Waiting:
    """Pairs that are to be captioned, by number.

    A pair has captions if the collection has its images, in either order, whatever it is called
    there: other folders have files of the same names. Files that a collection keeps as they are
    given are compared byte by byte. Others, which it converts, are compared by pixels, and only
    with pairs that are called like them.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)
        self._compared: dict[tuple[object, ...], bool] = {}

    def left(self, collection: Collection) -> list[dict[str, Any]]:
        """`number` and proposed `id` of each pair that waits. Raises UserError as `rows` does."""
        rows = collection.rows()
        by_size: dict[object, list[Row]] = {}
        by_stem: dict[str, list[Row]] = {}
        for row in rows:
            by_size.setdefault(_sizes(_stored(collection, row)), []).append(row)
            for stem in {row.id, re.sub(r"-[0-9]+$", "", row.id)}:
                by_stem.setdefault(stem, []).append(row)
        waiting = []
        for number, pair in enumerate(self.pairs):
            verbatim = _is_kept(pair)
            if verbatim:
                sizes = _sizes(pair)
                alike = [
                    row for of in {sizes, sizes and sizes[::-1]} for row in by_size.get(of, ())
                ]
            else:
                alike = by_stem.get(_stem(pair), [])
            stored = [_stored(collection, row) for row in alike]
            # The page can swap the images of a pair.
            if not any(self._same(number, one, verbatim) for s in stored for one in (s, s[::-1])):
                waiting.append(number)
        ids = names([self.pairs[number] for number in waiting], {row.id for row in rows})
        return [{"number": n, "id": id} for n, id in zip(waiting, ids, strict=True)]

    def _same(self, number: int, stored: Pair, verbatim: bool) -> bool:
        """Whether these files of a collection hold the images of a pair."""
        try:
            key = (number, *stored, *(Path(path).stat().st_mtime_ns for path in stored))
            if key not in self._compared:
                both = zip(self.pairs[number], stored, strict=True)
                equal = _equal_bytes if verbatim else _equal_pixels
                self._compared[key] = all(equal(*paths) for paths in both)
        except (OSError, RejectedPair, JobFailed):  # it is not shown either
            return False
        return self._compared[key]


def names(pairs: Sequence[Pair], taken: Names[str] = ()) -> list[str]:
    """A name of each pair by its image before, all different, that a collection takes.

    taken: names that other pairs have.
    """
    counts: Counter[str] = Counter()
    unique: list[str] = []
    used = set(taken)
    for pair in pairs:
        numbered = name = _stem(pair)
        while numbered in used:
            counts[name] += 1
            numbered = f"{name}-{counts[name] + 1}"
        used.add(numbered)
        unique.append(numbered)
    return unique


def _stem(pair: Pair) -> str:
    stem = Path(pair[0]).stem.removesuffix("_before")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).lstrip("_.-")[:90] or "pair"


def _stored(collection: Collection, row: Row) -> Pair:
    return str(collection.folder / row.before), str(collection.folder / row.after)


def _is_kept(pair: Pair) -> bool:
    """Whether a collection keeps the files of a pair as they are, as far as their names say it."""
    kinds = {TYPES.get(Path(path).suffix.lower()) for path in pair}
    return len(kinds) == 1 and None not in kinds and not any("://" in path for path in pair)


def _sizes(pair: Pair) -> tuple[int, int] | None:
    """The bytes of both files; None where one is missing."""
    try:
        return Path(pair[0]).stat().st_size, Path(pair[1]).stat().st_size
    except OSError:
        return None


def _equal_bytes(path: str, stored: str) -> bool:
    return Path(path).read_bytes() == Path(stored).read_bytes()


def _equal_pixels(reference: str, stored: str) -> bool:
    return np.array_equal(images.read(reference), images.read(stored))
