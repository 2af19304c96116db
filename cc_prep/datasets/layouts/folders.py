"""A user's own pairs in folders: the same name in `before` and `after` is a pair.

    [split/]before/NAME.png, [split/]after/NAME.png    also A and B; endings may differ
    [split/]captions/NAME.txt                          a caption a line, where there are any
    [split/]unchanged.txt                              names of pairs in which nothing changed
    [split/]masks/NAME.png                             non-zero where something changed
    [split/]masks_before/NAME.png, masks_after/…       what vanished; what appeared

Without folders of splits all pairs belong to the manifest's first one, or to what `split_file`
says.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cc_prep import storage, text_files
from cc_prep.datasets.layouts import annotation_files, masks, split_file, table
from cc_prep.datasets.layouts.annotation_files import LITTER, Images, by_stem, is_image, visible
from cc_prep.datasets.layouts.file_names import canonical, nearest
from cc_prep.datasets.no_change_sentences import all_say_so
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair

WANTED = (
    "Put the images there as before/NAME.png and after/NAME.png, or name the folder with --root"
)
SIDES = (("before", "after"), ("A", "B"))
UNCHANGED = "unchanged.txt"
# What other code calls the folders of masks and of captions.
MASK_FOLDER = re.compile(
    r"(?:change[-_]?)?(?:masks?|labels?|annotations?|gts?|ground[-_]?truths?|cm|segmentations?)"
    r"(?:[-_](?:before|after))?",
    re.IGNORECASE,
)
CAPTION_FOLDER = re.compile(r"captions?|sentences?|texts?|descriptions?", re.IGNORECASE)


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    prefixes = ("", *(f"{split}/" for split in ("train", "val", "test")))
    part_names = [
        [f"{prefix}{sides[i]}/" for sides in SIDES for prefix in prefixes] for i in (0, 1)
    ]
    return annotation_files.parts(root, part_names)


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split by name. Raises UserError."""
    return [pair for pair in every_pair(manifest, split) if pair.split == split]


def every_pair(manifest: Manifest, captioned: str | None = None) -> list[ImagePair]:
    """The pairs of all splits by split and name. Raises UserError.

    Args:
        captioned: The split whose captions are needed; None for all. The others' are left out where
            folders say which these are, since each is a file to read.
    """
    if manifest.split_file is None:
        listed = [
            pair for prefix in _prefixes(manifest) for pair in _of(manifest, prefix, captioned)
        ]
        return masks.with_empty(listed)
    return split_file.with_splits(manifest, pairs_for_split_file(manifest))


def pairs_for_split_file(manifest: Manifest) -> list[ImagePair]:
    """All pairs, with the ids that a split file uses for them. Raises UserError.

    Such an id includes the pair's folder, since several folders may hold the same name.
    """
    listed = [
        replace(pair, id=f"{prefix}{pair.id}")
        for prefix in _prefixes(manifest, any_name=True)
        for pair in _of(manifest, prefix)
    ]
    return masks.with_empty(listed)


def _prefixes(manifest: Manifest, any_name: bool = False) -> list[str]:
    """Prefixes of folders of pairs: "" for the root, else `split/` for each split with a folder.

    Args:
        any_name: Where no split has one, each folder with pairs: the splits of a split file need
            not be named like the folders that were split.

    Raises:
        UserError: Where there is none.
    """
    root = manifest.root
    if _sides(root, ""):
        return [""]
    prefixes = [f"{split}/" for split in manifest.splits if _sides(root, f"{split}/")]
    if any_name and not prefixes:
        prefixes = [f"{n}/" for n in storage.list_folders(root) if _sides(root, f"{n}/")]
    if not prefixes:
        raise UserError(f"{root}: no folders before and after in it", WANTED)
    return prefixes


def faults(manifest: Manifest) -> list[str]:
    """Images without their counterpart, captions, masks and names in unchanged.txt without images,
    files that are no images, and tables and folders that are left out.

    Raises:
        UserError: Where there are no folders of images.
    """
    root = manifest.root
    problems = [
        f"{name} is not read, with its captions, kinds and splits: that takes layout: table"
        for name in storage.list_files(root)
        if name in table.NAMES
    ]
    prefixes = _prefixes(manifest, any_name=manifest.split_file is not None)
    problems += [
        f"{name}/ has pairs too, which are left out: "
        + ("those in the root are read" if prefixes == [""] else "splits does not name it")
        for name in storage.list_folders(root)
        if f"{name}/" not in prefixes and _sides(root, f"{name}/")
    ]
    problems += _unread_folders(root, prefixes)
    for prefix in prefixes:
        sides = _sides(root, prefix)
        assert sides is not None
        names = [_names(root, f"{prefix}{side}") for side in sides]
        problems += [
            f"{prefix}{side}/{name} has no counterpart in {prefix}{other}" + _near(name, others)
            for side, other, own, others in zip(sides, sides[::-1], names, names[::-1], strict=True)
            for name in sorted(own - others)
        ]
        problems += _caption_faults(root, f"{prefix}captions", names[0] | names[1])
        for folder in masks.FOLDERS:
            problems += masks.stray_faults(root, f"{prefix}{folder}", names[0] | names[1])
        unknown = sorted(_unchanged(root, prefix) - (names[0] | names[1]))
        problems += [f"{prefix}{UNCHANGED}: {name} is the name of no pair" for name in unknown]
        for folder in (*sides, *masks.FOLDERS):
            problems += annotation_files.image_faults(root, f"{prefix}{folder}")
    return problems


