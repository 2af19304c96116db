"""Which layout a folder has: `cc-prep init`."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cc_prep import datasets, manifest, manifest_text, storage
from cc_prep.datasets import proposals, unread
from cc_prep.datasets.layouts import annotation_files, file_names, folders, levir_cc, table
from cc_prep.datasets.no_change_sentences import all_say_so
from cc_prep.datasets.proposals import Proposal
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, ImagePair
from cc_prep.words import counted

USUAL_SPLITS = ("train", "val", "valid", "validation", "dev", "test")
# The manifest that a layout's own starts from; that of the LEVIR family depends on the data.
TEMPLATES = {
    "clevr_change": "clevr",
    "clevr_dc": "clevr_dc",
    "spot_the_diff": "spot",
    "image_editing": "edit",
    "table": "own",
    "folders": "own",
    "video": "video",
    "rasters": "own",
}
# Sections about the data itself, which a manifest of another data set must not decide.
OF_DATA = (
    "name", "layout", "root", "splits", "table", "split_file", "exclude", "outside_root",
    "captions", "levir", "masks", "video", "rasters", "image", "pairs",
)  # fmt: skip
# Layouts of a user's own data, and the manifest by which it is prepared and trained on.
OWN, LIKE = ("table", "folders", "rasters"), "pairs"
COMMON = ("images/",)  # parts of layouts that say nothing of which it is
MAX_LISTED = 8
OWN_TABLE = (
    "Add a table pairs.csv, or .jsonl, with columns before, after, caption, split (docs/data.md)"
)
_References = dict[str, list[ImagePair]]  # by split


@dataclass(frozen=True)
class Recognised:
    """A manifest for a folder: its text, what it says, pairs by split, faults of annotations.

    Attributes:
        remarks: What was found out of the data and is not sure.
    """

    text: str
    settings: Manifest
    pairs: dict[str, int]
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """What is done: for whom a manifest is made.

    Attributes:
        like: The manifest whose preparation and trainings are taken; None takes the layout's own.
        folder: Where the manifest will be, to which a relative root is relative in it.
    """

    name: str
    root: str
    like: str | None
    folder: str


def recognise(name: str, root: str, like: str | None = None, *, folder: str = "") -> Recognised:
    """The manifest of the data in `root`. Raises UserError that says what was found and missed.

    Args:
        like: A manifest whose preparation and trainings are taken; default: the layout's own, and
            `pairs` for data that is nobody's publication.
        folder: Where the manifest will be, to which a relative root is relative in it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"the name {name!r} is not allowed", "Use only letters, digits, _ and -")
    if not storage.is_folder(root):
        raise UserError(f"no folder {root}", "Give the folder of the data")
    work = _Work(name, root, like, folder)
    parts = {layout: reader.parts(root) for layout, reader in datasets.READERS.items()}
    # The layout that asks for most is the most telling one.
    complete = sorted(
        (layout for layout, present in parts.items() if all(present.values())),
        key=lambda layout: -len(parts[layout]),
    )
    has_table = any(n in table.NAMES for n in storage.list_files(root))
    nearly: list[Proposal] = []
    if complete in ([], ["folders"]):
        nearly = proposals.of_folder(root)
        # Folders of images alone have no captions: who lists these beside them means the list.
        listed = [one for one in nearly if one.names_images and not one.missing]
        if complete and listed:
            complete, nearly = [], listed
    if has_table and {"folders", "levir_cc"} & {*complete[:1]}:
        # The table says more than the names of folders, and `cc-train serve --collect` writes both.
        table.only_table(root)
        of_table = _described(work, "table")
        of_table.faults.extend(_lost_splits(work, of_table) if complete[0] == "folders" else ())
        return of_table
    errors: dict[str, UserError] = {}
    for layout in complete:
        try:
            return _described(work, layout)
        except UserError as error:
            errors[layout] = error
    if errors:
        raise _of_all(root, errors)
    for proposal in nearly:
        if not proposal.missing:
            return _described(work, proposal.layout, proposal)
    raise _unknown(root, parts, nearly)


def _lost_splits(work: _Work, of_table: Recognised) -> Iterator[str]:
    """A fault of a table whose pairs are all of one split, where its folders are several."""
    with contextlib.suppress(UserError):
        of_folders = _described(work, "folders").pairs
        if len(of_table.pairs) == 1 < len(of_folders):
            file, [split] = table.only_table(work.root), of_table.pairs
            yield (
                f"{file}: all its pairs are of the split {split}, and the folders are "
                f"{' and '.join(of_folders)}. Add a column split"
            )


