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
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cc_prep import storage, strict_json, text_files
from cc_prep.datasets.layouts import masks, split_file
from cc_prep.datasets.layouts.file_names import Spelling, canonical
from cc_prep.errors import UserError, first_line
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.progress import told
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.words import counted

WANTED = "Put the table (pairs.csv) and its images there, or name its folder with --root"
# Excel's hint at the separator, and empty lines.
ABOVE_HEADER = re.compile(r"(\"?sep=.\"?\r?\n)?[\r\n]*", re.IGNORECASE)
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
MAX_LISTED = 8
ENDINGS = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Row:
    """A row of a table: its values by column.

    Attributes:
        number: Its line in a text, else which row it is.
    """

    path: str
    number: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        if self.path.endswith(".parquet"):
            return text_files.at_row(self.path, self.number, self.text("id"))
        return text_files.at_line(self.path, self.number)

    def text(self, column: str) -> str:
        """A value as text without blanks around it; "" where there is none."""
        value = self.values.get(column)
        return "" if value is None else str(value).strip()


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    try:
        only_table(root)
    except UserError:
        return {"a table (pairs.csv, .jsonl or .parquet)": False}
    return {"a table": True}


def only_table(root: str) -> str:
    """The name of the one file in `root` that is a table of pairs. Raises UserError."""
    tables = [n for n in storage.list_files(root) if n.endswith(ENDINGS)]
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
    by_id: dict[str, ImagePair] = {}
    values_of: dict[str, dict[str, str]] = {}
    path = _path(manifest)
    for row in told(_rows(path), f"reading {path}"):
        pair = _pair(manifest, row)
        earlier = by_id.get(pair.id)
        values = _once(row, pair.id, values_of.get(pair.id, {}))
        values_of[pair.id] = values
        if earlier is None:
            by_id[pair.id] = pair
            continue
        pair = _pair(manifest, replace(row, values={**row.values, **values}))
        differing = [
            side
            for side in COLUMNS
            if canonical(getattr(earlier, side)) != canonical(getattr(pair, side))
        ]
        if differing:
            raise _differs(row, pair.id, differing[0], "Give each pair its own id")
        captions = (*earlier.captions, *pair.captions)
        by_id[pair.id] = replace(pair, captions=captions)
    return _as_files_are_spelled(manifest.root, by_id.values())


def _as_files_are_spelled(root: str, pairs: Iterable[ImagePair]) -> list[ImagePair]:
    """The pairs with the names of their images in the form that the files have."""
    spelling = Spelling()

    def of(reference: str | None) -> str | None:
        return None if reference is None else spelling.of(root, reference)

    return [
        replace(
            pair,
            before=spelling.of(root, pair.before),
            after=spelling.of(root, pair.after),
            mask=of(pair.mask),
            mask_before=of(pair.mask_before),
            mask_after=of(pair.mask_after),
        )
        for pair in pairs
    ]


def _once(row: Row, id: str, earlier: dict[str, str]) -> dict[str, str]:
    """What the rows of a pair say in ONCE up to this one. Raises UserError where two differ."""
    values = dict(earlier)
    for name in ONCE:
        value = row.text(name)
        there = values.get(name, "")
        same = name == "kind" and KINDS.get(value.lower()) == KINDS.get(there.lower())
        if value and there and value != there and not same:
            raise _differs(
                row,
                id,
                name,
                f"A pair in {there} and in {value} is a leak: leave it in one of them"
                if name == "split"
                else f"Give all rows of a pair one {name}, and each pair its own id",
            )
        values[name] = value or there
    return values


def _differs(row: Row, id: str, column: str, remedy: str) -> UserError:
    return UserError(f"{row.place}: {id!r} is in an earlier row with another {column}", remedy)


def groups(manifest: Manifest, column: str) -> dict[str, str]:
    """What a column says of each pair, by id; a pair of which it says nothing is not there.

    Raises:
        UserError: Where there is no such column, no row fills it, or two rows of a pair differ in
            it.
    """
    path = _path(manifest)
    rows = _rows(path)
    if not all(column in row.values for row in rows):
        known = ", ".join(map(str, rows[0].values))
        raise UserError(f"{path}: no column {column!r}", f"It has: {known}")
    group_of: dict[str, str] = {}
    for row in rows:
        id, group = _pair(manifest, row).id, row.text(column)
        if group and group_of.setdefault(id, group) != group:
            raise _differs(row, id, column, "Give each pair one group")
    if not group_of:
        raise UserError(f"{path}: column {column!r} is empty", "Fill it, or leave out --group")
    return group_of


def _pair(manifest: Manifest, row: Row) -> ImagePair:
    before, after = map(row.text, COLUMNS)
    if not before or not after:
        raise UserError(f"{row.place}: no before or no after", REMEDY)
    kind = KINDS.get(row.text("kind").lower())
    if kind is None:
        raise UserError(f"{row.place}: kind {row.text('kind')!r}", "Use change or no_change")
    pair = ImagePair(
        dataset=manifest.name,
        split=row.text("split"),
        id=canonical(row.text("id") or f"{before} {after}"),
        kind=kind,
        before=before,
        after=after,
        captions=_captions(row),
        change_type=row.text("change_type") or None,
    )
    references = (row.text(name) or None for name in masks.NAMES)
    return masks.with_masks(pair, *references, land_cover=manifest.masks.land_cover)


