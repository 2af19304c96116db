"""What a folder holds that no known layout has, as settings of the layouts `table` and `levir_cc`.

A table is one whose rows name two images that are there, whatever its columns are called. A folder
in the form of LEVIR-CC has two folders of images with one name each, and a file of captions in
Karpathy's form or none.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import columns, folders, table
from cc_prep.datasets.layouts.annotation_files import by_stem, is_image, visible
from cc_prep.datasets.layouts.table import Row
from cc_prep.errors import UserError
from cc_prep.media.images import CELL
from cc_prep.words import counted

SPLITS = ("train", "val", "valid", "validation", "dev", "test")
SPLIT, ANY = table.SPLIT, table.ANY
# How the two images of a pair are told apart, the surest first.
SIDES = (
    ("before", "after"), ("pre", "post"), ("old", "new"), ("original", "edited"),
    ("vorher", "nachher"), ("avant", "apres"), ("antes", "despues"),
    ("source", "target"), ("reference", "candidate"), ("first", "second"), ("left", "right"),
    ("earlier", "later"), ("past", "present"),
    ("a", "b"), ("t0", "t1"), ("t1", "t2"), ("im1", "im2"), ("0", "1"), ("1", "2"),
)  # fmt: skip
MASK_WORDS = {"mask", "masks", "label", "labels", "seg", "segmentation", "gt"}
CAPTIONS = (
    "caption", "captions", "sentence", "sentences", "change_caption", "text", "texts",
    "description", "descriptions", "ground_truth_diff", "difference", "differences", "diff",
    "answer", "response", "output", "raw",
)  # fmt: skip
KIND_COLUMNS = ("kind", "changeflag", "change_flag", "changed", "is_changed", "has_change")
ID_COLUMNS = ("id", "pair_id", "uid", "index", "idx", "image_id", "img_id")
TYPE_COLUMNS = ("change_type", "topic", "task_type")
ANSWERERS, ASKERS = ("gpt", "assistant", "model"), ("human", "user")
EMPTY: tuple[Any, ...] = (None, "", [], {})
MAX_TABLES = 40  # files that are looked into
MAX_FOLDERS = 200  # that are listed
MAX_DEPTH = 3  # of folders below the root
MAX_QUESTIONS = 3  # that a remark names
TRIED = 10  # rows, of which one may name an image that is not there


@dataclass(frozen=True)
class Proposal:
    """Settings with which a folder is read.

    Attributes:
        settings: By section of the manifest.
        remarks: What a user should know of them.
        missing: What is not there; with it the settings are no use yet.
    """

    layout: str
    settings: dict[str, Any]
    remarks: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def names_images(self) -> bool:
        """Whether a file names the images, rather than folders alone holding them."""
        return self.layout == "table" or self.settings.get("levir", {}).get("captions") is not None


def of_folder(root: str) -> list[Proposal]:
    """What a folder may be, the likeliest first; those that miss something come last."""
    found = [*_of_tables(root), *_of_levir(root)]
    return sorted(found, key=lambda one: bool(one.missing))


def _of_tables(root: str) -> Iterator[Proposal]:
    listed = [*_tables(root)][:MAX_TABLES]
    groups: dict[str, list[str]] = {}
    for file in listed:
        groups.setdefault(_pattern(file), []).append(file)
    usable = []
    for pattern, files in groups.items():
        name = pattern if SPLIT in pattern or len(files) > 1 else files[0]
        try:
            rows = table.read_raw(storage.join(root, files[0]), files[0])
        except UserError:
            continue
        proposal = _of_rows(root, name, files[0], rows)
        if proposal is not None:
            usable.append((len(rows) * len(files), proposal))
    usable.sort(key=lambda one: (bool(one[1].missing), -one[0]))
    for i, (_, proposal) in enumerate(usable):
        others = [one.settings["table"]["file"] for _, one in usable if one is not proposal]
        if i == 0 and others:
            shown = ", ".join(others[:3])
            proposal.remarks.append(f"other tables of pairs there (table.file): {shown}")
        yield proposal


def _of_rows(root: str, name: str, file: str, rows: list[Row]) -> Proposal | None:
    """The table as it can be read; None where no column names two images."""
    if not rows or not isinstance(rows[0].values, dict):
        return None
    values = [row.values for row in rows if isinstance(row.values, dict)]
    found = columns_of(values)
    if found is None:
        return None
    mapping, remarks = found
    sides = [mapping.get(side) or side for side in table.COLUMNS]
    named = [[columns.value_at(row, side) for side in sides] for row in values]
    images = [str(one).strip() for one in next((pair for pair in named if all(pair)), named[0])]
    settings: dict[str, Any] = {"file": name}
    folder = _folder_of(root, name, file, images)
    missing = ""
    if folder is None:
        missing = f"{file} names images such as {table.shortened(images[0])}, which are not there"
    elif folder:
        settings["folder"] = folder
    ours = {key: place for key, place in mapping.items() if key != place}
    if ours:
        settings["columns"] = ours
        remarks[:0] = _corrections(name, ours)
    sections: dict[str, Any] = {"table": settings}
    if CELL.fullmatch(images[0]):
        sections["shards"] = {"pairs_per_shard": 256, "shuffle_seed": None}
        remarks.append("images lie in the table: pairs stay in its order, so that it is read once")
    return Proposal("table", sections, remarks, missing)


def _corrections(name: str, ours: Mapping[str, str | None]) -> list[str]:
    """A remark of the columns that were found, if there are any."""
    shown = ", ".join(f"{key} = {place}" for key, place in ours.items() if place is not None)
    return [f"{name}: {shown}. Correct them in table.columns"] if shown else []


def further_columns(root: str, name: str) -> tuple[dict[str, str], list[str]]:
    """What a table with columns before and after calls otherwise than we do, by our names, and what
    to know of it."""
    rows = table.read_raw(storage.join(root, name), name)
    values = [row.values for row in rows if isinstance(row.values, dict)]
    found = columns_of(values)
    if found is None or (found[0]["before"], found[0]["after"]) != table.COLUMNS:
        return {}, []
    mapping, remarks = found
    there = {column for row in values for column in row}
    said = {"caption", "captions"} & there
    ours = {
        key: place
        for key, place in mapping.items()
        if place is not None and key not in there and not (said and key in ("caption", "captions"))
    }
    return ours, [*_corrections(name, ours), *remarks]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str | None], list[str]] | None:
    """Which column of some rows is which, by our names, and what to know of it.

    None for the name of a column that must not be read; None in all where no two images are named.
    """
    first = _filled(rows)
    images = {path: value for path, value in _texts(first) if _names_image(value)}
    masks = {path for path in images if _words(path) & MASK_WORDS}
    sides = _sides([path for path in images if path not in masks])
    if sides is None:
        return None
    mapping: dict[str, str | None] = dict(zip(table.COLUMNS, sides, strict=True))
    remarks: list[str] = []
    of_masks = _sides(sorted(masks)) if len(masks) > 1 else None
    if of_masks is not None:
        mapping |= dict(zip(("mask_before", "mask_after"), of_masks, strict=True))
    elif masks:
        mapping["mask"] = min(masks)
    asked = _caption(first, mapping)
    if asked is not None:
        remarks += _questions(rows, asked)
    if not {"caption", "captions"} & mapping.keys():
        read = {columns.name_of(one) for one in (*sides, *filter(None, mapping.values()))}
        left = [name for name in first if name not in {*read, *ID_COLUMNS, "split"}]
        shown = f" (columns left: {', '.join(left[:5])})" if left else ""
        remarks.append(f"no column is read as captions{shown}. Name it in table.columns")
    kind = next((name for name in KIND_COLUMNS if _is_kind(rows, name)), None)
    _put(mapping, first, "kind", kind)
    pairs = Counter(tuple(str(columns.value_at(row, side)) for side in sides) for row in rows)
    is_single = max(pairs.values()) == 1
    id = next((name for name in ID_COLUMNS if is_single and _is_id(rows, name)), None)
    _put(mapping, first, "id", id)
    types = (name for name in TYPE_COLUMNS if isinstance(first.get(name), str))
    _put(mapping, first, "change_type", next(types, None))
    for name in table.ONCE:
        place = mapping.get(name)
        if place not in (None, name) and not _is_of_pairs(rows, sides, str(place)):
            del mapping[name]
            remarks.append(f"{place} differs within a pair, and is not read as {name}")
    return mapping, remarks


def _is_of_pairs(rows: Sequence[Mapping[str, Any]], sides: tuple[str, str], place: str) -> bool:
    """Whether all rows of each pair that fill a column say the same there."""
    values: dict[tuple[str, ...], str] = {}
    for row in rows:
        value = columns.value_at(row, place)
        pair = tuple(str(columns.value_at(row, side)) for side in sides)
        if value not in EMPTY and values.setdefault(pair, str(value)) != str(value):
            return False
    return True


def _filled(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row with the first value of each column that is not empty: a cell of any row may be."""
    filled: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if filled.get(name) in EMPTY:
                filled[name] = value
    return filled


