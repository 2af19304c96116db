"""Pairs that are left out, with reasons: a CSV file that `exclude` in a manifest names.

    split,id,kind,reason,detail
    train,train_000216,no_change,contradiction,kind no_change; the mask shows a change

`cc-prep inspect --write-exclusions FILE` writes it. A row takes a pair of its split, id and kind
out; delete rows to keep their pairs. A relative path of the file is relative to the manifest.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from cc_prep import storage, text_files
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair

FIELDS = ["split", "id", "kind", "reason", "detail"]
HEADER = ",".join(FIELDS).encode()
MAX_HEADER = 64  # bytes, with the mark and the line's end that a spreadsheet adds


@dataclass(frozen=True, order=True)
class Exclusion:
    """A pair, by split, id and kind, and why it is left out."""

    split: str
    id: str
    kind: str
    reason: str
    detail: str

    @property
    def pair(self) -> tuple[str, str, str]:
        """Which pair it is."""
        return self.split, self.id, self.kind


def write(path: str, exclusions: Iterable[Exclusion]) -> int:
    """Writes the file, a row a pair and reason, in order; how many pairs it leaves out."""
    rows = sorted({*exclusions})
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerows([FIELDS, *map(astuple, rows)])
    storage.write_bytes(path, buffer.getvalue().encode("utf-8", "surrogatepass"))
    return len({row.pair for row in rows})


def read(path: str) -> list[Exclusion]:
    """The rows of the file. Raises UserError."""
    return _parsed(path, _content(path))


def is_list(path: str) -> bool:
    """Whether a file is such a list, by its first line."""
    with storage.open_read(path) as file:
        return HEADER in file.readline(MAX_HEADER)


def apply(manifest: Manifest, split: str, pairs: Sequence[ImagePair]) -> list[ImagePair]:
    """The pairs of a split without those that the manifest excludes.

    Raises:
        UserError: For a row that names no pair of the split, or is of none of the splits.
    """
    if manifest.exclude is None:
        return list(pairs)
    rows = _of(manifest, manifest.exclude, _content(manifest.exclude))
    left_out = {row.pair for row in rows if row.split == split}
    unknown = sorted(left_out - {(split, pair.id, pair.kind) for pair in pairs})
    if unknown:
        raise UserError(
            f"{manifest.exclude}: {len(unknown)} rows name no pair of {manifest.name}, such as "
            f"{', '.join(unknown[0])}",
            "Write it again: cc-prep inspect … --write-exclusions FILE",
        )
    return [pair for pair in pairs if (split, pair.id, pair.kind) not in left_out]


def description(manifest: Manifest) -> dict[str, Any] | None:
    """The file's name and digest, and how many pairs of each split it leaves out; None without.

    Raises UserError.
    """
    if manifest.exclude is None:
        return None
    content = _content(manifest.exclude)
    left_out = {row.pair for row in _of(manifest, manifest.exclude, content)}
    counts = Counter(split for split, _, _ in left_out)
    return {
        "file": manifest.exclude.rpartition("/")[2],
        "sha256": hashlib.sha256(content).hexdigest(),
        "pairs": dict(sorted(counts.items())),
    }


def _of(manifest: Manifest, path: str, content: bytes) -> list[Exclusion]:
    """The rows of the manifest's file. Raises UserError for one of none of its splits."""
    rows = _parsed(path, content)
    others = [row.split for row in rows if row.split not in manifest.splits]
    if others:
        raise UserError(
            f"{path}: {len(others)} rows are of other splits, such as {others[0]}",
            f"{manifest.name} has {', '.join(manifest.splits)}",
        )
    return rows


def _content(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except OSError:
        raise UserError(f"exclude: no file {path}", "Check the path") from None


def _parsed(path: str, content: bytes) -> list[Exclusion]:
    try:
        text = content.decode("utf-8-sig", "surrogatepass")
    except UnicodeDecodeError as error:
        raise text_files.not_utf8(path, error) from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    remedy = f"Its columns are {','.join(FIELDS)}"
    exclusions: list[Exclusion] = []
    line = 1
    try:
        if next(reader, None) != FIELDS:
            raise UserError(f"{path}: no list of exclusions", remedy)
        while True:
            line = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                return exclusions
            if row and len(row) != len(FIELDS):
                raise csv.Error(f"{len(row)} values")
            if row:
                exclusions.append(Exclusion(*row))
    except csv.Error as error:
        raise UserError(f"{text_files.at_line(path, line)}: {error}", remedy) from None
