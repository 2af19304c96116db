"""Files beside the data that no pair has and no reader asks for: notes of `cc-prep init` and
`cc-prep inspect`.

A list of unchanged pairs under another name, or a folder of images without rows, is otherwise lost
in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cc_prep import storage
from cc_prep.datasets import exclusions
from cc_prep.datasets.layouts import folders, masks, table
from cc_prep.datasets.layouts.annotation_files import LITTER, is_image, visible
from cc_prep.datasets.layouts.file_names import canonical
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.media.images import CELL, FRAME
from cc_prep.records import ImagePair
from cc_prep.words import counted

# Beside the table that the page of `cc-train serve --collect` writes it has the same captions.
COLLECTED, ITS_COPY = "pairs.jsonl", "LevirCCcaptions.json"
LAYOUTS = ("table", "folders", "levir_cc")
ABOUT = re.compile(r"(readme|licen[cs]e|citation|changelog|dataset_infos?)\b.*", re.IGNORECASE)
OF_UNCHANGED = re.compile(r"(un|no[-_ ]?|not[-_ ]?)chang", re.IGNORECASE)
MAX_FOLDERS = 500  # that are listed
FEW = 3  # names in a line


def notes(manifest: Manifest, pairs: Iterable[ImagePair], faults: Iterable[str]) -> Iterator[str]:
    """What lies below the root and is not read, with what to do.

    Args:
        pairs: Of all splits.
        faults: Of the reader; what these name is not named again.
    """
    if manifest.layout not in LAYOUTS:
        return
    told = " ".join(faults)
    files = {canonical(file) for file in _files(manifest, pairs)}
    known = {canonical(name.rstrip("/")) for name in _known(manifest)}
    if manifest.layout == "table" and COLLECTED in known:
        known.add(ITS_COPY)
    read = files | known
    within = {""} | {folder for file in files for folder in _ancestors(file)}
    names: list[str] = []
    stray_images: list[str] = []
    for folder in sorted(within)[:MAX_FOLDERS]:
        prefix, path = (f"{folder}/", storage.join(manifest.root, folder)) if folder else (
            "", manifest.root
        )  # fmt: skip
        for name in map(canonical, visible(storage.list_files(path))):
            if f"{prefix}{name}" not in read and name.lower() not in LITTER:
                if is_image(name) and folder:
                    stray_images.append(f"{prefix}{name}")
                elif not ABOUT.fullmatch(name) and not _is_ours(storage.join(path, name)):
                    names.append(f"{prefix}{name}")
        for name in map(canonical, visible(storage.list_folders(path))):
            if f"{prefix}{name}" not in within and f"{prefix}{name}" not in known:
                names.append(f"{prefix}{name}/")
    names = [name for name in names if name not in told]
    if names:
        yield f"nobody reads {_first(names)}. {_remedy(manifest, names)}"
    stray_images = [name for name in stray_images if name not in told]
    if stray_images:
        are = "image is" if len(stray_images) == 1 else "images are"
        yield (
            f"{len(stray_images):,} {are} in no pair of the manifest's splits: "
            f"{_first(stray_images)}. Add them to the captions or their split to splits, or leave "
            "them"
        )
    if len(within) > MAX_FOLDERS:
        yield (
            f"{MAX_FOLDERS} of {len(within):,} folders were looked through for files that nobody "
            "reads"
        )


def _is_ours(path: str) -> bool:
    """Whether it is a list of exclusions, which `cc-prep inspect` may have written there."""
    try:
        return path.endswith(".csv") and exclusions.is_list(path)
    except (OSError, UserError):
        return False


def _remedy(manifest: Manifest, names: list[str]) -> str:
    if any(map(OF_UNCHANGED.search, names)):
        return {
            "folders": "Pairs in which nothing changed are listed in unchanged.txt",
            "table": "Pairs in which nothing changed have no_change in the column kind",
        }.get(manifest.layout, "Pairs in which nothing changed have changeflag 0")
    return "docs/data.md says under which names files are read"


def _files(manifest: Manifest, pairs: Iterable[ImagePair]) -> Iterator[str]:
    """The files of the images of pairs, from the root."""
    for pair in pairs:
        for reference in (pair.before, pair.after, *pair.masks):
            if CELL.fullmatch(reference):
                yield reference.rpartition("#")[0]
            else:
                yield reference.rpartition(FRAME)[0] or reference


def _known(manifest: Manifest) -> Iterator[str]:
    """What else is read, from the root: tables, lists and folders."""
    for file in (manifest.split_file, manifest.exclude):
        if file is not None:
            yield file
    if manifest.layout == "table":
        try:
            yield from (file for file, _ in table.files(manifest, manifest.splits))
        except UserError:  # which the reader says
            return
    elif manifest.layout == "levir_cc":
        settings = manifest.levir
        if settings.captions is not None:
            yield settings.captions
        for pattern in (
            settings.before, settings.after, settings.mask, settings.mask_before,
            settings.mask_after,
        ):  # fmt: skip
            for split in manifest.splits if pattern else ():
                yield str(pattern).replace("{split}", split)
    else:
        for prefix in ("", *(f"{split}/" for split in manifest.splits)):
            yield from (f"{prefix}{name}" for side in folders.SIDES for name in side)
            yield from (
                f"{prefix}{name}" for name in (folders.UNCHANGED, "captions", *masks.FOLDERS)
            )


def _ancestors(file: str) -> Iterator[str]:
    folder = file.rpartition("/")[0]
    while folder and "://" not in file and not file.startswith("/"):
        yield folder
        folder = folder.rpartition("/")[0]


def _first(names: list[str]) -> str:
    rest = f" and {counted(len(names) - FEW, 'other')}" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + rest
