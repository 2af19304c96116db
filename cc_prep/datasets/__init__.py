"""Readers: a module a layout, each with what `Reader` asks for. `open` gives pairs with images."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from cc_prep import caption_normalization, storage
from cc_prep import manifest as manifests
from cc_prep.datasets import exclusions
from cc_prep.datasets.layouts import (
    clevr_change,
    clevr_dc,
    folders,
    image_editing,
    levir_cc,
    rasters,
    spot_the_diff,
    table,
    video,
)
from cc_prep.datasets.layouts.annotation_files import ARCHIVES
from cc_prep.datasets.loaded import LoadedPair, LoadedPairs
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair

__all__ = [
    "READERS",
    "LoadedPair",
    "LoadedPairs",
    "Reader",
    "check_inside",
    "open",
    "outsiders",
    "pairs",
    "reader",
]


class Reader(Protocol):
    """What every module here offers."""

    WANTED: str
    """The files that the layout consists of, and how to get them, for the message."""

    def parts(self, root: str) -> dict[str, bool]:
        """Whether each part that the layout consists of is there."""
        ...

    def pairs(self, manifest: Manifest, split: str) -> list[ImagePair]:
        """All pairs of a split in a fixed order.

        Raises:
            UserError: For a damaged data set.
        """
        ...

    def faults(self, manifest: Manifest) -> list[str]:
        """What is wrong with the annotations, beyond what single pairs show."""
        ...


READERS: dict[str, Reader] = {
    "clevr_change": clevr_change,
    "clevr_dc": clevr_dc,
    "spot_the_diff": spot_the_diff,
    "image_editing": image_editing,
    "levir_cc": levir_cc,
    "table": table,
    "folders": folders,
    "video": video,
    "rasters": rasters,
}


def reader(manifest: Manifest) -> Reader:
    """The manifest's reader, once its data folder is known to be there. Raises UserError."""
    layout = READERS[manifest.layout]
    if manifest.root.lower().endswith(ARCHIVES) and storage.exists(manifest.root):
        raise UserError(
            f"{manifest.source}: root: {manifest.root} is an archive", "Unpack it, give its folder"
        )
    if not storage.is_folder(manifest.root):
        raise UserError(
            f"{manifest.source}: root: no folder {manifest.root}", layout.WANTED.format(m=manifest)
        )
    return layout


def open(
    name: str, root: str | None = None, *, split: str = "train", size: int | None = None
) -> LoadedPairs:
    """The pairs of a split with their images, read when they are asked for.

    Args:
        name: Of a manifest, such as `clevr`, or a YAML file.
        root: The folder or URL of the data; by default the manifest's.
        split: One of the manifest's.
        size: Images are resized to size × size px; by default they keep their size.

    Raises:
        UserError: For an unknown name or split, and for a folder that does not hold the data.
    """
    manifest = manifests.load(name, root=root)
    return LoadedPairs(manifest.root, pairs(manifest, split), size, manifest.image, manifest.pairs)


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split but those that the manifest excludes. Raises UserError."""
    if split not in manifest.splits:
        raise UserError(
            f"{manifest.source}: no split {split!r}", f"It has: {', '.join(manifest.splits)}"
        )
    pairs_of_split = [
        _with_mask_classes(manifest, pair) for pair in reader(manifest).pairs(manifest, split)
    ]
    pairs_of_split = exclusions.apply(manifest, split, pairs_of_split)
    check_inside(manifest, pairs_of_split)
    _check_text(manifest, pairs_of_split)
    steps = manifest.captions.normalise
    if not steps:
        return pairs_of_split
    return [
        replace(p, captions=caption_normalization.normalize(p.captions, steps))
        for p in pairs_of_split
    ]


def _with_mask_classes(manifest: Manifest, pair: ImagePair) -> ImagePair:
    """The pair with what its manifest says of the pixels of masks, if it has any."""
    if pair.mask is pair.mask_before is pair.mask_after is None:
        return pair
    settings = manifest.masks
    return replace(
        pair,
        mask_values=settings.values,
        mask_classes=settings.names,
        land_cover=settings.land_cover,
    )


def check_inside(manifest: Manifest, pairs: Iterable[ImagePair]) -> None:
    """Raises UserError where pairs name images outside the root and the manifest forbids it."""
    outside = [] if manifest.outside_root else outsiders(manifest, pairs)
    if outside:
        raise UserError(
            f"{manifest.root}: pairs name images outside it, such as {outside[0]!r}",
            "Set outside_root=true if you trust the data set",
        )


def _check_text(manifest: Manifest, pairs: Iterable[ImagePair]) -> None:
    """Raises UserError where a pair's text cannot be written as UTF-8.

    So it is with the name of a file that is not UTF-8, and with half a pair of surrogates in JSON.
    """
    for pair in pairs:
        texts = (pair.id, *_images(pair), *pair.captions, pair.change_type or "")
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                shown = text.encode("utf-8", "backslashreplace").decode()
                raise UserError(
                    f"{manifest.root}: '{shown}' is not UTF-8", _text_remedy()
                ) from None


def _text_remedy() -> str:
    if sys.getfilesystemencoding() != "utf-8":  # as with LC_ALL=C and PYTHONUTF8=0
        return "Set PYTHONUTF8=1: Python takes no name of a file for UTF-8 here"
    return "Rename the file, or fix the text"


def _images(pair: ImagePair) -> tuple[str, ...]:
    return (pair.before, pair.after, *pair.masks, *(image for _, image in pair.truth))


def outsiders(manifest: Manifest, pairs: Iterable[ImagePair]) -> list[str]:
    """Images that pairs name and that are not below the data set's root."""
    return [
        reference
        for pair in pairs
        for reference in _images(pair)
        if not storage.is_below(manifest.root, reference)
    ]
