"""Splits of data that come without: a JSON file {"splits": {split: [ids]}}, by `cc-prep split`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files
from cc_prep.datasets.layouts.file_names import canonical
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair


def description(manifest: Manifest) -> dict[str, Any] | None:
    """What the split file says of its making; None without one."""
    content = _read(manifest)
    if content is None:
        return None
    about = content.get("about") or {}
    return about if isinstance(about, dict) else {"about": about}


def ids(manifest: Manifest) -> dict[str, list[str]]:
    """The ids of the pairs by split; none without a split file. Raises UserError."""
    content = _read(manifest)
    if content is None:
        return {}
    splits = content.get("splits", content)
    if not isinstance(splits, dict) or not all(isinstance(ids, list) for ids in splits.values()):
        raise UserError(f"{_path(manifest)}: no splits", 'Give {"splits": {"train": [ids], …}}')
    return {split: [canonical(str(id)) for id in ids] for split, ids in splits.items()}


def with_splits(manifest: Manifest, pairs: list[ImagePair]) -> list[ImagePair]:
    """The pairs with the split that the manifest's `split_file` says, if it names one.

    Raises:
        UserError: For a pair that the file does not know or has in two splits, and for a split with
            pairs in it that the manifest does not name: these pairs would be left out of every job
            without a word.
    """
    if manifest.split_file is None:
        return pairs
    path, splits = _path(manifest), ids(manifest)
    split_of: dict[str, str] = {}
    for split, members in splits.items():
        for id in members:
            if split_of.setdefault(id, split) != split:
                raise UserError(
                    f"{path}: {id!r} is in the splits {split_of[id]} and {split}",
                    "Leave it in one of them",
                )
    unknown = [pair.id for pair in pairs if pair.id not in split_of]
    if unknown:
        raise UserError(
            f"{path}: {len(unknown)} pairs are in no split, such as {unknown[0]!r}",
            "Run cc-prep split with another --out, and name it as split_file",
        )
    missing = [
        split for split, members in splits.items() if members and split not in manifest.splits
    ]
    if missing:
        all_splits = [*(split for split in manifest.splits if split in splits), *missing]
        raise UserError(
            f"{path}: its splits {', '.join(missing)} are not among the manifest's splits",
            f"Set splits: [{', '.join(all_splits)}] in the manifest",
        )
    return [replace(pair, split=split_of[pair.id]) for pair in pairs]


def _read(manifest: Manifest) -> dict[str, Any] | None:
    if manifest.split_file is None:
        return None
    layout = "The manifest's split_file"
    content: dict[str, Any] = annotation_files.read_json(_path(manifest), dict, layout)
    return content


def _path(manifest: Manifest) -> str:
    assert manifest.split_file is not None
    return storage.resolve(manifest.root, manifest.split_file)