def _put(
    mapping: dict[str, str | None], first: Mapping[str, Any], name: str, column: str | None
) -> None:
    """Says which column is `name`; a column of that name that is none is not to be read."""
    if column is not None or name in first:
        mapping[name] = column


def _texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a row, each with its path, those of lists and objects too."""
    for name, value in values.items():
        if isinstance(value, str):
            yield str(name), value
        elif isinstance(value, list):
            yield from ((f"{name}[{i}]", one) for i, one in enumerate(value) if _is_text(one))
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", one) for key, one in value.items() if _is_text(one))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _names_image(value: str) -> bool:
    return len(value) <= table.MAX_NAME and bool(CELL.fullmatch(value) or is_image(value))


def _sides(paths: list[str]) -> tuple[str, str] | None:
    """The images before and after among some columns of images."""
    for x, y in SIDES:
        for one, other in itertools.permutations(paths, 2):
            differing = [
                (a, b)
                for a, b in itertools.zip_longest(_parts(one), _parts(other), fillvalue="")
                if a != b
            ]
            if differing == [(x, y)]:
                return one, other
    if len(paths) != 2:
        return None
    one, other = paths
    years = [re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", path) for path in paths]
    return (other, one) if all(years) and years[1] < years[0] else (one, other)


def _parts(path: str) -> list[str]:
    """The words of a column's name in small letters: `imageA`, `img_1` and `image_t0_path`."""
    return [part.lower() for part in re.findall(r"t\d|im\d|[A-Z]?[a-z]+|[A-Z]+|\d+", path)]


