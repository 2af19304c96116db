"""A table of pairs, CSV, JSON, JSON lines or Parquet, with a row a pair or a row a caption.

    before, after      image files, relative to the data set's root (absolute ones and URLs too,
                       where the manifest says `outside_root: true`)
    caption            a sentence; `captions`: a list of them (in CSV as JSON, or as pandas does)
    split, id, kind, change_type          where there are any
    mask, mask_before, mask_after         images, non-zero where something changed, where something
                                          vanished, where something appeared; where there are any

In a table with masks a pair of kind no_change has one that is zero everywhere.

Rows with the same id, or without ids the same two images, are one pair, their captions together.
`table.file` names the table; by default it is the one file called `pairs.*` in the root. Where a
table calls its columns otherwise, `table.columns` says which they are (`columns.py`). Images may
lie in a Parquet file itself (`cc_prep.formats.image_tables`).
"""

from __future__ import annotations

import ast
import contextlib
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cc_prep import storage, strict_json, text_files
from cc_prep.datasets.layouts import annotation_files, columns, masks, split_file
from cc_prep.datasets.layouts.annotation_files import MissingPart
from cc_prep.datasets.layouts.file_names import Spelling, canonical
from cc_prep.datasets.no_change_sentences import all_say_so
from cc_prep.errors import UserError, first_line
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest, Table
from cc_prep.media.images import CELL
from cc_prep.progress import told
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.words import counted

WANTED = "Put the table (pairs.csv) and its images there, or name its folder with --root"
# Excel's hint at the separator, and empty lines.
ABOVE_HEADER = re.compile(r"(\"?sep=.\"?\r?\n)?[\r\n]*", re.IGNORECASE)
# ['a car left', "it's gone"]; an array of NumPy has no commas.
LITERAL = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
PANDAS_LIST = re.compile(rf"\[\s*(?:(?:{LITERAL.pattern})(?:\s*,\s*|\s+)?)*\]")
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")
NAMES = ("pairs.csv", "pairs.tsv", "pairs.jsonl", "pairs.parquet")
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
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
NAMED_OTHERWISE = "Say which columns they are: table.columns={before: …, after: …}"
SPLIT, ANY = "{split}", "*"  # in the name of a file
NO_KIND = "Use change or no_change"
MAX_SHOWN = 60  # characters of a text of the table in messages
MAX_NAME = 4096  # characters of the name of an image, as file systems have it


@dataclass(frozen=True)
class Row:
    """A row of a table: its values by column.

    Attributes:
        number: Its line in a text, else which row it is.
        split: That of its file, where there is a file for each.
    """

    path: str
    number: int
    values: dict[str, Any]
    split: str = ""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        if self.path.lower().endswith((".parquet", ".json")):
            return text_files.at_row(self.path, self.number, self.text("id"))
        return text_files.at_line(self.path, self.number)

    def text(self, column: str) -> str:
        """A value as text without blanks around it; "" where there is none.

        Raises UserError for a value with parts.
        """
        value = self.values.get(column)
        if isinstance(value, dict | list | tuple | bytes):
            place = text_files.at_row(self.path, self.number)
            what = {dict: "an object", bytes: "bytes"}.get(type(value), "a list")
            raise UserError(
                f"{place}: {column} is no text but {what}",
                "Name a part of it in table.columns, such as images[0] or answer.text",
            )
        return "" if value is None else str(value).strip()


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    try:
        only_table(root)
    except UserError:
        return {"a table (pairs.csv, .tsv, .jsonl or .parquet)": False}
    return {"a table": True}


def only_table(root: str) -> str:
    """The name of the one file in `root` that is a table of pairs. Raises UserError."""
    tables = [n for n in storage.list_files(root) if n.lower().endswith(ENDINGS)]
    named = [n for n in tables if n in NAMES] or tables
    names = []
    for name in named:
        try:
            path = storage.join(root, name)
            _checked(path, read_raw(path, name), Table())
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
    if manifest.split_file is None and SPLIT in (manifest.table.file or ""):
        listed = _with_splits(manifest, _listed(manifest, [split]))
    else:
        listed = every_pair(manifest)
    return [pair for pair in listed if pair.split == split]


