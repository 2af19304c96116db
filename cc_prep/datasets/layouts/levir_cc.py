"""The LEVIR family: satellite images with five sentences a pair, and masks where there are any.

LEVIR-CC (Liu et al., TGRS 2022) and LEVIR-MCI, which adds `label` (Change-Agent, TGRS 2024):

    images/{train,val,test}/A/train_000016.png   before; B: after; label: 0, 128 road, 255 building
    LevirCCcaptions.json   {"images": [{"filename", "split", "changeflag", "sentences": [{"raw"}]}]}

WHU-CDC has the same folders, `whuCCcaptions.json` and labels of buildings alone. SECOND-CC has
maps of land cover in place of labels:

    {train,val,test}/rgb/A/NAME.png, rgb/B       before, after
    {train,val,test}/sem/A/NAME.png, sem/B       white where nothing changed, else a colour a class
    SECOND-CC-AUG.json                           as LevirCCcaptions.json

`levir` and `masks` of the manifest say which. `changeflag` 0 makes a pair one without change.
Other data sets have these folders and rows under other names, some without `changeflag`, some
without `split`, for which the folder of an image stands, and some without captions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files, masks
from cc_prep.datasets.layouts.annotation_files import Images, MissingPart, first_folder
from cc_prep.datasets.layouts.file_names import canonical
from cc_prep.datasets.no_change_sentences import all_say_so
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.words import counted

LAYOUT = "LEVIR-CC"
SPLIT = "{split}"  # in the name of a folder
FILES = ("LevirCCcaptions.json", "SECOND-CC-AUG.json", "whuCCcaptions.json")
FOLDERS = ("images/", "train/rgb/", "val/rgb/", "test/rgb/")
WANTED = (
    "Put the data set there ({m.levir.captions}, {m.levir.before}), or name its folder with --root"
)


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return annotation_files.parts(root, [FOLDERS, FILES])


def template(root: str) -> str:
    """The name of the manifest that fits the data in `root`."""
    if storage.exists(storage.join(root, "SECOND-CC-AUG.json")):
        return "second_cc"
    if storage.exists(storage.join(root, "whuCCcaptions.json")):
        return "whu_cdc"
    labels = (storage.join(root, f"images/{split}/label") for split in ("train", "val", "test"))
    return "levir_mci" if any(map(storage.is_folder, labels)) else "levir"


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split in the order of the file."""
    sides = _sides(manifest, split)
    mask_folders = _mask_folders(manifest, split)
    images = Images(manifest.root, [*sides, *filter(None, mask_folders)])
    image_pairs = []
    for row in _rows(manifest):
        if row["split"] == split:
            stem = _stem(row)
            before, after = (images.of(f"{side}/{stem}") for side in sides)
            captions = tuple(filter(None, map(_sentence, row["sentences"])))
            flag = row.get("changeflag")
            is_unchanged = not flag
            if flag is None:
                is_unchanged = manifest.captions.mark_unchanged and all_say_so(captions)
            pair = ImagePair(
                dataset=manifest.name,
                split=split,
                id=stem,
                kind=NO_CHANGE if is_unchanged else CHANGE,
                before=before,
                after=after,
                captions=captions,
                image_id=row["filename"],
            )
            references = (
                images.find(f"{folder}/{stem}") if folder else None for folder in mask_folders
            )
            land_cover = manifest.masks.land_cover
            image_pairs.append(masks.with_masks(pair, *references, land_cover=land_cover))
    return masks.with_empty(image_pairs)


