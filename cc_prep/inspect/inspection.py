"""What a data set holds, and everything wrong with it: `cc-prep inspect`."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from cc_prep import datasets, storage
from cc_prep.errors import RejectedPair
from cc_prep.inspect import data_warnings
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.records import ImagePair


@dataclass
class Inspection:
    """Counts over all splits, what is odd (notes) and what is wrong (faults), each one line."""

    dataset: str
    splits: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    change_types: dict[str, int] = field(default_factory=dict)
    captions: dict[str, float] = field(default_factory=dict)
    image_sizes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(
    manifest: Manifest,
    splits: Iterable[str],
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Inspection:
    """Reads every annotation and decodes every image once.

    limit: look at the images of at most so many pairs of a split. progress is told how many images
    of how many are done. Raises UserError if the data set is not there.
    """
    found = Inspection(manifest.name)
    pairs = {split: datasets.pairs(manifest, split) for split in splits}
    every = [pair for split in pairs.values() for pair in split]
    found.splits = {split: len(listed) for split, listed in pairs.items()}
    found.kinds = _counted(pair.kind for pair in every)
    found.change_types = _counted(pair.change_type for pair in every if pair.change_type)
    found.captions = _caption_figures(every)
    found.faults = datasets.reader(manifest).faults(manifest)
    found.faults += [f"split {split} has no pairs" for split, listed in pairs.items() if not listed]
    found.faults += list(_caption_faults(every))
    for split, listed in pairs.items():
        found.notes += data_warnings.of_captions(split, listed)
    looked_at = [pair for listed in pairs.values() for pair in listed[:limit]]
    _look_at_images(manifest, looked_at, found, progress)
    return found


def _look_at_images(
    manifest: Manifest,
    pairs: list[ImagePair],
    found: Inspection,
    progress: Callable[[int, int], None],
) -> None:
    # An image of two pairs is looked at once. Frames of videos come from one decoder anyway.
    references = sorted({ref for pair in pairs for ref in (pair.before, pair.after)})
    sizes: Counter[str] = Counter()
    digests: dict[str, str] = {}

    def look(reference: str) -> tuple[str, str, str]:
        try:
            pixels = images.read(storage.resolve(manifest.root, reference))
        except RejectedPair as error:
            return "", "", str(error)
        size = f"{pixels.shape[1]}×{pixels.shape[0]}"
        return size, hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest() + size, ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        looked = zip(references, pool.map(look, references), strict=True)
        for done, (reference, (size, digest, fault)) in enumerate(looked, 1):
            if fault:
                found.faults.append(fault)
            else:
                sizes[size] += 1
                digests[reference] = digest
            progress(done, len(references))
    found.image_sizes = dict(sizes.most_common())
    notes, faults = data_warnings.of_images(pairs, digests)
    found.notes += notes
    found.faults += faults


def _caption_figures(pairs: list[ImagePair]) -> dict[str, float]:
    words = [len(caption.split()) for pair in pairs for caption in pair.captions]
    if not words:
        return {"captions": 0}
    return {
        "captions": len(words),
        "a pair, mean": round(len(words) / len(pairs), 2),
        "words, mean": round(sum(words) / len(words), 2),
        "words, most": max(words),
        "different words": len({w for p in pairs for c in p.captions for w in c.lower().split()}),
    }


def _caption_faults(pairs: list[ImagePair]) -> Iterable[str]:
    # A data set without any captions, such as videos, is not faulty for it.
    if not any(pair.captions for pair in pairs):
        return
    for pair in pairs:
        if not pair.captions:
            yield f"{pair.key}: no captions"
        empty = sum(not caption.strip() for caption in pair.captions)
        if empty:
            yield f"{pair.key}: {empty} empty captions"


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
