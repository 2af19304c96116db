"""METEOR's table of 5.3 million paraphrases, as numbers of phrases.

Reading the compressed text takes some seconds. So it is read once: 47 MB of numbers are kept in
the cache folder and mapped into memory from then on. A phrase is known by a number of 64 bits, a
polynomial in its words, each a polynomial in its bytes. The phrases of the table have numbers that
all differ, and any other phrase meets one of them by a chance of 1 in 10^13.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cc_prep import storage
from cc_train.evaluation.captions.meteor import tables

LONGEST = 7  # words of a phrase
BLOCK = 1 << 20  # bytes that are read at a time
LAYOUT = 1  # of the file in the cache folder

Numbers = NDArray[np.uint64]

# Odd, so that each has an inverse modulo 2^64.
_OF_BYTES, _OF_WORDS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_BYTES = np.random.Generator(np.random.PCG64(1)).integers(0, 2**64, 256, np.uint64)
_BYTES[[10, 32]] = 0  # the ends of words, which are in no word
_SHIFT = np.uint64(29)


class Paraphrases:
    """The paraphrases of each phrase, in the order of the table.

    Args:
        keys: The numbers of the phrases, sorted.
        starts: Where the paraphrases of each begin in `values`, and the end of the last.
        values: The numbers of the paraphrases.
    """

    def __init__(self, keys: Numbers, starts: Numbers, values: Numbers) -> None:
        self.keys, self.starts, self.values = keys, starts, values

    def among(self, phrases: Numbers) -> dict[int, list[int]]:
        """Which of some phrases are paraphrases of which others of them.

        Args:
            phrases: Numbers, sorted, without duplicates.

        Returns:
            Places in `phrases` by place, in the order of the table.
        """
        rows = np.minimum(np.searchsorted(self.keys, phrases), len(self.keys) - 1)
        known = np.flatnonzero(self.keys[rows] == phrases)
        parts = [self.values[self.starts[row] : self.starts[row + 1]] for row in rows[known]]
        if not parts:
            return {}
        owners = np.repeat(known, [len(part) for part in parts])
        values = np.concatenate(parts)
        places = np.minimum(np.searchsorted(phrases, values), len(phrases) - 1)
        there = phrases[places] == values
        found: dict[int, list[int]] = {}
        for owner, place in zip(owners[there].tolist(), places[there].tolist(), strict=True):
            found.setdefault(owner, []).append(place)
        return found


@functools.cache
def read() -> Paraphrases:
    """The table, from the cache folder if it is there.

    Raises:
        OSError: Where pycocoevalcap's file is missing.
        zlib.error: Where it is broken.
    """
    source = tables.file(tables.PARAPHRASES)
    with source.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        ending = file.read().hex()  # the sum and the size of the text
    path = storage.cache_folder() / f"meteor-paraphrases-{LAYOUT}-{ending}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        return _opened(np.load(path, mmap_mode="r"))
    content = _packed(source)
    with contextlib.suppress(OSError):  # without the file, the next process reads the text again
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.write_whole(str(path)) as file:
            np.save(file, content)
    return _opened(content)


def word_numbers(words: Sequence[str]) -> Numbers:
    """The number of each word; none holds a blank."""
    text = "\n".join([*words, ""]).encode()
    return _numbers_of_words(np.frombuffer(text, np.uint8))[0] if words else np.zeros(0, np.uint64)


def phrase_numbers(words: Numbers, length: int) -> Numbers:
    """The number of each phrase of so many words, [words - length + 1], of the words' numbers."""
    powers, inverses = _powers(_OF_WORDS, len(words))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words * powers)])
    return (sums[length:] - sums[:-length]) * inverses[: max(0, len(words) - length + 1)]


def _opened(content: Any) -> Paraphrases:
    """The table in one row of numbers: how many phrases, keys, starts, values.

    Raises:
        ValueError: For another row.
    """
    if content.dtype != np.uint64 or content.ndim != 1 or len(content) < 1:
        raise ValueError("no table of paraphrases")
    count = int(content[0])
    keys, starts, values = np.split(content[1:], [count, 2 * count + 1])
    if len(starts) != count + 1 or int(starts[-1]) != len(values):
        raise ValueError("no table of paraphrases")
    return Paraphrases(keys, starts.astype(np.int64), values)


def _packed(source: Path) -> Numbers:
    """The row of numbers that `_opened` reads, of the text."""
    sources, values = [], []
    for block in _blocks(source):
        words, first = _numbers_of_words(block)
        powers, inverses = _powers(_OF_WORDS, len(words))
        lines = np.add.reduceat(words * powers, first) * inverses[first]
        sources.append(lines[1::3])  # a probability, a phrase, its paraphrase
        values.append(lines[2::3])
    phrases = np.concatenate(sources)
    order = np.argsort(phrases, kind="stable")
    keys, starts = np.unique(phrases[order], return_index=True)
    ends = np.append(starts, len(phrases)).astype(np.uint64)
    head = np.array([len(keys)], np.uint64)
    return np.concatenate([head, keys, ends, np.concatenate(values)[order]])


def _blocks(source: Path) -> Iterator[NDArray[np.uint8]]:
    """The text in blocks of whole entries, which are three lines each.

    Raises:
        zlib.error: Where it is no gzip file.
    """
    unpacker, rest = zlib.decompressobj(wbits=31), b""
    with source.open("rb") as file:
        while packed := file.read(BLOCK // 4):
            text = np.frombuffer(rest + unpacker.decompress(packed), np.uint8)
            ends = np.flatnonzero(text == 10)[2::3]
            size = int(ends[-1]) + 1 if len(ends) else 0
            rest = text[size:].tobytes()
            if size:
                yield text[:size]
    if rest or not unpacker.eof:
        raise zlib.error("the table of paraphrases is incomplete")


def _numbers_of_words(text: NDArray[np.uint8]) -> tuple[Numbers, NDArray[np.intp]]:
    """The number of each word of lines, and the place of the first word of each line."""
    is_end = (text == 32) | (text == 10)
    ends = np.flatnonzero(is_end)
    starts = np.concatenate([np.zeros(1, np.intp), ends[:-1] + 1])
    powers, inverses = _powers(_OF_BYTES, len(text))
    sums = np.add.reduceat(_BYTES[text] * powers, starts) * inverses[starts]
    first = np.concatenate([np.zeros(1, np.intp), np.flatnonzero(text[ends] == 10)[:-1] + 1])
    return (sums ^ (sums >> _SHIFT)) * np.uint64(_OF_BYTES), first


def _powers(base: int, count: int) -> tuple[Numbers, Numbers]:
    """The first powers of an odd number modulo 2^64, and of its inverse, as many as are needed."""
    size = 1 << max(16, count.bit_length())
    powers, inverses = _all_powers(base, size)
    return powers[:count], inverses[: count + 1]


@functools.lru_cache(maxsize=8)
def _all_powers(base: int, size: int) -> tuple[Numbers, Numbers]:
    def of(number: int) -> Numbers:
        factors = np.full(size, number, np.uint64)
        factors[0] = 1
        return np.multiply.accumulate(factors)

    return of(base), of(pow(base, -1, 2**64))
