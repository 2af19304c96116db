"""Settings that decide the bytes of an output, as the provenance records them, and paths."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cc_prep import storage, weights
from cc_prep.datasets import exclusions
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import UserError
from cc_prep.formats import provenance
from cc_prep.manifest import IMPORTED, NONE, Manifest
from cc_prep.redaction import without_credentials
from cc_prep.steps.score import UNSCORED
from cc_prep.weights.folders import identify
from pipelines.state import sources

# The manifest's keys that decide which pairs are in which shard, and the pixels of their images.
PLAN_KEYS = ("name", "layout", "image_size", "image", "pairs", "shards")
# The manifest's keys that decide the bytes of each kind of folder.
CHANGE_KEYS = (*PLAN_KEYS, "changes")
SEQUENCE_KEYS = (*PLAN_KEYS, "interpolate")
SCORE_KEYS = (*SEQUENCE_KEYS, "score", "keyframes")
TRAINING_SHARD_KEYS = (*SCORE_KEYS, "tokenize", "features")
SECTIONS_WITH_WEIGHTS = ("interpolate", "score", "tokenize", "features", "changes", "entities")
# Recorded only where a file says which pairs there are.
PAIR_FILES = ("split", "exclude")


def recorded_settings(manifest: Manifest, keys: Iterable[str]) -> dict[str, object]:
    """The settings that decide an output's bytes, as its provenance records them.

    A file of weights is recorded by its name and digest, so that it may be moved; a folder of
    features by its absolute path, since another folder may have the same relative one.
    """
    of_layout = {manifest.layout} & {"video", "rasters"}  # whose sections say which pairs there are
    included = {*keys, *of_layout}
    settings = manifest.model_dump(mode="json", include=included)
    for section in SECTIONS_WITH_WEIGHTS:
        if section in settings and settings[section]["weights"] is not None:
            settings[section]["weights"] = _weights_identity(settings[section]["weights"])
    if settings.get("features", {}).get("folder"):
        folder = storage.absolute(settings["features"]["folder"])
        settings["features"]["folder"] = without_credentials(folder)
    described = {
        "split": split_file.description(manifest),
        "exclude": exclusions.description(manifest),
    }
    return {**settings, **{name: one for name, one in described.items() if one is not None}}


def with_absolute_paths(manifest: Manifest) -> Manifest:
    """The manifest with absolute paths, for workers on other nodes with another current folder."""
    manifest = manifest.model_copy(update={"root": storage.absolute(manifest.root)})
    for section in SECTIONS_WITH_WEIGHTS:
        name = getattr(manifest, section).weights
        if name is not None:
            manifest = with_section(manifest, section, weights=_absolute_weights(name))
    if manifest.features.folder is not None:
        folder = storage.absolute(manifest.features.folder)
        manifest = with_section(manifest, "features", folder=folder)
    return manifest


def with_section(manifest: Manifest, section: str, **values: Any) -> Manifest:
    """The manifest with other values in one of its sections."""
    changed = getattr(manifest, section).model_copy(update=values)
    return manifest.model_copy(update={section: changed})


def with_config_content(manifest: Manifest) -> Manifest:
    """The manifest with the content of `tokenize.config` in place of the file.

    So an edited file is noticed, and no other node needs it. Raises UserError.
    """
    if manifest.tokenize.config is None:
        return manifest
    from cc_prep.weights import networks  # which brings torch

    content = networks.read_config(manifest.tokenize.config)
    return with_section(manifest, "tokenize", config=content)


def for_imported_sequences(manifest: Manifest, depth: int) -> Manifest:
    """The manifest for importing sequences that others interpolated."""
    return with_section(manifest, "interpolate", method=IMPORTED, weights=IMPORTED, depth=depth)


def continue_from(
    manifest: Manifest, folder: str, keys: tuple[str, ...] = SEQUENCE_KEYS
) -> Manifest:
    """The manifest with which work can continue from the content of `folder`.

    Settings of imported data, which no manifest names, are taken from the folder. All others have
    to be the manifest's. Raises UserError.
    """
    record = provenance.read(folder)
    if record is None:
        raise UserError(f"{folder}: nothing there", "Run the step before this one first")
    for section in ("interpolate", "score"):
        recorded = record["settings"].get(section, {})
        if section in keys and recorded.get("weights") == IMPORTED:
            manifest = with_section(manifest, section, **recorded)
        # What was made with a file need not have that file here: then its name must be the same.
        elif section in keys and _is_recorded(getattr(manifest, section).weights, recorded):
            manifest = with_section(manifest, section, weights=recorded["weights"])
    settings = recorded_settings(manifest, keys)
    # A split file or a list of exclusions with which the folder was made counts without one now.
    compared = {*settings, *PAIR_FILES}
    check_same_settings(folder, {key: record["settings"].get(key) for key in compared}, settings)
    sources.check_same(folder, sources.recorded_in(record), sources.settings(manifest))
    return manifest


def check_early(manifest: Manifest, folder: str, keys: Iterable[str]) -> None:
    """Refuses most other settings than those of `folder` before data is listed and torch imported.

    Inputs may take weights, and what goes with them, from earlier outputs: sections whose weights
    differ or were imported are left to the check of the whole job. Raises UserError.
    """
    recorded = (provenance.read(folder) or {}).get("settings")
    if recorded is None:
        return
    new = {
        key: values
        for key, values in recorded_settings(manifest, keys).items()
        if key not in SECTIONS_WITH_WEIGHTS or _has_weights_of(recorded.get(key), values)
    }
    check_same_settings(folder, {key: recorded.get(key) for key in new}, new)


def _has_weights_of(recorded: Any, section: Any) -> bool:
    """Whether a recorded section has the weights that the manifest names for it."""
    if not (isinstance(recorded, dict) and isinstance(section, dict)):
        return False
    same = all(recorded.get(key) == section.get(key) for key in ("weights", "config"))
    return same and recorded.get("weights") != IMPORTED


def check_same_settings(folder: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises UserError, which names the keys, if `folder` was made with other settings."""
    different = provenance.differences(old, new)
    if different:
        raise UserError(
            f"{folder} was made with other settings ({'; '.join(different[:5])})",
            "Use the same settings, or another --out",
        )


