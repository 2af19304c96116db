"""Rendered scenes, and the pairs of their images that show all objects."""

from __future__ import annotations

from collections.abc import Iterator

from cc_prep import datasets, manifest
from cc_prep.records import CHANGE, ImagePair
from cc_prep.synth import dataset


def make(root: str, scenes: int, seed: int, size: int) -> None:
    """Renders what a folder lacks of these scenes."""
    settings = dataset.Settings(seed=seed, size=size, wording="plain")
    for done in dataset.make(root, scenes, settings, workers=2):
        print(f"\rscene {done + 1}", end="", flush=True)
    print()


def changed(root: str) -> Iterator[ImagePair]:
    """The changed pairs of all scenes, whose two images show all objects."""
    settings = manifest.load("pairs", root=root)
    for split in settings.splits:
        yield from (pair for pair in datasets.pairs(settings, split) if pair.kind == CHANGE)