def faults(manifest: Manifest) -> list[str]:
    """Splits that the manifest does not name, pairs without a split beside pairs with one, and
    pairs of images that occur twice.
    """
    listed = _listed(manifest, manifest.splits)
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
    return _with_splits(manifest, _listed(manifest, manifest.splits))


def _with_splits(manifest: Manifest, listed: list[ImagePair]) -> list[ImagePair]:
    """The pairs, those of which the table names no split in the manifest's first one."""
    first = manifest.splits[0]
    in_splits = [pair if pair.split else replace(pair, split=first) for pair in listed]
    return split_file.with_splits(manifest, masks.with_empty(in_splits))


def _listed(manifest: Manifest, splits: Iterable[str]) -> list[ImagePair]:
    """The pairs in the order of their first rows, with the splits that these name, or "".

    Args:
        splits: Whose files are read, where there is one for each.
    """
    by_id: dict[tuple[str, str], ImagePair] = {}
    values_of: dict[tuple[str, str], dict[str, str]] = {}
    rows = _rows(manifest, splits)
    for row in told(rows, f"reading {rows[0].path}"):
        pair = _pair(manifest, row)
        key = (row.split, pair.id)
        earlier = by_id.get(key)
        values = _once(row, pair.id, values_of.get(key, {}))
        values_of[key] = values
        if earlier is None:
            by_id[key] = pair
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
        by_id[key] = replace(pair, captions=captions)
    if manifest.captions.mark_unchanged:
        for key, pair in by_id.items():
            if not values_of[key]["kind"] and all_say_so(pair.captions):
                by_id[key] = replace(pair, kind=NO_CHANGE)
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
    rows = _rows(manifest, manifest.splits)
    path = rows[0].path
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
    before, after = (_image(manifest, row, column) for column in COLUMNS)
    if not before or not after:
        raise UserError(f"{row.place}: no before or no after", REMEDY)
    kind = KINDS.get(row.text("kind").lower())
    if kind is None:
        raise UserError(f"{row.place}: kind {shortened(row.text('kind'))}", NO_KIND)
    pair = ImagePair(
        dataset=manifest.name,
        split=row.text("split") or row.split,
        id=canonical(row.text("id") or _id(row, before, after)),
        kind=kind,
        before=before,
        after=after,
        captions=_captions(row),
        change_type=row.text("change_type") or None,
    )
    references = (_image(manifest, row, name) or None for name in masks.NAMES)
    return masks.with_masks(pair, *references, land_cover=manifest.masks.land_cover)


def _image(manifest: Manifest, row: Row, column: str) -> str:
    """The image that a row names in a column, from the root; "" where there is none."""
    name = re.sub(r"^(?:\./+)+", "", row.text(column))
    if len(name) > MAX_NAME:
        what = f"{column} has {len(name):,} characters, which is no name of a file"
        raise UserError(f"{row.place}: {what}", "Give the name of the image's file")
    folder = manifest.table.folder.replace(SPLIT, row.split).strip("/")
    if not name or not folder or CELL.fullmatch(name) or "://" in name or name.startswith("/"):
        return name
    return f"{folder}/{name}"


def _id(row: Row, before: str, after: str) -> str:
    """The id of a pair whose row has none."""
    if not CELL.fullmatch(before):
        return f"{before} {after}"
    stem = row.path.rpartition("/")[2].rpartition(".")[0]
    return f"{stem}_{row.number - 1:06d}"


