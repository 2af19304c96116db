"""What the jobs have in common: which settings decide which bytes, and where things lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
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
WITH_WEIGHTS = ("interpolate", "score", "tokenize")
# Stands where weights would, for what others made.
IMPORTED = "imported"


def fingerprint(manifest: Manifest, keys: Iterable[str]) -> dict[str, object]:
    """The settings that decide an output's bytes, as they stand in its provenance.

    A file of weights stands there by its name and digest, so that it may be moved.
    """
    chosen = {*keys, *(("video",) if manifest.layout == "video" else ())}
    settings = manifest.model_dump(mode="json", include=chosen)
    for section in WITH_WEIGHTS:
        if section in settings:
            settings[section]["weights"] = _identity(settings[section]["weights"])
    split = split_file.about(manifest)
    return settings if split is None else {**settings, "split": split}


def with_absolute_paths(manifest: Manifest) -> Manifest:
    """The manifest as a worker on another node finds its places, whose current folder differs."""
    changed = {
        section: getattr(manifest, section).model_copy(
            update={"weights": _absolute(getattr(manifest, section).weights)}
        )
        for section in WITH_WEIGHTS
    }
    root = storage.absolute(manifest.root)
    return manifest.model_copy(update={"root": root, **changed})


def with_config(manifest: Manifest) -> Manifest:
    """The manifest with the content of `tokenize.config` in place of the file.

    So an edited file is noticed, and no other node needs it. Raises UserError.
    """
    if manifest.tokenize.config is None:
        return manifest
    from cc_prep.weights import networks  # which brings torch

    content = networks.read_config(manifest.tokenize.config)
    changed = manifest.tokenize.model_copy(update={"config": content})
    return manifest.model_copy(update={"tokenize": changed})


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
        # What was made with a file need not have that file here: then its name must be the same.
        elif section in keys and _is_recorded(getattr(manifest, section).weights, there):
            taken = getattr(manifest, section).model_copy(update={"weights": there["weights"]})
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


def weight_files(manifest: Manifest, digests: Iterable[str]) -> dict[str, str]:
    """Where each file of weights lies whose name is in `digests`."""
    files = (getattr(manifest, section).weights for section in WITH_WEIGHTS)
    named = {_identity(file): _absolute(file) for file in files if not weights.is_known(file)}
    return {name: place for name, place in named.items() if name in set(digests)}


def _identity(name_or_file: str) -> str:
    """A name of ours as it is; a file of weights by its own name and digest, wherever it lies."""
    path = Path(name_or_file).expanduser()
    if weights.is_known(name_or_file) or name_or_file == IMPORTED or not path.is_file():
        return name_or_file
    facts = path.stat()
    return _located_name(str(path), facts.st_size, facts.st_mtime_ns)


@lru_cache
def _located_name(file: str, size: int, changed: int) -> str:
    return weights.locate(file).name


def _is_recorded(file: str, there: dict[str, Any]) -> bool:
    """Whether a file that is not here has the name of the one that a provenance names."""
    path, recorded = Path(file).expanduser(), str(there.get("weights"))
    return not path.exists() and recorded.rpartition("@")[0] == path.name


def _absolute(name: str) -> str:
    if weights.is_known(name) or name == IMPORTED:
        return name
    return storage.absolute(os.path.expanduser(name))
