"""Which layout a folder has: `cc-prep init`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from cc_prep import datasets, manifest, storage
from cc_prep.datasets.layouts import annotation_files, file_names, folders, levir_cc, table
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
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
MAX_LISTED = 8
OWN_TABLE = (
    "Add a table pairs.csv, or .jsonl, with columns before, after, caption, split (docs/data.md)"
)
_References = dict[str, list[tuple[str, str]]]  # before and after of each pair, by split


@dataclass(frozen=True)
class Recognised:
    """A manifest for a folder: its text, what it says, pairs by split, faults of annotations."""

    text: str
    settings: Manifest
    pairs: dict[str, int]
    faults: list[str] = field(default_factory=list)


def recognise(name: str, root: str, like: str | None = None, *, folder: str = "") -> Recognised:
    """The manifest of the data in `root`. Raises UserError that says what was found and missed.

    Args:
        like: A manifest whose preparation and trainings are taken; default: the layout's own.
        folder: Where the manifest will be, to which a relative root is relative in it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"the name {name!r} is not allowed", "Use only letters, digits, _ and -")
    if not storage.is_folder(root):
        raise UserError(f"no folder {root}", "Give the folder of the data")
    parts = {layout: reader.parts(root) for layout, reader in datasets.READERS.items()}
    # The layout that asks for most is the most telling one.
    complete = sorted(
        (layout for layout, present in parts.items() if all(present.values())),
        key=lambda layout: -len(parts[layout]),
    )
    if complete[:1] == ["folders"] and any(n in table.NAMES for n in storage.list_files(root)):
        # The folders hold the table's images, and it says more of them than their names.
        table.only_table(root)
        complete.remove("folders")
    errors: dict[str, UserError] = {}
    for layout in complete:
        try:
            return _described(name, root, layout, like, folder)
        except UserError as error:
            errors[layout] = error
    if errors:
        raise _of_all(root, errors)
    raise _unknown(root, parts)


def _of_all(root: str, errors: dict[str, UserError]) -> UserError:
    """What is wrong with a folder in the one layout that it may have, or in each of them."""
    if len(errors) == 1:
        return next(iter(errors.values()))
    each = "; ".join(f"as {layout}: {error.what}" for layout, error in errors.items())
    return UserError(f"{root}: {each}", "Mend what is wrong in the layout that it has")


def _described(name: str, root: str, layout: str, like: str | None, folder: str) -> Recognised:
    template = manifest.text_of(
        levir_cc.template(root) if layout == "levir_cc" else TEMPLATES[layout]
    )
    if like is not None:
        template = _joined(template, manifest.text_of(like))
    values = {"name": name, "layout": layout, "root": manifest.as_written(root, folder)}
    if layout == "table":
        values["table"] = f"{{file: {quoted(table.only_table(root))}}}"

    def read(names: Sequence[str]) -> tuple[Manifest, _References, list[str]]:
        draft = _with(template, {**values, "splits": f"[{', '.join(map(quoted, names))}]"})
        draft += "outside_root: true\n"  # to look at; what lies outside is a fault below
        settings = manifest.build(draft, f"{name}.yaml", root=root)
        return settings, *_references(settings)

    settings, images, outside = read(USUAL_SPLITS)
    if not images and layout == "table":  # which names splits as it likes
        names = dict.fromkeys(pair.split for pair in table.every_pair(settings))
        _check_apart(root, list(names))
        _, images, outside = read(
            sorted(names, key=lambda split: not split.lower().startswith("train"))
        )
    if not images:
        raise UserError(f"{root}: {layout} without a pair in it", "Look into its annotations")
    text = _with(template, {**values, "splits": f"[{', '.join(map(quoted, images))}]"})
    final = manifest.build(text, f"{name}.yaml", root=root)
    faults = datasets.reader(final).faults(final)
    if outside:
        faults.append(
            f"images outside the root, such as {outside[0]!r}: they need outside_root: true"
        )
    return Recognised(text, final, {split: len(pairs) for split, pairs in images.items()}, faults)


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


def _references(settings: Manifest) -> tuple[_References, list[str]]:
    """The images of the pairs of each split that has some, and images outside the root."""
    images: _References = {}
    outside: list[str] = []
    for split in settings.splits:
        try:
            image_pairs = datasets.pairs(settings, split)
        except annotation_files.MissingPart:
            continue
        references = [(pair.before, pair.after) for pair in image_pairs]
        outside += datasets.outsiders(settings, image_pairs)
        # Some layouts have one split under two names: `val` and `valid`.
        if references and references not in images.values():
            images[split] = references
    return images, outside


def _joined(data: str, work: str) -> str:
    """The sections about the data of one manifest's text, and all others of another's."""

    def sections(text: str, of_data: bool) -> list[str]:
        parts = re.split(r"(?m)^(?=\w)", text)[1:]  # without the comment at the top
        return [part for part in parts if (part.partition(":")[0] in OF_DATA) == of_data]

    return "".join([*sections(data, True), *sections(work, False)])


def _with(template: str, values: dict[str, str]) -> str:
    """A manifest's text with other values of top-level keys."""
    head = f"# {values['layout']}, as `cc-prep init` found it.\n"
    body = template
    while body.startswith("#"):
        body = body.partition("\n")[2]
    lines = body.splitlines()
    for key, value in values.items():
        setting = f"{key}: {value if key in ('splits', 'table') else quoted(value)}"
        lines_of_key = [i for i, line in enumerate(lines) if line.startswith(f"{key}:")]
        if lines_of_key:
            lines[lines_of_key[0]] = setting
        else:
            lines.insert(
                next(i for i, s in enumerate(lines) if s.startswith("splits:")) + 1, setting
            )
    return head + "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """The text as a value in YAML, in quotes where it would be read as a number or a date."""
    is_word = re.fullmatch(r"([A-Za-z/]|\.{1,2}/)[\w./-]*", text)  # 1e3 is text to PyYAML alone
    if is_word and yaml.safe_load(text) == text:
        return text
    scalar: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))
    return scalar.strip()


def _unknown(root: str, parts: dict[str, dict[str, bool]]) -> UserError:
    """What the folder has of the nearest layout, what is missing, and what else is there."""
    files = storage.list_files(root)
    archives = [n for n in files if n.lower().endswith(annotation_files.ARCHIVES)]
    if archives:
        return UserError(f"{root}: {', '.join(archives[:MAX_LISTED])} in it", "Unpack it there")
    if any(name in table.NAMES for name in files):
        try:
            table.only_table(root)
        except UserError as error:
            return error
    inner = annotation_files.visible(storage.list_folders(root))
    partial = {layout: present for layout, present in parts.items() if any(present.values())}
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
    listed = [f"{name}/ ({counted(len(stems), 'image')})" for name, stems in images.items()]
    contents = ", ".join([*listed, *files][:MAX_LISTED]) or "nothing"
    return UserError(
        f"{root}: no known layout; {contents} in it", _remedy_of_folders(root, images) or OWN_TABLE
    )


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
    first, second = sorted(couples[0], key=lambda name: name.lower() in ("after", "b"))
    return (
        f"If {first} holds the images before and {second} those after, rename them to before and "
        "after"
    )
