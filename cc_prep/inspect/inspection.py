"""What a data set holds, and everything wrong with it: `cc-prep inspect`."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from cc_prep import datasets, storage
from cc_prep.datasets import exclusions, unread
from cc_prep.datasets.every_image import read_every_image
from cc_prep.datasets.exclusions import Exclusion
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.inspect import audit, data_warnings
from cc_prep.manifest import Manifest
from cc_prep.media import masks
from cc_prep.media.images import FRAME, has_transparent_pixels, read_together
from cc_prep.media.registration import on_one_grid
from cc_prep.progress import Progress, no_progress
from cc_prep.records import ImagePair
from cc_prep.steps.base import (
    Multiple,
    Size,
    check_captions,
    check_codec,
    check_divisible,
    check_keyframes,
    check_sizes,
    multiples,
    reads_truth,
    size_text,
    true_frames,
)
from cc_prep.steps.imported_features import UNKNOWN, FeatureFiles

DARK = 16  # of 255: an image that reaches no more is as good as black
NO_MASK = "no mask"  # of pairs of which it is not known where they changed


@dataclass
class Inspection:
    """Counts over all splits, what is odd (notes) and what is wrong (faults), each one line.

    Attributes:
        masks: Pairs by what their masks show.
        rejects: Pairs that a job would reject, by reason; rejected has the name of each.
        excluded: Pairs of each split that the manifest leaves out.
        audit: Pairs with labels that cannot all be right, by reason; findings has each of them.
    """

    dataset: str
    splits: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    change_types: dict[str, int] = field(default_factory=dict)
    captions: dict[str, float] = field(default_factory=dict)
    image_sizes: dict[str, int] = field(default_factory=dict)
    masks: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, int] = field(default_factory=dict)
    audit: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    findings: list[Exclusion] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All but the lists of pairs, of which there may be thousands."""
        left_out = ("rejected", "findings")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@dataclass(frozen=True)
class _Image:
    """What an image shows. size: height and width in px. hash: of its look, 64 bits."""

    size: Size
    digest: str
    hash: int
    is_dark: bool
    is_transparent: bool


@dataclass(frozen=True)
class _Images:
    """What every image shows, or why it cannot be read, by reference."""

    read: dict[str, _Image]
    unreadable: dict[str, RejectedPair]