def _words(path: str) -> set[str]:
    return {*_parts(path)}


def _caption(first: Mapping[str, Any], mapping: dict[str, str | None]) -> str | None:
    """Adds the column of captions; where it is the answer in a conversation, returns the question's
    path."""
    taken = {columns.name_of(place) for place in mapping.values() if place is not None}
    named = sorted(
        (name for name in first if name in CAPTIONS and name not in taken), key=CAPTIONS.index
    )
    for name in named:
        value = first[name]
        if isinstance(value, str):
            mapping["caption"] = name
            return None
        if isinstance(value, list) and value and all(map(_is_text, value)):
            mapping["captions"] = name
            return None
        if isinstance(value, list) and value and all(_is_text(_of(one, "raw")) for one in value):
            mapping["captions"] = f"{name}[].raw"
            return None
    for name, value in first.items():
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], dict):
            text = next((key for key in ("value", "content") if _is_text(_of(value[0], key))), None)
            roles = [str(_of(turn, "from") or _of(turn, "role")).lower() for turn in value]
            answers = [i for i, role in enumerate(roles) if role in ANSWERERS]
            questions = [i for i, role in enumerate(roles) if role in ASKERS]
            if text is not None and answers:
                mapping["caption"] = f"{name}[{answers[0]}].{text}"
                return f"{name}[{questions[0]}].{text}" if questions else None
    return None


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _questions(rows: Sequence[Mapping[str, Any]], path: str) -> Iterator[str]:
    """A remark where a table asks several questions, not all of which ask what changed."""
    texts = (re.sub(r"<image>|\s+", " ", str(columns.value_at(row, path))) for row in rows)
    counts = Counter(" ".join(text.split()) for text in texts)
    if len(counts) > 1:
        shown = ", ".join(
            f"{table.shortened(text)} {n:,}" for text, n in counts.most_common(MAX_QUESTIONS)
        )
        yield (
            f"{counted(len(counts), 'question')}, of which every answer counts as a caption: "
            f'{shown}. Choose with table.rows, such as {{"{path}": describe}}'
        )


