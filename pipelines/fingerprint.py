"""What the jobs have in common: which settings decide which bytes, and where things lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from cc_prep import storage, weights
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import UserError
from cc_prep.formats import provenance
from cc_prep.manifest import Manifest

# The manifest's keys that decide the bytes of each kind of folder.
SEQUENCES = ("name", "layout", "image_size", "interpolate", "shards")
SCORES = (*SEQUENCES, "score", "keyframes")
TRAINING_SHARDS = (*SCORES, "tokenize")
# Stands where weights would, for what others made.
IMPORTED = "imported"


def fingerprint(manifest: Manifest, keys: Iterable[str]) -> dict[str, object]:
    """The settings that decide an output's bytes, as they stand in its provenance."""
    chosen = {*keys, *(("video",) if manifest.layout == "video" else ())}
    settings = manifest.model_dump(mode="json", include=chosen)
    split = split_file.about(manifest)
    return settings if split is None else {**settings, "split": split}


def with_absolute_paths(manifest: Manifest) -> Manifest:
    """The manifest as a worker on another node finds its places, whose current folder differs."""
    changed = {
        section: getattr(manifest, section).model_copy(
            update={"weights": _absolute(getattr(manifest, section).weights)}
        )
        for section in ("interpolate", "score", "tokenize")
    }
    config = manifest.tokenize.config
    if config is not None:
        place = storage.absolute(os.path.expanduser(config))
        changed["tokenize"] = changed["tokenize"].model_copy(update={"config": place})
    root = storage.absolute(manifest.root)
    return manifest.model_copy(update={"root": root, **changed})


def imported(manifest: Manifest, depth: int) -> Manifest:
    """The manifest under which sequences that others interpolated are taken in."""
    changed = manifest.interpolate.model_copy(
        update={"method": IMPORTED, "weights": IMPORTED, "depth": depth}
    )
    return manifest.model_copy(update={"interpolate": changed})


def continue_from(manifest: Manifest, folder: str, keys: tuple[str, ...] = SEQUENCES) -> Manifest:
    """The manifest with which work can go on from what lies in `folder`.

    What was imported was made under settings that no manifest names: they are taken over. All
    others have to be the manifest's. Raises UserError.
    """
    record = provenance.read(folder)
    if record is None:
        raise UserError(f"{folder}: nothing there", "Run the step before this one first")
    for section in ("interpolate", "score"):
        there = record["settings"].get(section, {})
        if section in keys and there.get("weights") == IMPORTED:
            taken = getattr(manifest, section).model_copy(update=there)
            manifest = manifest.model_copy(update={section: taken})
    wanted = fingerprint(manifest, keys)
    there = {key: record["settings"].get(key) for key in wanted}
    check_same(folder, there, wanted)
    return manifest


def check_same(folder: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises UserError, which names the keys, if `folder` was made with other settings."""
    different = provenance.differences(old, new)
    if different:
        raise UserError(
            f"{folder} was made with other settings ({'; '.join(different[:5])})",
            "Use the same settings, or another --out",
        )


def check_keyframes(manifest: Manifest) -> None:
    """Raises UserError if a sequence has too few frames for the keyframe rule."""
    interior = 2**manifest.interpolate.depth - 1
    if manifest.keyframes.k > interior:
        raise UserError(
            f"keyframes.k={manifest.keyframes.k}, but depth {manifest.interpolate.depth} gives "
            f"{interior} frames in between",
            "Lower keyframes.k or raise interpolate.depth",
        )


def _absolute(name: str) -> str:
    if weights.is_known(name) or name == IMPORTED:
        return name
    return storage.absolute(os.path.expanduser(name))