def _of_all(root: str, errors: dict[str, UserError]) -> UserError:
    """What is wrong with a folder in the one layout that it may have, or in each of them."""
    if len(errors) == 1:
        return next(iter(errors.values()))
    each = "; ".join(f"as {layout}: {error.what}" for layout, error in errors.items())
    return UserError(f"{root}: {each}", "Mend what is wrong in the layout that it has")


def _described(work: _Work, layout: str, proposal: Proposal | None = None) -> Recognised:
    root = work.root
    values: dict[str, Any] = {
        "name": work.name,
        "layout": layout,
        "root": manifest.as_written(root, work.folder),
    }
    template = _template(work, layout, proposal)
    remarks: list[str] = []
    if proposal is not None:
        values |= proposal.settings
        remarks += proposal.remarks
    elif layout == "table":
        name = table.only_table(root)
        ours, found_in = proposals.further_columns(root, name)
        values["table"] = {"file": name, **({"columns": ours} if ours else {})}
        remarks += found_in

    def read(names: Sequence[str]) -> tuple[Manifest, _References]:
        draft = manifest_text.with_values(template, {**values, "splits": [*names]})
        draft += "outside_root: true\n"  # to look at; what lies outside is a fault below
        settings = manifest.build(draft, f"{work.name}.yaml", root=root)
        return settings, _pairs(settings)

    settings, found = read(USUAL_SPLITS)
    if not found and layout == "table":  # which names splits as it likes
        names = dict.fromkeys(pair.split for pair in table.every_pair(settings))
        _check_apart(root, list(names))
        settings, found = read(
            sorted(names, key=lambda split: not split.lower().startswith("train"))
        )
    if not found:
        raise UserError(f"{root}: {layout} without a pair in it", "Look into its annotations")
    if _say_nothing_changed(found):
        values["captions"] = {"mark_unchanged": True}
        _, marked = read([*found])
        count = len(_say_nothing_changed(found)) - len(_say_nothing_changed(marked))
        if count:
            found = marked
            remarks.append(
                f"{counted(count, 'pair')} of {sum(map(len, found.values())):,} without a mark "
                f"{'counts' if count == 1 else 'count'} as unchanged, since all captions say so "
                "(captions.mark_unchanged)"
            )
        else:
            del values["captions"]
    text = manifest_text.with_values(template, {**values, "splits": [*found]})
    final = manifest.build(text, f"{work.name}.yaml", root=root)
    faults = datasets.reader(final).faults(final)
    outside = datasets.outsiders(final, [pair for listed in found.values() for pair in listed])
    if outside:
        faults.append(
            f"images outside the root, such as {outside[0]!r}: they need outside_root: true"
        )
    remarks += unread.notes(final, itertools.chain(*found.values()), faults)
    counts = {split: len(listed) for split, listed in found.items()}
    return Recognised(text, final, counts, faults, remarks)


def _template(work: _Work, layout: str, proposal: Proposal | None) -> str:
    """The text of the manifest that the new one starts from."""
    data = levir_cc.template(work.root) if layout == "levir_cc" else TEMPLATES[layout]
    is_own = layout in OWN or proposal is not None
    like = work.like or (LIKE if is_own else None)
    text = manifest.text_of(data if proposal is None else "own")
    if like is not None:
        text = manifest_text.joined(text, manifest.text_of(like), OF_DATA)
    if like == LIKE and layout != "clevr_change":
        # Only a renderer knows facts, and words of other data are to be learned.
        text = re.sub(r"(?m)^( +facts:) \{\}$", r"\1 null", text)
        text = re.sub(r"(?m)^( +trunk_rate:) 0\.0$", r"\1 1.0", text)
    head = f"# {layout}, as `cc-prep init` found it.\n"
    return head + "".join(manifest_text.sections(text))


def _say_nothing_changed(found: _References) -> list[ImagePair]:
    """The pairs with a change all captions of which say that nothing changed."""
    return [
        pair
        for listed in found.values()
        for pair in listed
        if pair.kind == CHANGE and all_say_so(pair.captions)
    ]


def _check_apart(root: str, splits: list[str]) -> None:
    """Raises UserError where two splits of a table are one, written in two ways."""
    for i, split in enumerate(splits):
        other = file_names.nearest(split, splits[:i])
        if other is not None:
            raise UserError(
                f"{root}: the splits {other!r} and {split!r} differ in small and capital letters "
                "alone",
                "Write one name in the table",
            )


