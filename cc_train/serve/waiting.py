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

    A pair has captions if the collection has its images, in either order, whatever it is called
    there: other folders have files of the same names. Files that a collection keeps as they are
    given are compared byte by byte. Others, which it converts, are compared by pixels: files of
    this machine that were saved from here with all pairs, and the rest with pairs that are called
    like them, so that a start does not decode all that waits.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)
        self._compared: dict[tuple[object, ...], bool] = {}
        self._decoding = threading.Lock()
        self._pixels: Pixels | None = None

    def left(self, collection: Collection) -> list[dict[str, Any]]:
        """`number` and proposed `id` of each pair that waits. Raises UserError as `rows` does."""
        rows = collection.rows()
        by_size: dict[object, list[Row]] = {}
        for row in rows:
            by_size.setdefault(_sizes(_stored(collection, row)), []).append(row)
        converted = self._converted(collection, rows)
        waiting = []
        for number, pair in enumerate(self.pairs):
            sizes = _sizes(pair) if _is_kept(pair) else None
            alike = [row for of in {sizes, sizes and sizes[::-1]} for row in by_size.get(of, ())]
            stored = [_stored(collection, row) for row in alike if sizes is not None]
            # The page can swap the images of a pair.
            same = any(self._same(number, one) for s in stored for one in (s, s[::-1]))
            if not same and number not in converted:
                waiting.append(number)
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

    def _converted(self, collection: Collection, rows: Sequence[Row]) -> set[int]:
        """The numbers of the pairs whose files a collection converts, and which it has."""
        by_stem: dict[str, list[Row]] = {}
        for row in rows:
            for stem in {row.id, re.sub(r"-[0-9]+$", "", row.id)}:
                by_stem.setdefault(stem, []).append(row)
        listed = [n for n, pair in enumerate(self.pairs) if rows and not _is_kept(pair)]
        with self._decoding:
            pixels = self._pixels_of(collection)
            stored: dict[str, set[Digests]] = {}

            def of(some: Sequence[Row]) -> set[Digests]:
                for row in some:
                    if row.id not in stored:
                        both = _digests(pixels, _stored(collection, row))
                        stored[row.id] = {both, both[::-1]}
                return set().union(*(stored[row.id] for row in some))

            known = {n for n in listed if all(map(pixels.known, self.pairs[n]))}
            # What is converted is stored as PNG, and the rest in its own format.
            kinds = {TYPES[".png"], *(_kind(path) for n in known for path in self.pairs[n])}
            some = [row for row in rows if {_kind(row.before), _kind(row.after)} <= kinds]
            everywhere = of(some) if known else set()
            captioned = set()
            for number in listed:
                alike = by_stem.get(_stem(self.pairs[number]), [])
                theirs = everywhere if number in known else of(alike)
                ours = _digests(pixels, self.pairs[number]) if theirs else ("", "")
                if None not in ours and ours in theirs:
                    captioned.add(number)
            pixels.write()
        return captioned

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
