"""Every image of some pairs, read once, several at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from cc_prep import storage
from cc_prep.errors import RejectedPair
from cc_prep.manifest import Manifest
from cc_prep.media import images, scenes
from cc_prep.progress import Progress

T = TypeVar("T")


def read_every_image(
    manifest: Manifest,
    references: Iterable[str],
    look: Callable[[np.ndarray, bytes], T],
    size: int | None,
    progress: Progress,
) -> tuple[dict[str, T], dict[str, RejectedPair]]:
    """What `look` makes of each image, and why others cannot be read, both by reference.

    Args:
        look: Is given pixels uint8 [H, W, 3] and the encoded file, which is empty for a frame of a
            video and a tile of a scene, in one of several threads.
        size: Images are resized to size × size first; None leaves them. An image that is named
            twice is read once. Both results are in the order of the names, frames of a video in the
            order of their numbers.
    """
    in_order = sorted({*references}, key=_place)

    def read(reference: str) -> T | RejectedPair:
        path = storage.resolve(manifest.root, reference)
        try:
            if images.is_frame(path) or scenes.is_tile(path):
                return look(images.read(path, size, manifest.image), b"")
            data = images.read_encoded(path)
            return look(images.decode(data, path, size, manifest.image), data)
        except RejectedPair as error:
            return error

    results: dict[str, T] = {}
    unreadable: dict[str, RejectedPair] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = zip(in_order, pool.map(read, in_order), strict=True)
        for done, (reference, outcome) in enumerate(outcomes, 1):
            if isinstance(outcome, RejectedPair):
                unreadable[reference] = outcome
            else:
                results[reference] = outcome
            progress(done, len(in_order))
    return results, unreadable


def _place(reference: str) -> tuple[str, int]:
    """A video's frames by number: a decoder goes through them once."""
    path, mark, number = reference.rpartition(images.FRAME)
    has_number = mark and re.fullmatch(images.FRAME_NUMBER, number)
    return (path, int(number)) if has_number else (reference, 0)