def _captions(row: Row) -> tuple[str, ...]:
    value, single = row.values.get("captions"), row.values.get("caption")
    remedy = "Use `caption` for a sentence, `captions` for a list of them"
    if value is None or (isinstance(value, str) and value.strip() in ("", "null")):
        value = []
    elif isinstance(value, str):
        value = _list_in(value)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{row.place}: captions are no JSON list", remedy)
    in_cell = _list_in(single) if isinstance(single, str) else None
    if in_cell is None or not all(isinstance(one, str) for one in in_cell):
        in_cell = [single]
    sentences = [one for one in (*value, *in_cell) if one is not None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise UserError(f"{row.place}: a caption is no sentence", remedy)
    return tuple(sentence.strip() for sentence in sentences if sentence.strip())


def _list_in(text: str) -> list[Any] | None:
    """The list that a cell holds, as JSON, or as pandas writes one; None for other text."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        value = strict_json.loads(text)
        return value if isinstance(value, list) else None
    with contextlib.suppress(ValueError, SyntaxError):
        if PANDAS_LIST.fullmatch(text):
            return [ast.literal_eval(literal) for literal in LITERAL.findall(text)]
    return None


def files(manifest: Manifest, splits: Iterable[str]) -> list[tuple[str, str]]:
    """The files of the table, from the root, each with the split that its name says, or "".

    Raises:
        MissingPart: For a split without one.
    """
    root, pattern = manifest.root, manifest.table.file
    if pattern is None:
        names = [name for name in NAMES if storage.exists(storage.join(root, name))]
        if len(names) != 1:
            what = "none of " + ", ".join(NAMES) if not names else " and ".join(names)
            raise UserError(f"{root}: {what} in it", "Name the table with --set table.file=…")
        return [(names[0], "")]
    if SPLIT not in pattern and ANY not in pattern:
        return [(pattern, "")]
    found = []
    for split in splits if SPLIT in pattern else [""]:
        folder, slash, name = pattern.replace(SPLIT, split).rpartition("/")
        fits = re.compile(".*".join(map(re.escape, name.split(ANY))))
        listed = annotation_files.visible(storage.list_files(storage.resolve(root, folder)))
        of_split = [(f"{folder}{slash}{one}", split) for one in listed if fits.fullmatch(one)]
        if not of_split:
            path = storage.resolve(root, f"{folder}{slash}{name}")
            raise MissingPart(f"no file {path}", "Check table.file and splits in the manifest")
        found += of_split
    return found


def _rows(manifest: Manifest, splits: Iterable[str]) -> list[Row]:
    """The rows of a table, with the columns that the manifest says. Raises UserError."""
    listed = files(manifest, splits)
    rows = [
        replace(row, split=split)
        for file, split in listed
        for row in read_raw(storage.resolve(manifest.root, file), file)
    ]
    return _checked(storage.resolve(manifest.root, listed[0][0]), rows, manifest.table)


def read_raw(path: str, file: str) -> list[Row]:
    """The rows of a file, whatever columns they have.

    Args:
        file: The path from the root, by which images in a Parquet file are named.

    Raises:
        UserError: For what is no table.
    """
    try:
        if path.lower().endswith(".parquet"):
            from cc_prep.formats import image_tables  # which needs pyarrow

            listed = enumerate(image_tables.read_rows(path, file), 1)
            return [Row(path, number, values) for number, values in listed]
        return _text_rows(path, storage.read_bytes(path))
    except DamagedShard as error:
        raise UserError(str(error), ROW_FILES) from None
    except OSError as error:
        raise UserError(f"{path}: {first_line(error)}", ROW_FILES) from None


def _checked(path: str, rows: list[Row], settings: Table) -> list[Row]:
    """The rows that are wanted, by our names of their columns. Raises UserError."""
    if not rows:
        raise UserError(f"{path}: no rows", REMEDY)
    first = rows[0]
    rows = [_as_ours(row, settings) for row in rows if _is_wanted(row, settings)]
    if not rows:
        raise UserError(f"{first.path}: no row fits table.rows", "Check its expressions")
    if isinstance(first.values, dict):
        for name, place in (*settings.columns.items(), *((p, p) for p in settings.rows)):
            if place is not None and columns.value_at(first.values, place) is None:
                _require(first, name, place)
    _with_columns(first.path, rows, f"{REMEDY}. {NAMED_OTHERWISE}")
    names = {str(name) for row in rows for name in row.values}
    taken = {columns.name_of(place) for place in settings.columns.values() if place is not None}
    for name in sorted(names - KNOWN - taken):
        usual = name.strip().lower()
        if usual in KNOWN - names and settings.columns.get(usual, "") is not None:  # type: ignore[call-overload]
            raise UserError(
                f"{first.path}: a column is called {name!r}, which is not read as {usual!r}",
                f"Call it {usual}, or something else if it means something else",
            )
    return rows


def _require(row: Row, name: str, place: str) -> None:
    """Raises UserError where a row has no column of that name."""
    if place not in row.values and columns.name_of(place) not in row.values:
        raise UserError(
            f"{row.path}: no column {columns.name_of(place)!r}, which the manifest has as {name}",
            f"It has: {_columns(row.values)}",
        )


def _as_ours(row: Row, settings: Table) -> Row:
    """The row with our names of its columns; the others stay, for `cc-prep split --group`."""
    if not settings.columns or not isinstance(row.values, dict):
        return row
    ours: dict[str, Any] = {
        name: None if place is None else columns.value_at(row.values, place)
        for name, place in settings.columns.items()
    }
    if settings.columns.get("caption") == "captions":
        ours.setdefault("captions", None)  # they are read once
    return replace(row, values={**row.values, **ours})


def _is_wanted(row: Row, settings: Table) -> bool:
    if not isinstance(row.values, dict):
        return True
    values = {place: columns.value_at(row.values, place) for place in settings.rows}
    return all(
        values[place] is not None and re.search(pattern, str(values[place]))
        for place, pattern in settings.rows.items()
    )


def text_rows(path: str, data: bytes, remedy: str) -> list[Row]:
    """The rows of a CSV, of JSON or of JSON lines, which have at least before and after.

    Raises:
        UserError: For what is none of them, and with `remedy` for a table without rows or without
            these columns.
    """
    rows = _text_rows(path, data)
    if not rows:
        raise UserError(f"{path}: no rows", remedy)
    return _with_columns(path, rows, remedy)


def _text_rows(path: str, data: bytes) -> list[Row]:
    text = text_files.decode(data, path)
    if path.lower().endswith(".json"):
        return [Row(path, number, values) for number, values in enumerate(_items(text, path), 1)]
    is_json = path.lower().endswith((".jsonl", ".ndjson"))
    read = text_files.json_lines if is_json else _csv_rows
    return [Row(path, number, values) for number, values in read(text, path)]


def _items(text: str, path: str) -> list[Any]:
    """The objects of a JSON list, which may be the only list of an object. Raises UserError."""
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({first_line(error)})", ROW_FILES) from None
    if isinstance(value, dict):
        lists = [one for one in value.values() if isinstance(one, list)]
        value = lists[0] if len(lists) == 1 else value
    if not isinstance(value, list):
        raise UserError(f"{path}: no list of rows", 'Write [{"before": …, "after": …}, …]')
    return value


def _with_columns(path: str, rows: list[Row], remedy: str) -> list[Row]:
    """The rows, of which each is an object with before and after. Raises UserError."""
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
        first = LINE.match(text, above.end())
        mark, header = _header(first[0].rstrip("\r\n") if first else "")
        # Line by line: a StringIO of all takes four bytes a letter.
        lines = (line[0] for line in LINE.finditer(text, above.end()) if line[0])
        reader = csv.reader(lines, delimiter=mark, strict=True)
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
    names = {
        mark: [
            name.strip() for row in csv.reader([line], delimiter=mark) for name in row
        ]
        for mark in ",;\t"
    }  # fmt: skip
    known = (mark for mark in names if {*COLUMNS} <= {*names[mark]})
    mark = next(known, None) or max(names, key=lambda one: len(names[one]))
    twice = [name for name, count in Counter(filter(None, names[mark])).items() if count > 1]
    if twice:
        raise csv.Error(f"two columns are called {twice[0]!r}")
    return mark, names[mark]


def _columns(values: Any) -> str:
    """The columns of a row in words."""
    names = [str(name)[:MAX_SHOWN] for name in values] if isinstance(values, dict) else []
    return ", ".join(names[:MAX_LISTED]) or "none"


def shortened(text: str) -> str:
    """A text of a row for a message, in quotes and cut where it is long."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")