def _near(name: str, others: set[str]) -> str:
    """For a message, the name that was probably meant."""
    near = nearest(name, others)
    return f", which has {near}" if near is not None else ""


def _caption_faults(root: str, folder: str, names: set[str]) -> list[str]:
    """Captions of no pair, and what is in their folder and not read."""
    files = visible(storage.list_files(storage.join(root, folder)))
    others = [n for n in files if not n.endswith(".txt") and n.lower() not in LITTER]
    captions = [n for n in files if n.endswith(".txt")]
    strays = [n for n in captions if canonical(n.removesuffix(".txt")) not in names]
    return [
        *(f"{folder}/{name} belongs to no pair" for name in strays),
        *(f"{folder}/{name} is left out: its name does not end in .txt" for name in others),
        *annotation_files.inner_folders(root, folder),
    ]


def _unread_folders(root: str, prefixes: list[str]) -> list[str]:
    """Folders of masks or captions that are called otherwise, or lie outside of splits' folders."""
    own = ("captions", *masks.FOLDERS)
    problems = []
    for prefix in dict.fromkeys(["", *prefixes]):
        for name in storage.list_folders(storage.join(root, prefix.rstrip("/"))):
            patterns = ((MASK_FOLDER, "masks"), (CAPTION_FOLDER, "captions"))
            meant = next((own_name for one, own_name in patterns if one.fullmatch(name)), None)
            if meant is not None and prefix not in prefixes:
                problems.append(f"{name}/ is not read: each split has its own {meant}/")
            elif meant is not None and name not in own:
                remedy = f"call it {meant}/, if that is what it holds"
                problems.append(f"{prefix}{name}/ is not read: {remedy}")
    return problems


def _of(manifest: Manifest, prefix: str, captioned: str | None = None) -> list[ImagePair]:
    """The pairs of a folder; with captions if it is that of the split `captioned`, or for None."""
    root, split = manifest.root, prefix.rstrip("/") or manifest.splits[0]
    sides = _sides(root, prefix)
    assert sides is not None
    mask_folders = [f"{prefix}{folder}" for folder in masks.FOLDERS]
    images = Images(root, [*(f"{prefix}{side}" for side in sides), *mask_folders])
    names = _names(root, f"{prefix}{sides[0]}") | _names(root, f"{prefix}{sides[1]}")
    unchanged = _unchanged(root, prefix)
    captions = _captions(root, prefix, names) if captioned in (None, split) else {}
    says_so = manifest.captions.mark_unchanged
    return [
        masks.with_masks(
            ImagePair(
                dataset=manifest.name,
                split=split,
                id=name,
                kind=NO_CHANGE
                if name in unchanged or (says_so and all_say_so(captions.get(name, ())))
                else CHANGE,
                before=images.of(f"{prefix}{sides[0]}/{name}"),
                after=images.of(f"{prefix}{sides[1]}/{name}"),
                captions=captions.get(name, ()),
            ),
            *(images.find(f"{folder}/{name}") for folder in mask_folders),
            land_cover=manifest.masks.land_cover,
        )
        # A name on one side alone is a pair too: the job sets it aside and names what is missing.
        for name in sorted(names)
    ]


def _captions(root: str, prefix: str, names: set[str]) -> dict[str, tuple[str, ...]]:
    """The captions of those names that have a file of them. Raises UserError."""
    folder = storage.join(root, f"{prefix}captions")
    file_of = {canonical(n.removesuffix(".txt")): n for n in storage.list_files(folder, ".txt")}
    wanted = sorted(file_of.keys() & names)
    paths = [storage.join(folder, file_of[name]) for name in wanted]
    return {
        name: _lines(path, content)
        for name, path, content in zip(wanted, paths, storage.read_many(paths), strict=True)
        if content is not None
    }


def _unchanged(root: str, prefix: str) -> frozenset[str]:
    """The names in the list of pairs without a change, as NAME or NAME.png; none without a list."""
    path = storage.join(root, f"{prefix}{UNCHANGED}")
    if not storage.exists(path):
        return frozenset()
    lines = _lines(path, storage.read_bytes(path))
    names = (name.rpartition(".")[0] if is_image(name) else name for name in lines)
    return frozenset(map(canonical, names))


def _lines(path: str, content: bytes) -> tuple[str, ...]:
    """The lines of a text file that are not empty. Raises UserError, which names it."""
    lines = text_files.decode(content, path).replace("\r", "\n").split("\n")
    return tuple(line.strip() for line in lines if line.strip())


def has_sides(root: str, prefix: str) -> bool:
    """Whether a folder holds the two folders of images.

    Args:
        prefix: "" for the root, else `name/`.
    """
    return _sides(root, prefix) is not None


def _sides(root: str, prefix: str) -> tuple[str, str] | None:
    for sides in SIDES:
        if all(storage.is_folder(storage.join(root, f"{prefix}{side}")) for side in sides):
            return sides
    return None


def _names(root: str, folder: str) -> set[str]:
    return set(by_stem(storage.list_files(storage.join(root, folder))))
