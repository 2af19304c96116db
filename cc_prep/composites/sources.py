"""Backgrounds and cut-outs: which files can be used, which are alike, which split each goes into.

Files that look nearly the same (a perceptual hash, as in `cc-prep split`) go into the same split,
and so do views of one object: cut-outs in one folder below that of their class.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from cc_prep import storage
from cc_prep.composites.sentences import COLORS, TEXT
from cc_prep.datasets import splitting
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.media import images
from cc_prep.progress import Progress, no_progress

DISTANCE = 4  # bits of 64 in which the hashes of nearly the same picture differ at most
# In this order, so that of two cut-outs of a class one is for the test.
SHARES = {"test": 0.2, "val": 0.1, "train": 0.7}
MIN_CUTOUT = 24  # px, the shorter side of what is visible of a cut-out
VISIBLE = 8  # of 255, from which on a pixel is part of a cut-out
OPAQUE = 200  # of 255
MIN_OPAQUE = 0.15  # share of a cut-out's box that is opaque; less is a thread, or a ghost
MAX_CUTOUT = 512  # px, the longer side that is kept of a cut-out
CLASS_NAME = re.compile(r"[a-z][a-z0-9'-]*( [a-z0-9'-]+)*")
BESIDE = 128  # the grey in front of which cut-outs are compared


@dataclass(frozen=True)
class Sources:
    """The files that a data set is composed of.

    Attributes:
        folders: Of the backgrounds and of the objects.
        backgrounds: Files by split, as paths below their folder.
        objects: Files by split and class, likewise.
        rejected: What is wrong with each file that is not used.
        digest: SHA-256 of all files, in hex.
    """

    folders: tuple[str, str]
    backgrounds: Mapping[str, Sequence[str]]
    objects: Mapping[str, Mapping[str, Sequence[str]]]
    rejected: Sequence[str]
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {"backgrounds": self.backgrounds, "objects": self.objects}


@dataclass(frozen=True)
class _File:
    """A usable file. hash: of its look. name: the class of a cut-out. thing: see `_thing_of`."""

    path: str
    sha256: str
    hash: int
    name: str = ""
    thing: str = ""


def read(
    backgrounds: str, objects: str, size: int, seed: int, progress: Progress = no_progress
) -> Sources:
    """Looks at all files of two folders, and deals them out into splits.

    Args:
        backgrounds: A folder of photographs, with any folders in it.
        objects: A folder with a folder of cut-outs for each class.
        size: Of the composed images in px; a smaller background is rejected.

    Raises:
        UserError: Where fewer files can be used than there are splits.
    """
    for folder in (backgrounds, objects):
        if not storage.is_folder(folder):
            raise UserError(f"{folder}: no such folder", "Give a folder of images")
    tasks: list[Callable[[], _File]] = [
        *(partial(_background, backgrounds, path, size) for path in _below(backgrounds)),
        *(partial(_cutout, objects, path, _class_of(path)) for path in _below(objects)),
    ]
    files: list[_File] = []
    rejected: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, outcome in enumerate(pool.map(_outcome, tasks), 1):
            if isinstance(outcome, _File):
                files.append(outcome)
            else:
                rejected.append(str(outcome))
            progress(done, len(tasks))
    pictures = [one for one in files if not one.name]
    cutouts = [one for one in files if one.name]
    split_of_picture = _dealt(pictures, seed, f"{backgrounds}: backgrounds", rejected)
    split_of_cutout = _dealt(cutouts, seed, f"{objects}: cut-outs", rejected)
    lines = [f"{one.name}\t{one.path}\t{one.sha256}" for one in files]
    return Sources(
        (backgrounds, objects),
        {s: [f.path for f in pictures if split_of_picture[f.path] == s] for s in SHARES},
        {s: _by_class([f for f in cutouts if split_of_cutout[f.path] == s]) for s in SHARES},
        rejected,
        hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest(),
    )


def background(path: str, size: int) -> np.ndarray:
    """A photograph as uint8 [H, W, 3] RGB, its shorter side at most twice as long as the images'.

    Raises:
        RejectedPair: Where it cannot be used.
    """
    pixels = images.read(path)
    height, width = pixels.shape[:2]
    shorter = min(height, width)
    if shorter < size:
        reason = f"{path}: {width}×{height}, at least {size} a side"
        raise RejectedPair(Reason.IMAGE_TOO_SMALL, reason)
    scale = min(1.0, 2 * size / shorter)
    return images.resize(pixels, (round(scale * height), round(scale * width)))


def cutout(path: str) -> np.ndarray:
    """What is visible of a cut-out, uint8 [H, W, 4] RGBA, at most MAX_CUTOUT px long.

    Raises:
        RejectedPair: Where it cannot be used.
    """
    data = images.read_encoded(path)
    pixels = images.decode(data, path)
    with Image.open(io.BytesIO(data), formats=images.DECODED) as image:
        alpha = images.alpha_of(image)
    if alpha is None or alpha.min() > OPAQUE:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{path}: no transparent pixels around it")
    rows, columns = (np.flatnonzero((alpha >= VISIBLE).any(axis)) for axis in (1, 0))
    if min(len(rows), len(columns)) < MIN_CUTOUT:
        reason = f"{path}: less than {MIN_CUTOUT} px of it are visible"
        raise RejectedPair(Reason.IMAGE_TOO_SMALL, reason)
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    if (alpha[box] >= OPAQUE).mean() < MIN_OPAQUE:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{path}: nearly all of it is transparent")
    visible = np.dstack((pixels[box], alpha[box]))
    smaller = Image.fromarray(visible)
    smaller.thumbnail((MAX_CUTOUT, MAX_CUTOUT), Image.Resampling.LANCZOS)
    return np.asarray(smaller)


def _below(root: str, folder: str = "") -> Iterator[str]:
    """The image files below a folder, as paths below it, in order."""
    here = storage.join(root, folder) if folder else root
    for name in sorted(storage.list_files(here)):
        if name.lower().endswith(images.ENDINGS):
            yield f"{folder}/{name}" if folder else name
    for name in sorted(storage.list_folders(here)):
        yield from _below(root, f"{folder}/{name}" if folder else name)


def _class_of(path: str) -> str:
    """The class of a cut-out: the name of its folder, in words."""
    return path.partition("/")[0].replace("_", " ").lower() if "/" in path else ""


def _thing_of(path: str) -> str:
    """The folder of the views of one object, below that of their class; "" where there is none."""
    folder = path.rpartition("/")[0]
    return folder if "/" in folder else ""


def _outcome(task: Callable[[], _File]) -> _File | RejectedPair:
    try:
        return task()
    except RejectedPair as error:
        return error


def _background(root: str, path: str, size: int) -> _File:
    full = storage.join(root, path)
    pixels = background(full, size)
    return _File(path, storage.sha256(full), splitting.perceptual_hash(pixels))


def _cutout(root: str, path: str, name: str) -> _File:
    full = storage.join(root, path)
    if not name:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{full}: not in a folder of its class")
    colored = len(name.split()) > 1 and name.split()[0] in COLORS
    if not CLASS_NAME.fullmatch(name) or colored or name == TEXT:
        reason = f"{full}: {name!r} is no class that a sentence can name"
        remedy = "Call the folder by a noun in small letters, without a color"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, reason, remedy)
    pixels = cutout(full)
    alpha = pixels[..., 3:] / 255
    shown = (alpha * pixels[..., :3] + (1 - alpha) * BESIDE).astype(np.uint8)
    look = splitting.perceptual_hash(shown)
    return _File(path, storage.sha256(full), look, name, _thing_of(path))


def _by_class(files: Sequence[_File]) -> dict[str, list[str]]:
    by_class = {name: [f.path for f in files if f.name == name] for name in {f.name for f in files}}
    return dict(sorted(by_class.items()))


def _dealt(files: Sequence[_File], seed: int, what: str, rejected: Sequence[str]) -> dict[str, str]:
    """The split of each file by its path: the groups of `_grouped` go together.

    Each class is dealt out by itself, so that all are known to the training. Raises UserError.
    """
    group_of = _grouped(files)
    groups = len(set(group_of.values()))
    if groups < len(SHARES):
        why = f"; {rejected[0]}" if rejected else ""
        raise UserError(
            f"{what}: {groups} that can be used, where those that look alike or share a folder "
            f"below their class are one{why}",
            f"Give at least {len(SHARES)}, one for each split",
        )
    rng = np.random.default_rng([seed, 2])
    split_of: dict[int, str] = {}
    for _, listed in itertools.groupby(sorted(files, key=_name), _name):
        left = Counter(group_of[f.path] for f in listed if group_of[f.path] not in split_of)
        split_of |= _shared_out(left, rng)
    for split in SHARES:  # of few files, none may be left for a split
        if split not in split_of.values():
            spare = [group for group, of in split_of.items() if of == "train"]
            split_of[spare[int(rng.integers(len(spare)))]] = split
    return {one.path: split_of[group_of[one.path]] for one in files}


def _grouped(files: Sequence[_File]) -> dict[str, int]:
    """The group of each file by its path, of files that are alike or show one thing.

    A class that is in one folder as a whole has things that nobody told apart.
    """
    hashes = np.array(sorted({one.hash for one in files}), np.uint64)
    near = splitting.near_groups(hashes, DISTANCE).tolist()
    alike = dict(zip(hashes.tolist(), near, strict=True))
    folders = Counter(name for name, _ in {(one.name, one.thing) for one in files})
    views = [one for one in files if one.thing and folders[one.name] > 1]
    first: dict[str, _File] = {}
    ones = [alike[first.setdefault(one.thing, one).hash] for one in views]
    others = [alike[one.hash] for one in views]
    groups = splitting.components(len(hashes), np.array(ones, int), np.array(others, int))
    return {one.path: int(groups[alike[one.hash]]) for one in files}


def _name(one: _File) -> str:
    return one.name


def _shared_out(sizes: Mapping[int, int], rng: np.random.Generator) -> dict[int, str]:
    """The split of each group, given their sizes: one after the other where most is missing."""
    missing = {split: share * sum(sizes.values()) for split, share in SHARES.items()}
    split_of = {}
    for i in rng.permutation(len(sizes)):
        group = list(sizes)[i]
        split = max(missing, key=lambda name: missing[name])
        split_of[group] = split
        missing[split] -= sizes[group]
    return split_of
