"""Masks as the layouts name them: what a side without a file means, and a pair without change."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace

from cc_prep import storage
from cc_prep.datasets.layouts.annotation_files import by_stem
from cc_prep.records import EMPTY_MASK, NO_CHANGE, ImagePair

NAMES = ("mask", "mask_before", "mask_after")  # of the record's fields, and of a table's columns
FOLDERS = ("masks", "masks_before", "masks_after")


def with_masks(
    pair: ImagePair,
    union: str | None = None,
    before: str | None = None,
    after: str | None = None,
    *,
    land_cover: bool = False,
) -> ImagePair:
    """The pair with the masks of these references.

    Where one side has a mask and the other has none, nothing is seen on the other: an object that
    came or went has one mask.

    Args:
        land_cover: The sides are maps of what covers the ground; one of them says nothing of what
            changed, and both are left out.
    """
    if land_cover and (before is None or after is None):
        before = after = None
    if before is not None or after is not None:
        before, after = before or EMPTY_MASK, after or EMPTY_MASK
    return replace(pair, mask=union, mask_before=before, mask_after=after)


def with_empty(pairs: Sequence[ImagePair]) -> list[ImagePair]:
    """The pairs of a data set, those without change with masks that are zero everywhere.

    Only where the data set has masks at all, and for the sides only where it has those.
    """
    has_sides = any(pair.mask_before is not None for pair in pairs)
    has_masks = has_sides or any(pair.mask is not None for pair in pairs)
    side = EMPTY_MASK if has_sides else None
    return [
        with_masks(pair, EMPTY_MASK, side, side)
        if has_masks and pair.kind == NO_CHANGE and pair.mask is None and pair.mask_before is None
        else pair
        for pair in pairs
    ]


def stray_faults(root: str, folder: str, names: Set[str], *, of_others: bool = True) -> list[str]:
    """A fault for each mask of a folder that no pair has, with the pair that it may be meant for.

    Args:
        names: Of the pairs.
        of_others: Also of masks that do not begin with the name of a pair, as those of images that
            a data set leaves out.
    """
    problems = []
    for stem, name in sorted(by_stem(storage.list_files(storage.join(root, folder))).items()):
        if stem in names:
            continue
        meant = _begun_by(stem, names)
        if meant is not None:
            remedy = f"If it is the mask of {meant}, call it {meant}.png"
            problems.append(f"{folder}/{name} belongs to no pair. {remedy}")
        elif of_others:
            problems.append(f"{folder}/{name} belongs to no pair")
    return problems


def _begun_by(stem: str, names: Set[str]) -> str | None:
    """The longest name that a stem begins with, as `0` is of `0_mask`."""
    ends = [match.start() for match in re.finditer(r"[-_. ]", stem)]
    return next((stem[:end] for end in reversed(ends) if stem[:end] in names), None)
