"""Sequence shards as a table: the captions of every sample, and the position of its members.

Byte offsets give random access, so the order of training is a pure function of seed and step, and a
resumed run reads the same as an uninterrupted one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import braceexpand
import numpy as np

from cc_prep import storage, strict_json
from cc_prep.errors import UserError
from cc_prep.formats import provenance, tar
from cc_prep.media import images
from cc_prep.progress import Progress, no_progress

ADVICE = "Give shards that `cc-prep interpolate` wrote"
SHARD_NUMBER = re.compile(r"\d+\.tar$")
MOST_LISTED = 8


@dataclass(frozen=True)
class Sample:
    """A sample of a shard. members: (offset, bytes) of each by extension."""

    shard: str
    key: str
    meta: dict[str, Any]
    members: dict[str, tuple[int, int]]

    @property
    def frames(self) -> list[str]:
        """The members that are frames, in order: the first is before, the last is after."""
        return sorted(name for name in self.members if name[0] == "f" and name[1:3].isdigit())

    def image(self, member: str) -> np.ndarray:
        """The image of a member, uint8 [H, W, 3] RGB. Raises UserError if it is damaged."""
        offset, size = self.members[member]
        image = images.decode_stored(storage.read_range(self.shard, offset, size))
        if image is None:
            raise _damaged(self.shard, f"{self.key}.{member} is no image")
        return image


def expand(patterns: Sequence[str]) -> list[str]:
    """The shards that some patterns name, each once.

    A pattern is a path, a URL, a glob or a brace expression. Raises UserError for a brace without
    the other one, for a pattern without an existing file, and for a glob that matches planned
    shards which are not finished yet.
    """
    paths: list[str] = []
    for pattern in patterns:
        for name in _braces(pattern):
            matches = storage.glob(name) if any(c in name for c in "*?[") else [name]
            if not matches or not all(storage.exists(path) for path in matches):
                raise _none_of(name)
            if matches != [name]:
                _check_finished(name, matches)
            paths += matches
    return list(dict.fromkeys(paths))


def _braces(pattern: str) -> list[str]:
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError:
        raise UserError(
            f"{pattern}: a brace without the other one", "Write it as in train-{000000..000003}.tar"
        ) from None


def _none_of(pattern: str) -> UserError:
    """The error for a pattern that names no file; it lists the shards that are there."""
    folder, slash, _ = pattern.rpartition("/")
    names = [path.rpartition("/")[2] for path in storage.glob(f"{folder}{slash}*.tar")]
    there = sorted({SHARD_NUMBER.sub("*.tar", name) for name in names})
    what = f"{pattern}: no such file"
    if not there:
        return UserError(what, "Check the path, and quote the pattern")
    listed = ", ".join(there[:MOST_LISTED])
    return UserError(f"{what}; found: {listed}", "Give one of these, or another folder")


def _check_finished(pattern: str, paths: Sequence[str]) -> None:
    """Raises UserError if planned shards that match the pattern are missing from the folder."""
    _, _, file_pattern = pattern.rpartition("/")
    there: dict[str, set[str]] = {}  # a pattern may name several folders
    for folder, _, name in (path.rpartition("/") for path in paths):
        there.setdefault(folder or ".", set()).add(name)
    for folder, names in there.items():
        planned = [f"{name}.tar" for name in provenance.planned(folder)]
        missing = [name for name in fnmatch.filter(planned, file_pattern) if name not in names]
        if missing:
            raise UserError(
                f"{pattern}: {folder}/{missing[0]} is planned and not there yet, the first of "
                f"{len(missing)}",
                "Finish them with the command that began them, or name shards without *",
            )


def read_index(patterns: Sequence[str], progress: Progress = no_progress) -> list[Sample]:
    """All samples of some sequence shards, in the order given.

    Raises UserError for a file that is no whole shard of sequences.
    """
    samples: list[Sample] = []
    paths = expand(patterns)
    for done, path in enumerate(paths, 1):
        samples += _samples(path)
        progress(done, len(paths))
    if not samples:
        raise UserError(f"{', '.join(patterns)}: no samples", "Give shards that hold some")
    return samples


def describe(samples: Sequence[Sample], train: Sequence[Sample]) -> dict[str, Any]:
    """The data of a run, for its settings: the numbers of samples, and a digest of all keys."""
    keys = "\n".join(sample.key for sample in samples)
    digest = hashlib.sha256(keys.encode()).hexdigest()
    return {"count": len(samples), "train": len(train), "keys_sha256": digest}


def _samples(path: str) -> list[Sample]:
    members: dict[str, dict[str, tuple[int, int]]] = {}
    meta: dict[str, Any] = {}
    end = 0
    try:
        with storage.open_read(path) as file, tar.open_tar(file) as opened:
            for member in opened:
                key, extension = tar.parts_of(member, path)
                if extension in members.setdefault(key, {}):
                    raise _damaged(path, f"{member.name} twice")
                members[key][extension] = (member.offset_data, member.size)
                if extension == "json":
                    content = opened.extractfile(member)
                    meta[key] = strict_json.loads(content.read()) if content else None
                end = tar.padded_end(member)
            tar.check_end(file, end, path)
    except tar.DamagedShard as error:
        raise UserError(str(error), ADVICE) from None
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    for key, parts in members.items():
        if not isinstance(meta.get(key), dict):
            raise _damaged(path, f"{key} has no usable .json")
        if not any(name.startswith("f00.") for name in parts):
            raise _damaged(path, f"{key} has no frames")
    return [Sample(path, key, meta[key], parts) for key, parts in members.items()]


def _damaged(path: str, what: str) -> UserError:
    return UserError(f"{path}: {what}", ADVICE)
