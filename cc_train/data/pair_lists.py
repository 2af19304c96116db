"""Lists and folders of image pairs that are to be captioned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cc_prep import storage
from cc_prep.datasets.layouts import table
from cc_prep.datasets.layouts.annotation_files import by_stem
from cc_prep.datasets.layouts.file_names import Spelling
from cc_prep.errors import UserError

LISTS = (
    "Give a CSV whose first line is before,after, or JSON lines (.jsonl) with one object per pair, "
    'such as {"before": "a.png", "after": "b.png"}'
)
SIDES = ("before", "after")


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """The paths of before and after of each pair that a list or a folder names.

    Args:
        path: A CSV with the columns `before` and `after`, or JSON lines (.jsonl) with these keys;
            paths are relative to the file, URLs are used as they are. Or a folder with
            `before/NAME` and `after/NAME`, or with `NAME_before.*` and `NAME_after.*`; a name on
            one side alone gives a pair whose other image is missing.

    Raises:
        UserError: For anything else, and for an empty list.
    """
    name = str(path)
    if storage.is_folder(name):
        yield from _of_folder(name)
        return
    if not storage.exists(name):
        raise UserError(f"{path}: no such file or folder", "Check the path")
    if path.suffix == ".json":
        raise UserError(f"{path}: neither a CSV nor JSON lines", LISTS)
    try:
        rows = table.text_rows(name, storage.read_bytes(name), LISTS)
    except OSError as error:
        raise UserError(f"{path}: {error}", LISTS) from None
    spelling = Spelling()
    yield from [_of_row(path.parent, row, spelling) for row in rows]


def _of_row(folder: Path, row: table.Row, spelling: Spelling) -> tuple[str, str]:
    """The paths of a row, by the rules of the layout `table`; URLs and absolute paths are used as
    they are."""
    names = [row.text(side) for side in SIDES]
    if not all(names):
        raise UserError(f"{row.place}: no before or no after", "Give both images of it")
    before, after = (
        name if "://" in name else str(folder / spelling.of(str(folder), storage.with_home(name)))
        for name in names
    )
    return before, after


def _of_folder(folder: str) -> Iterator[tuple[str, str]]:
    inner = [storage.join(folder, side) for side in SIDES]
    if all(map(storage.is_folder, inner)):
        images = [_images(one) for one in inner]
        places = [f"{one}/{{}}.png" for one in inner]  # where an image should be
    else:
        images = [_with_ending(_images(folder), f"_{side}") for side in SIDES]
        places = [f"{folder}/{{}}_{side}.png" for side in SIDES]
    names = sorted(images[0].keys() | images[1].keys())
    if not names:
        raise UserError(
            f"{folder}: no pairs in it",
            "Give a folder with before/NAME and after/NAME, or NAME_before.* and NAME_after.*",
        )
    for name in names:
        yield (
            images[0].get(name, places[0].format(name)),
            images[1].get(name, places[1].format(name)),
        )


def _with_ending(images: dict[str, str], ending: str) -> dict[str, str]:
    """The images whose name has an ending, in small or capital letters, by the name without it."""
    return {
        name[: -len(ending)]: path for name, path in images.items() if name.lower().endswith(ending)
    }


def _images(folder: str) -> dict[str, str]:
    """The images of a folder by name without suffix, by the rules of the layout `folders`."""
    files = storage.list_files(folder)
    return {stem: storage.join(folder, name) for stem, name in by_stem(files).items()}
