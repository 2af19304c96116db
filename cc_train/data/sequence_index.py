"""Sequence shards as a table: the captions of every sample, and the position of its members.

Byte offsets give random access, so the order of training is a pure function of seed and step, and a
resumed run reads the same as an uninterrupted one.
"""

from __future__ import annotations

import fnmatch
import glob
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
MAX_LISTED = 8
MAX_NAMES = 100_000  # of a brace expression: more are a slip of the keyboard
LETTERS = 52  # in the longest range of them
GLOB = re.compile(r"[*?[]")
SPECIAL = re.compile(r"[*?[\\{}]")
RANGE = re.compile(  # as `braceexpand` reads it
    r"(?:(?P<first>-?\d+)\.\.(?P<last>-?\d+)|(?P<letter>[A-Za-z])\.\.[A-Za-z])"
    r"(?:\.\.-?(?P<step>\d+))?"
)


@dataclass(frozen=True)
class Sample:
    """A sample of a shard.

    Attributes:
        members: (offset, bytes) of each by extension.
    """

    shard: str
    key: str
    meta: dict[str, Any]
    members: dict[str, tuple[int, int]]

    @property
    def frames(self) -> list[str]:
        """The members that are frames, in order: the first is before, the last is after."""
        return sorted(name for name in self.members if name[0] == "f" and name[1:3].isdigit())

    def image(self, member: str) -> np.ndarray:
        """The image of a member, uint8 [H, W, 3] RGB.

        Raises:
            UserError: If it is damaged.
        """
        offset, size = self.members[member]
        image = images.decode_stored(storage.read_range(self.shard, offset, size))
        if image is None:
            raise _damaged(self.shard, f"{self.key}.{member} is no image")
        return image


def expand(patterns: Sequence[str]) -> list[str]:
    r"""The shards that some patterns name, each once.

    A pattern is a path, a URL, a glob or a brace expression. What exists is taken as it is,
    whatever characters its name has: a whole path, and the folders with which a pattern begins.
    Elsewhere `[[]`, `[*]` and `[?]` stand for these characters, and `\{`, `\}`, `\,` and `\\` for
    those after the backslash.

    Raises UserError for a brace without the other one, for an expression of more than MAX_NAMES
    names, for a pattern without an existing file, and for a glob that matches planned shards which
    are not finished yet.
    """
    paths: list[str] = []
    for pattern in patterns:
        folder, rest = _literal_folder(pattern)
        for name in _braces(rest) if rest else [""]:
            matches = _matches(folder, name)
            if not matches:
                raise _none_of(folder, name)
            if matches != [folder + name]:
                _check_finished(folder, name, matches)
            paths += matches
    return list(dict.fromkeys(paths))


def _literal_folder(pattern: str) -> tuple[str, str]:
    """The longest beginning of a pattern that exists as it stands, and the rest.

    Nothing is looked up unless a character means something in a pattern.
    """
    if not SPECIAL.search(pattern):
        return "", pattern
    if storage.exists(pattern):
        return pattern, ""
    first = SPECIAL.search(pattern)
    assert first
    ends = [i + 1 for i, letter in enumerate(pattern) if letter == "/" and i > first.start()]
    folders = (pattern[:end] for end in reversed(ends))
    folder = next((one for one in folders if storage.is_folder(one)), "")
    return folder, pattern[len(folder) :]


def _matches(folder: str, name: str) -> list[str]:
    """The files below a folder that a name, which may be a glob, stands for."""
    if storage.exists(folder + name):
        return [folder + name]
    return storage.glob(glob.escape(folder) + name) if GLOB.search(name) else []


def _braces(pattern: str) -> list[str]:
    """The names that a brace expression stands for. Raises UserError."""
    try:
        count = _number_of_names(pattern)
        if count <= MAX_NAMES:
            return list(braceexpand.braceexpand(pattern))
    except (ValueError, RecursionError):
        raise UserError(
            f"{pattern}: a brace without the other one",
            r"Write it as in train-{000000..000003}.tar, and a brace in a name as \{ or \}",
        ) from None
    raise UserError(
        f"{pattern}: stands for more than {MAX_NAMES:,} names", "Name fewer shards, or use *"
    )


@dataclass
class _Brace:
    """An open brace while names are counted: those of its finished parts, and of the current."""

    start: int
    finished: int = 0
    current: int = 1


def _number_of_names(pattern: str) -> int:
    """How many names `braceexpand` would make of a pattern. Raises ValueError like it."""
    opened = [_Brace(0)]
    position = 0
    while position < len(pattern):
        letter, inner = pattern[position], opened[-1]
        if letter == "\\":
            position += 1
        elif letter == "{":
            opened.append(_Brace(position + 1))
        elif letter == "," and len(opened) > 1:
            inner.finished, inner.current = inner.finished + inner.current, 1
        elif letter == "}" and len(opened) == 1:
            raise ValueError(pattern)
        elif letter == "}":
            opened.pop()
            names = _length(pattern[inner.start : position]) or inner.finished + inner.current
            opened[-1].current *= names
        position += 1
    [whole] = opened  # a ValueError where a brace is open still
    return whole.current


def _length(text: str) -> int:
    """How many names the range `text` has between its braces; 0 for what is no range."""
    bounds = RANGE.fullmatch(text)
    if bounds is None:
        return 0
    if bounds["letter"]:
        return LETTERS
    first, last, step = (int(bounds[name] or 0) for name in ("first", "last", "step"))
    return abs(last - first) // (step or 1) + 1


def _none_of(folder: str, name: str) -> UserError:
    """The error for a pattern that names no file; it lists the shards that are there."""
    inner, slash, _ = name.rpartition("/")
    paths = storage.glob(f"{glob.escape(folder)}{inner}{slash}*.tar")
    names = [path.rpartition("/")[2] for path in paths]
    there = sorted({SHARD_NUMBER.sub("*.tar", name) for name in names})
    what = f"{folder}{name}: no such file"
    if not there:
        return UserError(what, "Check the path, and quote the pattern")
    listed = ", ".join(there[:MAX_LISTED])
    return UserError(f"{what}; found: {listed}", "Give one of these, or another folder")


def _check_finished(folder: str, pattern: str, paths: Sequence[str]) -> None:
    """Raises UserError if planned shards that match the pattern are missing from the folder."""
    _, _, file_pattern = pattern.rpartition("/")
    there: dict[str, set[str]] = {}  # a pattern may name several folders
    for parent, _, name in (path.rpartition("/") for path in paths):
        there.setdefault(parent or ".", set()).add(name)
    for parent, names in there.items():
        planned = [f"{name}.tar" for name in provenance.planned(parent)]
        missing = [name for name in fnmatch.filter(planned, file_pattern) if name not in names]
        if missing:
            raise UserError(
                f"{folder}{pattern}: {parent}/{missing[0]} is planned and not there yet, the first "
                f"of {len(missing)}",
                "Finish them with the command that began them, or name shards without *",
            )


def read_index(patterns: Sequence[str], progress: Progress = no_progress) -> list[Sample]:
    """All samples of some sequence shards, in the order given.

    Raises:
        UserError: For a file that is no whole shard of sequences.
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