def inspect(
    manifest: Manifest,
    splits: Iterable[str],
    limit: int | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Reads every annotation and decodes every image once.

    Args:
        limit: Look at the images, masks and features of at most so many pairs of a split. progress
            is told how many images of how many are done.

    Raises:
        UserError: If the data set is not there.
    """
    splits = [*splits]
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
    if {*splits} >= {*manifest.splits} and manifest.exclude is None:
        inspection.notes += unread.notes(manifest, all_pairs, inspection.faults)
    inspection.excluded = dict((exclusions.description(manifest) or {"pairs": {}})["pairs"])
    examined = [pair for listed in pairs.values() for pair in listed[:limit]]
    images = _look_at_images(manifest, examined, inspection, progress)
    shown = _look_at_masks(manifest, examined, images, inspection)
    _look_for_rejects(manifest, all_pairs, examined, images, shown, inspection)
    classes = {
        key: masks_show.classes
        for key, masks_show in shown.items()
        if isinstance(masks_show, masks.Shown)
    }
    hashes = {reference: image.hash for reference, image in images.read.items()}
    inspection.findings = [
        *audit.contradictions(all_pairs, classes),
        *audit.near_duplicates(examined, hashes),
        *audit.shared_captions(all_pairs, classes),
    ]
    inspection.audit = {
        reason: len({one.pair for one in inspection.findings if one.reason == reason})
        for reason in audit.REASONS
    }
    inspection.notes += data_warnings.of_audit(manifest, inspection.findings)
    # A video that cannot be opened is met by the reader of the data set and at each of its frames.
    inspection.faults = [*dict.fromkeys(inspection.faults)]
    return inspection


def _look_at_images(
    manifest: Manifest,
    pairs: list[ImagePair],
    inspection: Inspection,
    progress: Progress,
) -> _Images:
    """What the images and true frames show, with notes and faults of the images."""
    from cc_prep.datasets import splitting  # which brings SciPy

    def look(pixels: np.ndarray, data: bytes) -> _Image:
        size = (pixels.shape[0], pixels.shape[1])
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
        return _Image(
            size,
            digest + size_text(size),
            splitting.perceptual_hash(pixels),
            is_dark=int(pixels.max()) <= DARK,
            is_transparent=bool(data) and has_transparent_pixels(data),
        )

    ends = {reference for pair in pairs for reference in (pair.before, pair.after)}
    references = [*ends, *(image for pair in pairs for image in _truth(manifest, pair).values())]
    found = _Images(*read_every_image(manifest, references, look, None, progress))
    inspection.faults += map(str, found.unreadable.values())
    shown = {reference: image for reference, image in found.read.items() if reference in ends}
    sizes = {reference: size_text(image.size) for reference, image in shown.items()}
    inspection.image_sizes = dict(Counter(sizes.values()).most_common())
    if manifest.image_size is not None and not manifest.pairs.resize:  # both are made squares of it
        inspection.notes += data_warnings.of_resized(pairs, sizes)
    if manifest.image_size is not None:
        each = [image.size for image in shown.values()]
        inspection.notes += data_warnings.of_enlarged(each, manifest.image_size)
    inspection.notes += data_warnings.of_dark(
        [reference for reference, image in shown.items() if image.is_dark]
    )
    inspection.notes += data_warnings.of_transparent(
        [reference for reference, image in shown.items() if image.is_transparent]
    )
    digests = {reference: image.digest for reference, image in shown.items()}
    notes, faults = data_warnings.of_images(pairs, digests)
    inspection.notes += notes
    inspection.faults += faults
    return found


def _truth(manifest: Manifest, pair: ImagePair) -> dict[int, str]:
    """The true frames that a job reads of a pair."""
    if not reads_truth(manifest):
        return {}
    return true_frames(pair, manifest.interpolate.depth)


def _look_at_masks(
    manifest: Manifest, pairs: list[ImagePair], images: _Images, inspection: Inspection
) -> dict[str, masks.Shown | RejectedPair]:
    """What the masks of each pair that has some show, or why a job rejects them, by key."""
    side = manifest.image_size
    frames = None if side is None else (side, side)

    def look(pair: ImagePair) -> masks.Shown | RejectedPair | None:
        sizes = [
            images.read[reference].size
            if reference in images.read and FRAME not in reference  # as a job does not know it
            else None
            for reference in (pair.before, pair.after)
        ]
        try:
            return masks.shown(manifest.root, pair, frames, masks.ImageSizes(*sizes))
        except RejectedPair as error:
            return error

    outcomes: dict[str, masks.Shown | RejectedPair] = {}
    counts: Counter[str] = Counter()
    without = 0
    with_greys: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, outcome in zip(pairs, pool.map(look, pairs), strict=True):
            if outcome is None:
                without += 1
                continue
            outcomes[pair.key] = outcome
            if isinstance(outcome, RejectedPair):
                inspection.faults.append(str(outcome))
            else:
                names = [pair.mask_classes[i - 1] for i in sorted(outcome.classes)]
                counts.update(names or ["empty"])
                with_greys += outcome.with_greys
    if counts and without:  # of a data set with masks
        counts[NO_MASK] = without
    inspection.masks = dict(counts.most_common())
    inspection.notes += data_warnings.of_grey_masks(with_greys)
    return outcomes


def _look_for_rejects(
    manifest: Manifest,
    pairs: list[ImagePair],
    examined: list[ImagePair],
    images: _Images,
    shown: Mapping[str, masks.Shown | RejectedPair],
    inspection: Inspection,
) -> None:
    """Counts the pairs that a job would reject, and adds the faults that no file has by itself."""
    reasons: dict[str, list[Reason]] = defaultdict(list)

    def check(pair: ImagePair, function: Callable[..., object], *arguments: Any) -> None:
        try:
            function(*arguments)
        except RejectedPair as error:
            reasons[pair.name].append(error.reason)
            inspection.faults.append(f"{pair.name}: {error}")

    for pair in pairs:
        check(pair, check_captions, pair.captions)
    needed = _multiples(manifest, inspection)
    for pair in examined:
        references = [pair.before, pair.after, *_truth(manifest, pair).values()]
        outcomes = [*map(images.unreadable.get, references), shown.get(pair.key)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, RejectedPair)]
        reasons[pair.name] += [error.reason for error in errors]
        keep_size = manifest.image_size is None or manifest.image.resize == "after"
        if keep_size and all(image in images.read for image in references):
            before, after, *truth = (images.read[reference].size for reference in references)
            if manifest.pairs.resize:
                before = after = (min(before[0], after[0]), min(before[1], after[1]))
            if manifest.image_size is not None:  # of the frames that are interpolated
                check(pair, check_sizes, before, after)
                continue
            check(pair, check_sizes, before, after, truth)
            check(pair, check_codec, before, manifest.interpolate.codec)
            check(pair, check_keyframes, before, manifest.keyframes)
            for multiple in needed:
                check(pair, check_divisible, before, multiple)
    there = [pair for pair in examined if {pair.before, pair.after} <= images.read.keys()]
    for pair, error in (*_of_registration(manifest, there), *_of_features(manifest, examined)):
        reasons[pair.name].append(error.reason)
        inspection.faults.append(f"{pair.name}: {error}")
    inspection.rejected = [name for name, found in reasons.items() if found]
    first = Counter(found[0].value for found in reasons.values() if found)
    inspection.rejects = dict(first.most_common())


def _multiples(manifest: Manifest, inspection: Inspection) -> list[Multiple]:
    """What sides must be multiples of, where images keep their size; notes where nobody knows."""
    if manifest.image_size is not None:  # a job looks at this one before it begins
        return []
    try:
        return multiples(manifest)
    except UserError as error:
        inspection.notes.append(f"whether the networks take images of these sizes: {error}")
        return []


def _of_registration(
    manifest: Manifest, pairs: list[ImagePair]
) -> Iterable[tuple[ImagePair, RejectedPair]]:
    """The pairs whose images a job cannot lay on each other, and why."""
    if manifest.pairs.register == "none":
        return

    def look(pair: ImagePair) -> RejectedPair | None:
        paths = [storage.resolve(manifest.root, path) for path in (pair.before, pair.after)]
        try:
            before, after = read_together(paths, None, manifest.image)
            on_one_grid(before, after, manifest.pairs)
        except RejectedPair as error:
            return error
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, error in zip(pairs, pool.map(look, pairs), strict=True):
            if error is not None:
                yield pair, error


def _of_features(
    manifest: Manifest, pairs: list[ImagePair]
) -> Iterable[tuple[ImagePair, RejectedPair]]:
    """The pairs whose imported features a job rejects, and why."""
    settings = manifest.features
    if settings.folder is None:
        return
    read = FeatureFiles(settings.folder, settings.backbone, UNKNOWN, settings.precision)

    def look(pair: ImagePair) -> RejectedPair | None:
        try:
            read(pair, 1)
        except RejectedPair as error:
            return error
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, error in zip(pairs, pool.map(look, pairs), strict=True):
            if error is not None:
                yield pair, error


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
            yield f"{pair.name}: no captions. An unchanged pair needs one too: nothing has changed"
        empty = sum(not caption.strip() for caption in pair.captions)
        if empty:
            yield f"{pair.name}: {empty} empty captions"


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
