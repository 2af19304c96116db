"""What readers share: JSON files of annotations, and image names whose endings differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cc_prep import storage, text_files
from cc_prep.datasets.layouts.file_names import canonical, nearest, told_apart
from cc_prep.errors import UserError
from cc_prep.media.images import ENDINGS, PREFERRED

LITTER = ("thumbs.db", "desktop.ini")  # Windows leaves them in folders of images
IDS = ("uid", "img_id", "filename", "id", "name")  # keys by which rows are found
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar")


def read_json(path: str, kind: type, layout: str) -> Any:
    """The value in a JSON file, a list or an object as `kind` says. Raises UserError."""
    try:
        value = storage.read_json(path)
    except FileNotFoundError:
        raise missing(path, "file", layout) from None
    except UnicodeDecodeError as error:
        raise text_files.not_utf8(path, error) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", "Fetch or write it again") from None
    if not isinstance(value, kind):
        what = "list" if kind is list else "object"
        raise UserError(f"{path}: not a JSON {what}", "Fetch or write it again")
    return value


class MissingPart(UserError):
    """A file, folder or split of a layout that is not there; any other damage is no such error."""


def missing(path: str, what: str, layout: str) -> MissingPart:
    """The error of a file or folder that a layout has and that is not there."""
    path = path.replace("/./", "/")
    folder, name = path.rstrip("/").rpartition("/")[::2]
    archives = [one for one in storage.list_files(folder) if one.lower().endswith(ARCHIVES)]
    # What bears the name is the likeliest to hold it.
    archives.sort(key=lambda one: not one.startswith(name.partition(".")[0]))
    near = nearest(name, [*storage.list_folders(folder), *storage.list_files(folder)])
    if near is not None:
        return MissingPart(f"no {what} {path}, but {near} is there", f"Rename it to {name}")
    if archives:
        return MissingPart(
            f"no {what} {path}, but {archives[0]} is there", "Unpack the archive there"
        )
    return MissingPart(f"no {what} {path}", f"{layout}'s layout has it; is --root its top folder?")


def check_rows(path: str, entries: list[Any], checks: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raises UserError for a row that lacks a key, or whose value fails its check."""
    for number, row in enumerate(entries, 1):
        values = row if isinstance(row, dict) else {}
        for key, is_valid in checks.items():
            if key not in values or not is_valid(values[key]):
                id = next((values[name] for name in IDS if is_id(values.get(name))), None)
                place = text_files.at_row(path, number, id)
                raise UserError(f"{place}: no usable {key!r}", "Fix the file")


def is_id(value: Any) -> bool:
    """Whether a value can be an id: text or a whole number."""
    return isinstance(value, str) or type(value) is int


def are_captions(value: Any) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def split_file(folder: str, split: str) -> str:
    """`<split>.json`, by whichever of its names is there: `val` and `valid` are the same."""
    others = {"val": "valid", "valid": "val"}
    return first_file(folder, [f"{n}.json" for n in (split, others.get(split)) if n])


def is_image(name: str) -> bool:
    """Whether a file's name ends as that of an image; small and capital letters are the same."""
    return name.lower().endswith(ENDINGS)


def visible(names: Iterable[str]) -> list[str]:
    """The names but those with a dot before them, as macOS puts `._a.png` beside `a.png`."""
    return [name for name in names if not name.startswith(".")]


def by_stem(files: Iterable[str]) -> dict[str, str]:
    """The images among some files of a folder by the name without its ending, in canonical form.

    Of several images of one name it is one of a preferred format. Hidden files are none of them.
    """
    images: dict[str, str] = {}
    for name in sorted(filter(is_image, visible(files)), key=_rank):
        images.setdefault(_stem(name), name)
    return images


def image_faults(root: str, folder: str) -> list[str]:
    """Images of a folder that are left out: of no known ending, second ones of a name, and those
    in folders within it.

    Files that Windows leaves, and those about an image of their name, such as `a.xml` beside
    `a.png`, are none of them.
    """
    files = visible(storage.list_files(storage.join(root, folder)))
    files = [name for name in files if name.lower() not in LITTER]
    images = by_stem(files)
    problems = [
        f"{folder}/{name} has no ending of an image"
        for name in files
        if not is_image(name)
        and not any(canonical(name[:i]) in images for i, dot in enumerate(name) if dot == ".")
    ]
    for name in sorted(filter(is_image, files), key=_rank):
        if images[_stem(name)] != name:
            left_out, taken = told_apart(name, images[_stem(name)])
            problems.append(f"{folder}/{left_out} is left out: {taken} has the same name")
    return problems + inner_folders(root, folder)


def inner_folders(root: str, folder: str) -> list[str]:
    """A fault for each folder within a folder of files, since nothing in it is read."""
    names = visible(storage.list_folders(storage.join(root, folder)))
    return [f"{folder}/{name}/ is left out: put its files into {folder}/" for name in names]


def _stem(name: str) -> str:
    return canonical(name.rpartition(".")[0])


def _rank(name: str) -> tuple[bool, str]:
    return not name.lower().endswith(PREFERRED), name


class Images:
    """Images of some folders below a root by the name without its ending."""

    def __init__(self, root: str, folders: Iterable[str]) -> None:
        self._paths: dict[str, str] = {}
        for folder in folders:
            images = by_stem(storage.list_files(storage.join(root, folder)))
            self._paths |= {
                canonical(f"{folder}/{stem}"): f"{folder}/{name}" for stem, name in images.items()
            }

    def find(self, reference: str) -> str | None:
        """The image of `folder/name`; None where there is none."""
        return self._paths.get(canonical(reference))

    def of(self, reference: str) -> str:
        """The image of `folder/name`; where there is none the PNG that should be there."""
        return self.find(reference) or f"{reference}.png"


def parts(root: str, part_names: Iterable[Iterable[str]]) -> dict[str, bool]:
    """Whether each part of a layout is there, by the name that is, else by its first.

    Args:
        part_names: The names that each part may have; those that end in `/` are folders.
    """
    presence = {}
    for names in part_names:
        alternatives = list(names)
        there = [
            name
            for name in alternatives
            if (storage.is_folder if name.endswith("/") else storage.exists)(
                storage.join(root, name)
            )
        ]
        presence[(there or alternatives)[0]] = bool(there)
    return presence


def first_file(root: str, names: Iterable[str]) -> str:
    """The first of some files that is there; else where the first should be."""
    paths = [storage.join(root, name) for name in names]
    return next((path for path in paths if storage.exists(path)), paths[0])


def first_folder(root: str, names: Iterable[str], layout: str) -> str:
    """The first of some folders below `root` that is there. Raises UserError."""
    candidates = list(names)
    for name in candidates:
        if storage.is_folder(storage.join(root, name)):
            return name
    raise missing(storage.join(root, candidates[0]), "folder", layout)