def faults(manifest: Manifest) -> list[str]:
    """Files twice, empty sentences, labels of other names than their images, unknown splits."""
    rows, file = _rows(manifest), manifest.levir.captions or LAYOUT
    counts = Counter((row["split"], row["filename"]) for row in rows)
    problems = [
        f"{file}: {name} of {split} is there twice" for (split, name), n in counts.items() if n > 1
    ]
    empty = sum(not _sentence(one) for row in rows for one in row["sentences"])
    if empty:
        problems.append(f"{file}: {counted(empty, 'empty sentence')}, left out")
    for split in manifest.splits:
        stems = {_stem(row) for row in rows if row["split"] == split}
        for folder in filter(None, _mask_folders(manifest, split)):
            # Of an image that has no row, nobody asks.
            problems += masks.stray_faults(manifest.root, folder, stems, of_others=False)
    of_splits = Counter(row["split"] for row in rows)
    for split in sorted(of_splits.keys() - {*manifest.splits}):
        error = _missing_side(manifest, split)
        what = f"split {split} of {counted(of_splits[split], 'pair')} is not in the manifest"
        way = f"{error.what}. {error.remedy}" if error else "add it to splits, or rename it"
        problems.append(f"{file}: {what}: {way}")
    return problems


def _missing_side(manifest: Manifest, split: str) -> MissingPart | None:
    """The error of a side of a split that has no folder."""
    try:
        _sides(manifest, split)
    except MissingPart as error:
        return error
    return None


def _sides(manifest: Manifest, split: str) -> list[str]:
    """The folders of before and after. Raises MissingPart."""
    patterns = (manifest.levir.before, manifest.levir.after)
    return [
        first_folder(manifest.root, [pattern.replace(SPLIT, split)], LAYOUT) for pattern in patterns
    ]


def _mask_folders(manifest: Manifest, split: str) -> list[str | None]:
    patterns = (manifest.levir.mask, manifest.levir.mask_before, manifest.levir.mask_after)
    return [pattern and pattern.replace(SPLIT, split) for pattern in patterns]


def _stem(row: dict[str, Any]) -> str:
    name: str = row["filename"]
    return name.rpartition(".")[0] or name


def _sentence(entry: dict[str, Any]) -> str:
    return str(entry["raw"]).strip()


def _rows(manifest: Manifest) -> list[dict[str, Any]]:
    """The rows of the file of captions, or one for each image before. Raises UserError."""
    if manifest.levir.captions is None:
        return [
            {"filename": name, "split": split, "sentences": []}
            for split in manifest.splits
            for name in _images_before(manifest, split).values()
        ]
    path = storage.resolve(manifest.root, manifest.levir.captions)
    entries: list[dict[str, Any]] = annotation_files.read_json(path, dict, LAYOUT).get("images")
    rows = entries if isinstance(entries, list) else []
    if any(isinstance(row, dict) and "split" not in row for row in rows):
        rows = _with_splits(manifest, rows)
    checks = {
        "filename": lambda value: isinstance(value, str) and bool(value),
        "split": lambda value: isinstance(value, str),
        "sentences": lambda value: (
            isinstance(value, list) and all(isinstance(one, dict) and "raw" in one for one in value)
        ),
    }
    annotation_files.check_rows(path, rows, checks)
    flagged = [row for row in rows if "changeflag" in row]
    annotation_files.check_rows(path, flagged, {"changeflag": lambda value: value in (0, 1)})
    return rows


def _with_splits(manifest: Manifest, rows: list[Any]) -> list[Any]:
    """The rows, those without a split in that in whose folder their image lies, or the first."""
    split_of = {
        stem: split
        for split in reversed(manifest.splits)
        for stem in _images_before(manifest, split)
    }
    first = manifest.splits[0]
    return [
        {"split": split_of.get(canonical(_stem(row)), first), **row}
        if isinstance(row, dict) and isinstance(row.get("filename"), str)
        else row
        for row in rows
    ]


def _images_before(manifest: Manifest, split: str) -> dict[str, str]:
    """The images in a split's folder of images before, by the name without its ending."""
    pattern = manifest.levir.before
    if SPLIT not in pattern and split != manifest.splits[0]:
        return {}  # all are of the first split
    folder = storage.join(manifest.root, pattern.replace(SPLIT, split))
    return annotation_files.by_stem(storage.list_files(folder))