def check_keyframes(manifest: Manifest) -> None:
    """Raises UserError if a sequence has too few frames or no scores for the keyframe rule."""
    rule, interior = manifest.keyframes, 2**manifest.interpolate.depth - 1
    if manifest.score.weights == NONE and rule.k and rule.strategy not in UNSCORED:
        raise UserError(
            f"keyframes.strategy {rule.strategy} needs scores, and score.weights is none",
            "Set keyframes.k=0 or keyframes.strategy=uniform",
        )
    if manifest.keyframes.k > interior:
        raise UserError(
            f"keyframes.k={manifest.keyframes.k}, but depth {manifest.interpolate.depth} gives "
            f"{interior} frames in between",
            "Lower keyframes.k or raise interpolate.depth",
        )


def weight_files(manifest: Manifest, digests: Iterable[str]) -> dict[str, str]:
    """Paths, by name, of the manifest's own files of weights whose names are in `digests`."""
    files = (getattr(manifest, section).weights for section in SECTIONS_WITH_WEIGHTS)
    paths = {
        _weights_identity(file): _absolute_weights(file)
        for file in files
        if file and not weights.is_known(file)
    }
    return {name: path for name, path in paths.items() if name in set(digests)}


def _weights_identity(name_or_file: str) -> str:
    """A known name as it is; a file or folder by its own name and digest, wherever it is."""
    path = Path(storage.with_home(name_or_file))
    if path.is_dir() and not weights.is_known(name_or_file):
        return identify(name_or_file).name
    if weights.is_known(name_or_file) or name_or_file == IMPORTED or not path.is_file():
        return name_or_file
    status = path.stat()
    return _located_name(str(path), status.st_size, status.st_mtime_ns)


@lru_cache
def _located_name(file: str, size: int, mtime_ns: int) -> str:
    return weights.locate(file).name


def _is_recorded(file: str, recorded: dict[str, Any]) -> bool:
    """Whether a file that is missing here has the name of the one that a provenance records."""
    path, name = Path(storage.with_home(file)), str(recorded.get("weights"))
    return not path.exists() and name.rpartition("@")[0] == path.name


def _absolute_weights(name: str) -> str:
    if weights.is_known(name) or name in (IMPORTED, NONE):
        return name
    return storage.absolute(storage.with_home(name))
