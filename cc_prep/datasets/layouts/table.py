"""A user's own pairs: a CSV, JSON-lines or Parquet table with a row a pair or a row a caption.

    before, after      image files, relative to the data set's root (absolute ones and URLs too,
                       where the manifest says `outside_root: true`)
    caption            a sentence; `captions`: a list of them (in CSV as JSON)
    split, id, kind, change_type          where there are any
    mask, mask_before, mask_after         images, non-zero where something changed, where something
                                          vanished, where something appeared; where there are any

In a table with masks a pair of kind no_change has one that is zero everywhere.

Rows with the same id, or without ids the same two images, are one pair, their captions together.
`table.file` names the table; by default it is the one file called `pairs.*` in the root.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from cc_prep import storage, strict_json
from cc_prep.datasets.layouts import masks, split_file
from cc_prep.errors import UserError, first_line
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.words import counted

WANTED = "Put the table (pairs.csv) and its images there, or name its folder with --root"
EXCEL_HINT = re.compile(r"\A\"?sep=.\"?\r?\n", re.IGNORECASE)
NAMES = ("pairs.csv", "pairs.jsonl", "pairs.parquet")
REMEDY = (
    "Columns: before, after, and where there are any caption, split, id, kind, change_type, mask, "
    "mask_before, mask_after"
)
KINDS = {
    **dict.fromkeys(("", "change", "changed", "1", "true", "yes"), CHANGE),
    **dict.fromkeys(("no_change", "no change", "nochange", "same", "0", "false", "no"), NO_CHANGE),
}
CSV_FORM = (
    "Give each column a name of its own, and put values with separators or quotes into quotes, "
    'with "" for each quote in them'
)
ROW_FILES = "Give a CSV, JSON-lines or Parquet table"
# What a pair has once: a row that says nothing of it leaves it to the others.
ONCE = ("split", "kind", "change_type", *masks.NAMES)
COLUMNS = ("before", "after")
KNOWN = {*COLUMNS, "caption", "captions", "id", *ONCE}
MOST_LISTED = 8


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    try:
        only_table(root)
    except UserError:
        return {"a table (pairs.csv, .jsonl or .parquet)": False}
    return {"a table": True}


def only_table(root: str) -> str:
    """The name of the one file in `root` that is a table of pairs. Raises UserError."""
    tables = [n for n in storage.list_files(root) if n.endswith((".csv", ".jsonl", ".parquet"))]
    named = [n for n in tables if n in NAMES] or tables
    names = []
    for name in named:
        try:
            _rows(storage.join(root, name))
        except UserError:
            if len(named) == 1:
                raise
        else:
            names.append(name)
    if len(names) != 1:
        raise UserError(f"{root}: {len(names)} tables of pairs in it", "Leave one, as pairs.csv")
    return names[0]


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split in the order of their first rows. Raises UserError."""
    return [pair for pair in every_pair(manifest) if pair.split == split]


def faults(manifest: Manifest) -> list[str]:
    """Splits that the manifest does not name, pairs without a split beside pairs with one, and
    pairs of images that occur twice.
    """
    listed = _listed(manifest)
    image_pairs = _with_splits(manifest, listed)
    counts = Counter(pair.split for pair in image_pairs)
    problems = [
        f"split {split!r} of {counted(count, 'pair')} is not in the manifest "
        f"({', '.join(manifest.splits)})"
        for split, count in sorted(counts.items())
        if split not in manifest.splits
    ]
    unnamed = [pair.id for pair in listed if not pair.split]
    if 0 < len(unnamed) < len(listed) and manifest.split_file is None:
        problems.append(
            f"no split in the rows of {counted(len(unnamed), 'pair')}, such as {unnamed[0]!r}: "
            f"taken as {manifest.splits[0]}"
        )
    ends: dict[tuple[str, str], str] = {}
    for pair in image_pairs:
        first_id = ends.setdefault((pair.before, pair.after), pair.id)
        if first_id != pair.id:
            problems.append(f"{pair.id} has the same images as {first_id}")
    return problems


