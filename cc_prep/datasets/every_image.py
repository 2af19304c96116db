"""Every image of some pairs, read once, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from cc_prep import storage
from cc_prep.errors import RejectedPair
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.progress import Progress
from cc_prep.records import ImagePair

T = TypeVar("T")


def read_every_image(
    manifest: Manifest,
    pairs: Iterable[ImagePair],
    look: Callable[[np.ndarray], T],
    size: int | None,
    progress: Progress,
) -> tuple[dict[str, T], list[str]]:
    """What `look` makes of each image by its reference, and the faults of those that have one.

    look: is given pixels uint8 [H, W, 3], in one of several threads. size: images are resized to
    size × size first; None leaves them. An image of two pairs is read once. Both results are in
    the order of the references.
    """
    references = sorted({ref for pair in pairs for ref in (pair.before, pair.after)})

    def read(reference: str) -> T | RejectedPair:
        try:
            pixels = images.read(storage.resolve(manifest.root, reference), size)
        except RejectedPair as error:
            return error
        return look(pixels)

    results: dict[str, T] = {}
    faults: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = zip(references, pool.map(read, references), strict=True)
        for done, (reference, outcome) in enumerate(outcomes, 1):
            if isinstance(outcome, RejectedPair):
                faults.append(str(outcome))
            else:
                results[reference] = outcome
            progress(done, len(references))
    return results, faults