def _captions(row: Row) -> tuple[str, ...]:
    value: Any = row.values.get("captions")
    remedy = "Use `caption` for a sentence, `captions` for a list of them"
    if isinstance(value, str):
        try:
            value = strict_json.loads(value) if value.strip() else None
        except ValueError:
            value = ""
    if value is not None and not isinstance(value, (list, tuple)):
        raise UserError(f"{row.place}: captions are no JSON list", remedy)
    sentences = [one for one in (*(value or ()), row.values.get("caption")) if one is not None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise UserError(f"{row.place}: a caption is no sentence", remedy)
    return tuple(sentence.strip() for sentence in sentences if sentence.strip())


def _path(manifest: Manifest) -> str:
    if manifest.table.file is not None:
        return storage.resolve(manifest.root, manifest.table.file)
    names = [n for n in NAMES if storage.exists(storage.join(manifest.root, n))]
    if len(names) != 1:
        what = "none of " + ", ".join(NAMES) if not names else " and ".join(names)
        raise UserError(f"{manifest.root}: {what} in it", "Name the table with --set table.file=…")
    return storage.join(manifest.root, names[0])


def _rows(path: str) -> list[Row]:
    """The rows of a table. Raises UserError."""
    try:
        data = storage.read_bytes(path)
    except OSError as error:
        raise UserError(f"{path}: {first_line(error)}", ROW_FILES) from None
    rows = (_parquet_rows if path.endswith(".parquet") else text_rows)(path, data, REMEDY)
    names = {str(name) for row in rows for name in row.values}
    for name in sorted(names - KNOWN):
        usual = name.strip().lower()
        if usual in KNOWN - names:
            raise UserError(
                f"{path}: a column is called {name!r}, which is not read as {usual!r}",
                f"Call it {usual}, or something else if it means something else",
            )
    return rows


def _parquet_rows(path: str, data: bytes, remedy: str) -> list[Row]:
    from cc_prep.formats import base  # which needs pyarrow

    try:
        values = base.read_rows(data, None, path)
    except DamagedShard as error:
        raise UserError(str(error), ROW_FILES) from None
    rows = [Row(path, number, one) for number, one in enumerate(values, 1)]
    return _with_columns(path, rows, remedy)


def text_rows(path: str, data: bytes, remedy: str) -> list[Row]:
    """The rows of a CSV or of JSON lines (.jsonl), which have at least before and after.

    Raises:
        UserError: For what is neither, and with `remedy` for a table without rows or without these
            columns.
    """
    text = text_files.decode(data, path)
    read = text_files.json_lines if path.endswith(".jsonl") else _csv_rows
    rows = [Row(path, number, values) for number, values in read(text, path)]
    return _with_columns(path, rows, remedy)


def _with_columns(path: str, rows: list[Row], remedy: str) -> list[Row]:
    """The rows, of which each is an object with before and after. Raises UserError."""
    if not rows:
        raise UserError(f"{path}: no rows", remedy)
    for row in rows:
        if not isinstance(row.values, dict) or not row.values.keys() >= {*COLUMNS}:
            place = path if row is rows[0] else row.place
            raise UserError(
                f"{place}: no columns before and after, but {_columns(row.values)}", remedy
            )
    return rows


def _csv_rows(text: str, path: str) -> Iterator[tuple[int, dict[str, str | None]]]:
    """The rows of a CSV by the names in its header, and the line on which each begins.

    They are separated as the header is: by commas, or by the semicolons or tabs that spreadsheets
    write in some languages. The line `sep=;`, which tells Excel so, may precede the header. Raises
    UserError.
    """
    above = ABOVE_HEADER.match(text)
    assert above
    lines_above = len(above[0].splitlines())
    number = lines_above + 1
    try:
        body = text[above.end() :]
        mark, header = _header(re.split("[\r\n]", body, maxsplit=1)[0])
        reader = csv.reader(io.StringIO(body, newline=""), delimiter=mark, strict=True)
        next(reader, None)
        while True:
            number = lines_above + reader.line_num + 1
            values = next(reader, None)
            if values is None:
                return
            if any(value.strip() for value in values[len(header) :]):
                raise csv.Error(f"more values than columns; one with {mark!r} in it needs quotes")
            if values:
                yield number, dict(itertools.zip_longest(header, values[: len(header)]))
    except csv.Error as error:
        raise UserError(f"{text_files.at_line(path, number)}: {error}", CSV_FORM) from None


def _header(line: str) -> tuple[str, list[str]]:
    """The separator of a CSV and the names of its columns. Raises csv.Error for a name twice."""
    names = {mark: next(csv.reader([line], delimiter=mark), []) for mark in ",;\t"}
    mark = next((mark for mark in names if {*COLUMNS} <= {*names[mark]}), ",")
    twice = [name for name, count in Counter(filter(None, names[mark])).items() if count > 1]
    if twice:
        raise csv.Error(f"two columns are called {twice[0]!r}")
    return mark, names[mark]


def _columns(values: Any) -> str:
    """The columns of a row in words."""
    names = [str(name) for name in values] if isinstance(values, dict) else []
    return ", ".join(names[:MAX_LISTED]) or "none"