def every_pair(manifest: Manifest) -> list[ImagePair]:
    """The pairs of all splits in the order of their first rows. Raises UserError."""
    return _with_splits(manifest, _listed(manifest))


def _with_splits(manifest: Manifest, listed: list[ImagePair]) -> list[ImagePair]:
    """The pairs, those of which the table names no split in the manifest's first one."""
    first = manifest.splits[0]
    in_splits = [pair if pair.split else replace(pair, split=first) for pair in listed]
    return split_file.with_splits(manifest, masks.with_empty(in_splits))


def _listed(manifest: Manifest) -> list[ImagePair]:
    """The pairs in the order of their first rows, with the splits that these name, or ""."""
    path = _path(manifest)
    by_id: dict[str, ImagePair] = {}
    values_of: dict[str, dict[str, str]] = {}
    for number, row in enumerate(_rows(path), _first_row(path)):
        pair = _pair(manifest, path, number, row)
        earlier = by_id.get(pair.id)
        values = _once(path, number, row, pair.id, values_of.get(pair.id, {}))
        values_of[pair.id] = values
        if earlier is None:
            by_id[pair.id] = pair
            continue
        pair = _pair(manifest, path, number, {**row, **values})
        differing = [f for f in COLUMNS if getattr(earlier, f) != getattr(pair, f)]
        if differing:
            raise UserError(
                f"{path}: row {number}: {pair.id!r} is in an earlier row "
                f"with another {differing[0]}",
                "Give each pair its own id",
            )
        captions = (*earlier.captions, *pair.captions)
        by_id[pair.id] = replace(pair, captions=captions)
    return list(by_id.values())


def _once(
    path: str, number: int, row: dict[str, Any], id: str, earlier: dict[str, str]
) -> dict[str, str]:
    """What the rows of a pair say in ONCE up to this one. Raises UserError where two differ."""
    values = dict(earlier)
    for name in ONCE:
        value = _text(row, name)
        there = values.get(name, "")
        same = name == "kind" and KINDS.get(value.lower()) == KINDS.get(there.lower())
        if value and there and value != there and not same:
            raise UserError(
                f"{path}: row {number}: {id!r} is in an earlier row with another {name}",
                "Give each pair its own id",
            )
        values[name] = value or there
    return values


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value).strip()


def groups(manifest: Manifest, column: str) -> dict[str, str]:
    """What a column says of each pair, by id; a pair of which it says nothing is not there.

    Raises UserError where there is no such column, no row fills it, or two rows of a pair differ in
    it.
    """
    path = _path(manifest)
    rows = _rows(path)
    if not all(column in row for row in rows):
        raise UserError(f"{path}: no column {column!r}", f"It has: {', '.join(map(str, rows[0]))}")
    group_of: dict[str, str] = {}
    for number, row in enumerate(rows, _first_row(path)):
        id, group = _pair(manifest, path, number, row).id, _text(row, column)
        if group and group_of.setdefault(id, group) != group:
            raise UserError(
                f"{path}: row {number}: {id!r} is in an earlier row with another {column}",
                "Give each pair one group",
            )
    if not group_of:
        raise UserError(f"{path}: column {column!r} is empty", "Fill it, or leave out --group")
    return group_of


def _pair(manifest: Manifest, path: str, number: int, row: dict[str, Any]) -> ImagePair:
    def text(name: str) -> str:
        return _text(row, name)

    before, after = text("before"), text("after")
    if not before or not after:
        raise UserError(f"{path}: row {number}: no before or no after", REMEDY)
    kind = KINDS.get(text("kind").lower())
    if kind is None:
        raise UserError(f"{path}: row {number}: kind {text('kind')!r}", "Use change or no_change")
    pair = ImagePair(
        dataset=manifest.name,
        split=text("split"),
        id=text("id") or f"{before} {after}",
        kind=kind,
        before=before,
        after=after,
        captions=_captions(path, number, row),
        change_type=text("change_type") or None,
    )
    references = (text(name) or None for name in masks.NAMES)
    return masks.with_masks(pair, *references, land_cover=manifest.masks.land_cover)