def _is_kind(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    return any(value is not None for value in values) and all(
        value is None or (not isinstance(value, dict | list) and _kind(value) in table.KINDS)
        for value in values
    )


def _kind(value: Any) -> str:
    return str(value).strip().lower()


def _is_id(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    is_plain = all(isinstance(value, str | int) and str(value).strip() for value in values)
    return is_plain and len({str(value) for value in values}) == len(values)


def _tables(root: str) -> Iterator[str]:
    """The files below a root that may be tables, from the root, those at its top first."""
    for folder in ("", *_folders(root)):
        for name in visible(storage.list_files(storage.join(root, folder) if folder else root)):
            if name.lower().endswith(table.ENDINGS):
                yield f"{folder}/{name}" if folder else name


def _pattern(file: str) -> str:
    """The name of a file with what differs between splits and parts replaced."""
    folder, slash, name = file.rpartition("/")
    name = re.sub(r"-\d{4,}-of-\d{4,}(?=\.)", f"-{ANY}", name)
    if re.fullmatch(r"\d{3,}\.parquet", name):
        name = f"{ANY}.parquet"
    return _by_split(f"{folder}{slash}{name}")


def _by_split(path: str) -> str:
    """A path with the name of a split in it replaced."""
    split = _split_in(path)
    return re.sub(_word(split), SPLIT, path) if split else path


def _split_in(path: str) -> str:
    """The split that a path names; "" for none."""
    named = (one for one in sorted(SPLITS, key=len, reverse=True) if re.search(_word(one), path))
    return next(named, "")


def _word(split: str) -> str:
    return rf"(?<![A-Za-z0-9]){split}(?![A-Za-z0-9])"


def _folder_of(root: str, name: str, file: str, images: list[str]) -> str | None:
    """To which folder names of images are relative, as `table.folder` has it; None for none."""
    # What a stranger's table names elsewhere is not asked for: `init` says that it is outside.
    if CELL.fullmatch(images[0]) or any("://" in one or one.startswith("/") for one in images):
        return ""
    own = name.rpartition("/")[0]
    split, inner = _split_in(file), _folders(root)
    candidates = ["", own, *inner]
    if SPLIT in name:  # the images of each split may lie where that split's name says
        others = [one for one in SPLITS if one != split]
        by_split = map(_by_split, candidates)
        theirs = [one for one in by_split if {one.replace(SPLIT, o) for o in others} & {*inner}]
        candidates = [*(one for one in theirs if SPLIT in one), *candidates]
    for candidate in dict.fromkeys(candidates):
        folder = storage.join(root, candidate.replace(SPLIT, split)) if candidate else root
        if all(storage.exists(storage.resolve(folder, image)) for image in images):
            return candidate
    return None


def _folders(root: str) -> list[str]:
    """Folders below the root, from the root, those at its top first."""
    found: list[str] = []
    level = [""]
    for _ in range(MAX_DEPTH):
        inner = [
            f"{folder}/{name}" if folder else name
            for folder in level
            for name in visible(storage.list_folders(storage.join(root, folder)))
        ]
        level = inner[: max(0, MAX_FOLDERS - len(found))]
        found += level
    return found


def _of_levir(root: str) -> Iterator[Proposal]:
    listed = _folders(root)
    by_parent: dict[str, dict[str, str]] = {}
    for folder in listed:
        parent, _, name = folder.rpartition("/")
        by_parent.setdefault(_with_split(parent), {}).setdefault(name.lower(), name)
    couples = [
        (parent, names[x], names[y])
        for parent, names in by_parent.items()
        for x, y in SIDES
        if x in names and y in names
    ]
    captions = [name for name in visible(storage.list_files(root)) if name.endswith(".json")]
    for file in captions:
        rows = _karpathy(storage.join(root, file))
        for parent, before, after in couples if rows else ():
            sides = (before, after)
            if any(all(_has(root, parent, side, row) for side in sides) for row in rows[:TRIED]):
                yield _levir(root, listed, file, parent, (before, after), rows)
                break
        else:
            if rows:
                what = f"{file} names images such as {table.shortened(rows[0]['filename'])}"
                missing = f"{what}, which are in no two folders such as A and B"
                yield Proposal("levir_cc", {}, missing=missing)
    for parent, before, after in couples:
        proposal = _levir(root, listed, None, parent, (before, after), [])
        if proposal.settings["levir"]["mask"] is not None:
            yield proposal


def _karpathy(path: str) -> list[dict[str, Any]]:
    """The rows of a file in Karpathy's form; none of another file."""
    try:
        value = storage.read_json(path)
    except (ValueError, OSError, UserError):
        return []
    rows = value.get("images") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        return []
    return [
        row
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("filename"), str)
        and isinstance(row.get("sentences"), list)
    ]


def _levir(
    root: str,
    listed: list[str],
    captions: str | None,
    parent: str,
    sides: tuple[str, str],
    rows: list[dict[str, Any]],
) -> Proposal:
    prefix = f"{parent}/" if parent else ""
    masks = [
        folder.rpartition("/")[2]
        for folder in listed
        if _with_split(folder.rpartition("/")[0]) == parent
        and folders.MASK_FOLDER.fullmatch(folder.rpartition("/")[2])
    ]
    before, after = (f"{prefix}{side}" for side in sides)
    mask = f"{prefix}{masks[0]}" if masks else None
    settings = {"captions": captions, "before": before, "after": after, "mask": mask}
    remarks = [
        f"captions {captions or 'none'}, before {before}, after {after}, mask {mask or 'none'} "
        "(levir in the manifest)"
    ]
    if mask is not None:
        remarks.append("all values of masks but 0 count as changed; masks.classes gives them names")
    flags = [row for row in rows if row.get("changeflag") in (0, 1)]
    if captions is not None and len(flags) < len(rows):
        remarks.append(f"no changeflag in {counted(len(rows) - len(flags), 'row')} of {captions}")
    return Proposal("levir_cc", {"levir": settings}, remarks)


def _has(root: str, parent: str, side: str, row: dict[str, Any]) -> bool:
    """Whether the image of a row is in a folder."""
    stem = row["filename"].rpartition(".")[0] or row["filename"]
    pattern = f"{parent}/{side}" if parent else side
    splits = [row["split"]] if isinstance(row.get("split"), str) else [*SPLITS]
    return any(
        stem in by_stem(storage.list_files(storage.join(root, pattern.replace(SPLIT, split))))
        for split in splits
    )


def _with_split(folder: str) -> str:
    """A folder's path with the names of splits in it replaced."""
    return "/".join(SPLIT if part in SPLITS else part for part in folder.split("/"))
