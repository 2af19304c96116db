"""The pairs of --pairs: which of them wait for captions, and what they are called until then."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection as Names
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_train.serve import pixels as pixels_file
from cc_train.serve.collection import Collection, Row
from cc_train.serve.pixels import Pixels

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
Pair = tuple[str, str]
Digests = tuple[str | None, str | None]


class Waiting:
    """Pairs that are to be captioned, by number.

    A pair has captions if the collection has its images, whatever it is called there: other
    folders have files of the same names. The page can swap the images of a pair, so a stored pair
    that is none of the list in this order may be one in the other. Files that a collection keeps as
    they are given are compared byte by byte. Others, which it converts, are compared by pixels:
    files of this machine that were saved from here with all pairs, and the rest with pairs that are
    called like them, so that a start does not decode all that waits.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)
        self._compared: dict[tuple[object, ...], bool] = {}
        self._decoding = threading.Lock()
        self._pixels: Pixels | None = None

    def left(self, collection: Collection) -> list[dict[str, Any]]:
        """`number` and proposed `id` of each pair that waits. Raises UserError as `rows` does."""
        rows = collection.rows()
        captioned = self._kept(collection, rows) | self._converted(collection, rows)
        waiting = [number for number in range(len(self.pairs)) if number not in captioned]
        ids = names([self.pairs[number] for number in waiting], {row.id for row in rows})
        return [{"number": n, "id": id} for n, id in zip(waiting, ids, strict=True)]

    def saved(self, number: int, collection: Collection) -> None:
        """Remembers the images of a pair that was just saved, whatever it is called there."""
        if 0 <= number < len(self.pairs) and not _is_kept(self.pairs[number]):
            with self._decoding:
                pixels = self._pixels_of(collection)
                for path in self.pairs[number]:
                    pixels.digest(path)
                pixels.write()

    def _pixels_of(self, collection: Collection) -> Pixels:
        if self._pixels is None:
            self._pixels = Pixels(collection.folder / pixels_file.FILE)
        return self._pixels

    def _kept(self, collection: Collection, rows: Sequence[Row]) -> set[int]:
        """The numbers of the pairs whose files a collection keeps, and which it has."""
        by_size: dict[object, list[Pair]] = {}
        for row in rows:
            stored = _stored(collection, row)
            by_size.setdefault(_sizes(stored), []).append(stored)
        sizes = {n: _sizes(pair) for n, pair in enumerate(self.pairs) if _is_kept(pair)}
        alike = [(n, one) for n, of in sizes.items() if of for one in by_size.get(of, ())]
        same = [(number, stored) for number, stored in alike if self._same(number, stored)]
        captioned, known = {number for number, _ in same}, {stored for _, stored in same}
        for number, of in sizes.items():
            for stored in by_size.get(of[::-1], ()) if of and number not in captioned else ():
                if stored not in known and self._same(number, stored[::-1]):
                    captioned.add(number)
        return captioned

    def _converted(self, collection: Collection, rows: Sequence[Row]) -> set[int]:
        """The numbers of the pairs whose files a collection converts, and which it has."""
        by_stem: dict[str, list[Row]] = {}
        for row in rows:
            for stem in {row.id, re.sub(r"-[0-9]+$", "", row.id)}:
                by_stem.setdefault(stem, []).append(row)
        listed = [n for n, pair in enumerate(self.pairs) if rows and not _is_kept(pair)]
        with self._decoding:
            pixels = self._pixels_of(collection)
            stored: dict[str, Digests] = {}

            def of(some: Sequence[Row]) -> set[Digests]:
                for row in some:
                    if row.id not in stored:
                        stored[row.id] = _digests(pixels, _stored(collection, row))
                return {stored[row.id] for row in some}

            known = {n for n in listed if all(map(pixels.known, self.pairs[n]))}
            # What is converted is stored as PNG, and the rest in its own format.
            kinds = {TYPES[".png"], *(_kind(path) for n in known for path in self.pairs[n])}
            some = [row for row in rows if {_kind(row.before), _kind(row.after)} <= kinds]
            everywhere = of(some) if known else set()
            theirs = {
                n: everywhere if n in known else of(by_stem.get(_stem(self.pairs[n]), []))
                for n in listed
            }
            ours = {n: _digests(pixels, self.pairs[n]) for n in listed if theirs[n]}
            pixels.write()
        ordered = set(ours.values())
        return {
            n
            for n, both in ours.items()
            if None not in both and (both in theirs[n] or both[::-1] in theirs[n] - ordered)
        }

    def _same(self, number: int, stored: Pair) -> bool:
        """Whether these files of a collection hold the images of a pair."""
        try:
            key = (number, *stored, *(Path(path).stat().st_mtime_ns for path in stored))
            if key not in self._compared:
                both = zip(self.pairs[number], stored, strict=True)
                self._compared[key] = all(_equal_bytes(*paths) for paths in both)
        except (OSError, UserError):  # it is not shown either
            return False
        return self._compared[key]


def names(pairs: Sequence[Pair], taken: Names[str] = ()) -> list[str]:
    """A name of each pair by its image before, all different, that a collection takes.

    Args:
        taken: Names that other pairs have.
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


def _kind(path: str) -> str | None:
    return TYPES.get(Path(path).suffix.lower())


def _digests(pixels: Pixels, pair: Pair) -> Digests:
    return pixels.digest(pair[0]), pixels.digest(pair[1])


def _is_kept(pair: Pair) -> bool:
    """Whether a collection keeps the files of a pair as they are, as far as their names say it."""
    kinds = set(map(_kind, pair))
    return len(kinds) == 1 and None not in kinds and not any("://" in path for path in pair)


def _sizes(pair: Pair) -> tuple[int, int] | None:
    """The bytes of both files; None where one is missing."""
    try:
        return Path(pair[0]).stat().st_size, Path(pair[1]).stat().st_size
    except OSError:
        return None


def _equal_bytes(path: str, stored: str) -> bool:
    return storage.read_bytes(path) == storage.read_bytes(stored)