def _captions(path: str, number: int, row: dict[str, Any]) -> tuple[str, ...]:
    value: Any = row.get("captions")
    remedy = "Use `caption` for a sentence, `captions` for a list of them"
    if isinstance(value, str):
        try:
            value = strict_json.loads(value) if value.strip() else None
        except ValueError:
            value = ""
    if value is not None and not isinstance(value, (list, tuple)):
        raise UserError(f"{path}: row {number}: captions are no JSON list", remedy)
    sentences = [one for one in (*(value or ()), row.get("caption")) if one is not None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise UserError(f"{path}: row {number}: a caption is no sentence", remedy)
    return tuple(sentence.strip() for sentence in sentences if sentence.strip())


def _path(manifest: Manifest) -> str:
    if manifest.table.file is not None:
        return storage.resolve(manifest.root, manifest.table.file)
    names = [n for n in NAMES if storage.exists(storage.join(manifest.root, n))]
    if len(names) != 1:
        what = "none of " + ", ".join(NAMES) if not names else " and ".join(names)
        raise UserError(f"{manifest.root}: {what} in it", "Name the table with --set table.file=…")
    return storage.join(manifest.root, names[0])


def _first_row(path: str) -> int:
    """The number of the first pair's row: a CSV's header is row 1."""
    return 1 if path.endswith((".parquet", ".jsonl")) else 2


def _rows(path: str) -> list[dict[str, Any]]:
    """The rows of a table. Raises UserError."""
    try:
        if path.endswith(".parquet"):
            from cc_prep.formats import base  # which needs pyarrow

            rows: list[Any] = base.read_rows(storage.read_bytes(path), None, path)
        elif path.endswith(".jsonl"):
            rows = storage.read_json_lines(path)
        else:
            rows = csv_rows(storage.read_bytes(path).decode("utf-8-sig"))
    except DamagedShard as error:
        raise UserError(str(error), ROW_FILES) from None
    except csv.Error as error:
        raise UserError(f"{path}: {error}", CSV_FORM) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {first_line(error)}", ROW_FILES) from None
    if not rows:
        raise UserError(f"{path}: no rows", REMEDY)
    bad = next((row for row in rows if not has_columns(row)), None)
    if bad is not None:
        what = f"no columns before and after in every row, but {columns_of(bad)}"
        raise UserError(f"{path}: {what}", REMEDY)
    names = {str(name) for row in rows for name in row}
    for name in sorted(names - KNOWN):
        usual = name.strip().lower()
        if usual in KNOWN - names:
            raise UserError(
                f"{path}: a column is called {name!r}, which is not read as {usual!r}",
                f"Call it {usual}, or something else if it means something else",
            )
    return rows


def csv_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV by the names in its header. Raises csv.Error, which names the line.

    They are separated as the header is: by commas, or by the semicolons or tabs that spreadsheets
    write in some languages. The line `sep=;`, which tells Excel so, may precede the header.
    """
    text = EXCEL_HINT.sub("", text, count=1)
    header = re.split("[\r\n]", text, maxsplit=1)[0]
    names = {mark: next(csv.reader([header], delimiter=mark), []) for mark in ",;\t"}
    mark = next((mark for mark in names if {*COLUMNS} <= {*names[mark]}), ",")
    twice = [name for name, count in Counter(filter(None, names[mark])).items() if count > 1]
    if twice:
        raise csv.Error(f"two columns are called {twice[0]!r}")
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    rows: list[dict[str, Any]] = []
    try:
        for row in reader:
            beyond: Any = row.pop(None, ())
            if any(value.strip() for value in beyond):
                raise csv.Error(f"more values than columns; one with {mark!r} in it needs quotes")
            rows.append(row)
    except csv.Error as error:
        raise csv.Error(f"line {reader.reader.line_num}: {error}") from None
    return rows


def has_columns(row: Any) -> bool:
    """Whether a row is an object with the columns that a pair needs."""
    return isinstance(row, dict) and row.keys() >= {*COLUMNS}


def columns_of(row: Any) -> str:
    """The columns of a row in words."""
    names = [str(name) for name in row if name is not None] if isinstance(row, dict) else []
    return ", ".join(names[:MOST_LISTED]) or "none"