def _pairs(settings: Manifest) -> _References:
    """The pairs of each split that has some."""
    found: _References = {}
    for split in settings.splits:
        try:
            listed = datasets.pairs(settings, split)
        except annotation_files.MissingPart:
            continue
        ends = [(pair.before, pair.after) for pair in listed]
        # Some layouts have one split under two names: `val` and `valid`.
        if ends and ends not in [[(p.before, p.after) for p in other] for other in found.values()]:
            found[split] = listed
    return found


def _unknown(root: str, parts: dict[str, dict[str, bool]], nearly: list[Proposal]) -> UserError:
    """What the folder has of the nearest layout, what is missing, and what else is there."""
    files = storage.list_files(root)
    archives = [n for n in files if n.lower().endswith(annotation_files.ARCHIVES)]
    if archives:
        return UserError(f"{root}: {', '.join(archives[:MAX_LISTED])} in it", "Unpack it there")
    if nearly:
        remedy = "Put the images where it says, or correct the names"
        return UserError(f"{root}: {nearly[0].missing}", remedy)
    if any(name in table.NAMES for name in files):
        try:
            table.only_table(root)
        except UserError as error:
            return error
    inner = annotation_files.visible(storage.list_folders(root))
    partial = {
        layout: present
        for layout, present in parts.items()
        if any(is_there and part not in COMMON for part, is_there in present.items())
    }
    if partial:
        layout = max(partial, key=lambda one: sum(partial[one].values()) / len(partial[one]))
        present_parts, missing = (
            [p for p, is_ in partial[layout].items() if is_ == w] for w in (True, False)
        )
        near = {part: file_names.nearest(part.rstrip("/"), [*inner, *files]) for part in missing}
        renamed = [f"{other} to {part.rstrip('/')}" for part, other in near.items() if other]
        return UserError(
            f"{root}: looks like {layout}: {', '.join(present_parts)} is there, but no "
            f"{', no '.join(missing)}",
            f"Rename {', '.join(renamed)}"
            if renamed
            else "Add what is missing, or see docs/data.md for the layouts",
        )
    images = {name: _images(storage.join(root, name)) for name in inner[:MAX_LISTED]}
    listed = [f"{name}/ ({_content(root, name, stems)})" for name, stems in images.items()]
    if len(inner) > MAX_LISTED:
        listed.append(f"{counted(len(inner) - MAX_LISTED, 'other folder')}")
    contents = ", ".join([*listed, *files[:MAX_LISTED]]) or "nothing"
    return UserError(
        f"{root}: no known layout; {contents} in it", _remedy_of_folders(root, images) or OWN_TABLE
    )


def _content(root: str, folder: str, stems: set[str]) -> str:
    """What a folder holds, in words."""
    path = storage.join(root, folder)
    inner = annotation_files.visible(storage.list_folders(path))
    others = len(annotation_files.visible(storage.list_files(path))) - len(stems)
    counts = [counted(len(stems), "image")] if stems or not (inner or others > 0) else []
    counts += [counted(others, "other file")] if others > 0 else []
    counts += [counted(len(inner), "folder")] if inner else []
    return ", ".join(counts)


def _images(folder: str) -> set[str]:
    """The names of the images in a folder."""
    return set(annotation_files.by_stem(storage.list_files(folder)))


def _remedy_of_folders(root: str, images: dict[str, set[str]]) -> str | None:
    """How folders of images become pairs, if they can; None else.

    Args:
        images: The names of the images in each folder.
    """
    with_sides = [name for name in images if folders.has_sides(root, f"{name}/")]
    if len(with_sides) == 1:
        return f"Give {storage.join(root, with_sides[0])} with --root"
    if with_sides:
        return f"Rename {', '.join(with_sides)} to the splits' names: train, val, test"
    couples = sorted(
        itertools.combinations(images, 2), key=lambda two: -len(images[two[0]] & images[two[1]])
    )
    if not couples or not images[couples[0][0]] & images[couples[0][1]]:
        return None
    shared = {name.lower() for name in images[couples[0][0]] & images[couples[0][1]]}
    if any(set(map(str.lower, sides)) <= shared for sides in folders.SIDES):
        return "If each folder holds one pair, name them in a table, pairs.csv"
    first, second = sorted(couples[0], key=lambda name: name.lower() in ("after", "b"))
    return (
        f"If {first} holds the images before and {second} those after, rename them to before and "
        "after"
    )
