"""What a data set holds, and everything wrong with it: `cc-prep inspect`."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from cc_prep import datasets
from cc_prep.datasets import exclusions
from cc_prep.datasets.every_image import read_every_image
from cc_prep.datasets.exclusions import Exclusion
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import RejectedPair
from cc_prep.inspect import audit, data_warnings
from cc_prep.manifest import Manifest
from cc_prep.media import masks
from cc_prep.progress import Progress, no_progress
from cc_prep.records import ImagePair

DARK = 16  # of 255: an image that reaches no more is as good as black
NO_MASK = "no mask"  # of pairs of which it is not known where they changed


@dataclass
class Inspection:
    """Counts over all splits, what is odd (notes) and what is wrong (faults), each one line.

    masks: pairs by what their masks show. excluded: pairs of each split that the manifest leaves
    out. audit: pairs with labels that cannot all be right, by reason; findings has each of them.
    """

    dataset: str
    splits: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    change_types: dict[str, int] = field(default_factory=dict)
    captions: dict[str, float] = field(default_factory=dict)
    image_sizes: dict[str, int] = field(default_factory=dict)
    masks: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, int] = field(default_factory=dict)
    audit: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    findings: list[Exclusion] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All but the findings, of which there may be thousands."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}


def inspect(
    manifest: Manifest,
    splits: Iterable[str],
    limit: int | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Reads every annotation and decodes every image once.

    limit: look at the images and masks of at most so many pairs of a split. progress is told how
    many images of how many are done. Raises UserError if the data set is not there.
    """
    inspection = Inspection(manifest.name)
    pairs = {split: datasets.pairs(manifest, split) for split in splits}
    all_pairs = [pair for split in pairs.values() for pair in split]
    inspection.splits = {split: len(listed) for split, listed in pairs.items()}
    inspection.kinds = _count(pair.kind for pair in all_pairs)
    inspection.change_types = _count(pair.change_type for pair in all_pairs if pair.change_type)
    inspection.captions = _caption_figures(all_pairs)
    inspection.faults = datasets.reader(manifest).faults(manifest)
    inspection.faults += [
        f"split {split} has no pairs" for split, listed in pairs.items() if not listed
    ]
    inspection.faults += list(_caption_faults(all_pairs))
    for split, listed in pairs.items():
        inspection.notes += data_warnings.of_captions(split, listed)
        if manifest.exclude is None:  # what it leaves out is in the split file still
            ids = split_file.ids(manifest).get(split, [])
            inspection.notes += data_warnings.of_split_file(split, listed, ids)
    inspection.excluded = dict((exclusions.description(manifest) or {"pairs": {}})["pairs"])
    examined = [pair for listed in pairs.values() for pair in listed[:limit]]
    hashes = _look_at_images(manifest, examined, inspection, progress)
    classes = _look_at_masks(manifest, examined, inspection)
    inspection.findings = [
        *audit.contradictions(all_pairs, classes),
        *audit.near_duplicates(examined, hashes),
        *audit.shared_captions(all_pairs, classes),
    ]
    inspection.audit = {
        reason: len({one.pair for one in inspection.findings if one.reason == reason})
        for reason in audit.REASONS
    }
    inspection.notes += data_warnings.of_audit(inspection.findings)
    return inspection


def _look_at_images(
    manifest: Manifest,
    pairs: list[ImagePair],
    inspection: Inspection,
    progress: Progress,
) -> dict[str, int]:
    """Notes what the images show; the perceptual hash of each by its reference."""
    from cc_prep.datasets import splitting  # which brings SciPy

    dark: set[str] = set()  # digests

    def look(pixels: np.ndarray) -> tuple[str, str, int]:
        size = f"{pixels.shape[1]}×{pixels.shape[0]}"
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest() + size
        if pixels.max() <= DARK:
            dark.add(digest)
        return size, digest, splitting.perceptual_hash(pixels)

    results, unreadable = read_every_image(manifest, pairs, look, None, progress)
    inspection.faults += unreadable
    inspection.image_sizes = dict(Counter(size for size, _, _ in results.values()).most_common())
    sizes = {reference: size for reference, (size, _, _) in results.items()}
    if manifest.image_size is None:
        inspection.faults += list(data_warnings.of_sizes(pairs, sizes))
    else:  # both are made squares of it
        inspection.notes += list(data_warnings.of_resized(pairs, sizes))
    digests = {reference: digest for reference, (_, digest, _) in results.items()}
    inspection.notes += data_warnings.of_dark(
        [reference for reference, digest in digests.items() if digest in dark]
    )
    notes, faults = data_warnings.of_images(pairs, digests)
    inspection.notes += notes
    inspection.faults += faults
    return {reference: value for reference, (_, _, value) in results.items()}


def _look_at_masks(
    manifest: Manifest, pairs: list[ImagePair], inspection: Inspection
) -> dict[str, frozenset[int]]:
    """Notes what the masks show; the classes in those of each pair that has some, by key."""

    def look(pair: ImagePair) -> frozenset[int] | RejectedPair | None:
        try:
            return masks.classes(manifest.root, pair)
        except RejectedPair as error:
            return error

    known: dict[str, frozenset[int]] = {}
    counts: Counter[str] = Counter()
    without = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, outcome in zip(pairs, pool.map(look, pairs), strict=True):
            if isinstance(outcome, RejectedPair):
                inspection.faults.append(str(outcome))
            elif outcome is None:
                without += 1
            else:
                known[pair.key] = outcome
                counts.update([pair.mask_classes[i - 1] for i in sorted(outcome)] or ["empty"])
    if counts and without:  # of a data set with masks
        counts[NO_MASK] = without
    inspection.masks = dict(counts.most_common())
    return known


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
            yield f"{pair.name}: no captions"
        empty = sum(not caption.strip() for caption in pair.captions)
        if empty:
            yield f"{pair.name}: {empty} empty captions"


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
