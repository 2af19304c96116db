"""What the jobs have in common: which settings decide which bytes, and where things lie."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cc_prep import storage, weights
from cc_prep.errors import UserError
from cc_prep.formats import provenance
from cc_prep.manifest import Manifest

# The manifest's keys that decide the bytes of each kind of folder.
SEQUENCES = ("name", "layout", "image_size", "interpolate", "shards")
SCORES = (*SEQUENCES, "score", "keyframes")
TRAINING_SHARDS = (*SCORES, "tokenize")


def deciding(manifest: Manifest, keys: Iterable[str]) -> dict[str, object]:
    """The settings that decide an output's bytes, as they stand in its provenance."""
    chosen = {*keys, *(("video",) if manifest.layout == "video" else ())}
    return manifest.model_dump(mode="json", include=chosen)


def placed(manifest: Manifest) -> Manifest:
    """The manifest as a worker on another node finds its places, whose current folder differs."""
    changed = {
        section: getattr(manifest, section).model_copy(
            update={"weights": _placed(getattr(manifest, section).weights)}
        )
        for section in ("interpolate", "score", "tokenize")
    }
    config = manifest.tokenize.config
    if config is not None:
        place = storage.absolute(os.path.expanduser(config))
        changed["tokenize"] = changed["tokenize"].model_copy(update={"config": place})
    root = storage.absolute(manifest.root)
    return manifest.model_copy(update={"root": root, **changed})


def check_same_sequences(manifest: Manifest, folder: str, limit: tuple[str, ...]) -> None:
    """Refuses to go on from a folder that was made under other settings. Raises UserError."""
    record = provenance.read(folder)
    assert record is not None
    wanted = deciding(manifest, limit)
    there = {key: record["settings"].get(key) for key in wanted}
    different = provenance.differences(there, wanted)
    if different:
        raise UserError(
            f"{folder} was made with other settings ({'; '.join(different[:5])})",
            "Use the same settings, or make it anew in another --out",
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


def _placed(name: str) -> str:
    if weights.is_known(name):
        return name
    return storage.absolute(os.path.expanduser(name))
