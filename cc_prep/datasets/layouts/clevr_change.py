"""CLEVR-Change in its published layout; `cc-prep synth` writes the same.

    images/CLEVR_default_000000.png         before
    sc_images/CLEVR_semantic_000000.png     after, with a change
    nsc_images/CLEVR_nonsemantic_000000.png after, without (a distractor)
    change_captions.json, no_change_captions.json   {"CLEVR_default_000000.png": [captions]}
    splits.json                             {"train": [0, …], "val": […], "test": […]}
    type_mapping.json                       {"color": ["000000.png", …], …}

Each index gives two pairs. Beyond the published files, `masks/000000.png` (and `masks_before`,
`masks_after`), the true frames in between, `truth/sc/000000/01.png` … `07.png` (and `nsc`), and
what the renderer wrote of the changes of all its scenes, `facts.json`, are read where they are.
Where there are masks, those of a pair without change are zero everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files, masks
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, EMPTY_MASK, NO_CHANGE, Facts, ImagePair

LAYOUT = "CLEVR-Change"
FOLDERS = ("images", "sc_images", "nsc_images")
FILES = ("change_captions.json", "no_change_captions.json", "splits.json", "type_mapping.json")
WANTED = (
    "Put CLEVR-Change there (images/, sc_images/, nsc_images/, *.json), or name its folder with "
    "--root, or make a stand-in: cc-prep synth {m.root}"
)


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return annotation_files.parts(
        root, [*([f"{name}/"] for name in FOLDERS), *([name] for name in FILES)]
    )


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """Change and no-change pair of every index of a split, by index."""
    root = manifest.root
    for folder in FOLDERS:
        annotation_files.first_folder(root, [folder], LAYOUT)
    indices = _splits(root).get(split)
    if indices is None:
        raise annotation_files.MissingPart(
            f"{storage.join(root, 'splits.json')}: no split {split!r}",
            f"It has: {', '.join(sorted(_splits(root)))}",
        )
    captions = {CHANGE: _captions(root, "change"), NO_CHANGE: _captions(root, "no_change")}
    types = _types(root)
    mask_files = {
        folder: frozenset(storage.list_files(storage.join(root, folder), ".png"))
        for folder in masks.FOLDERS
    }
    # Asked once: on an object store a look for each of 80,000 pairs would take an hour.
    has_truth = storage.is_folder(storage.join(root, "truth"))
    truth = _truth(root, sorted(set(indices))) if has_truth else {}
    path = storage.join(root, "facts.json")
    facts = _facts(path) if storage.exists(path) else {CHANGE: {}, NO_CHANGE: {}}
    return [
        _pair(
            manifest,
            split,
            index,
            kind,
            captions=captions[kind],
            types=types,
            mask_files=mask_files,
            truth=truth,
            facts=facts[kind],
        )
        for index in sorted(set(indices))
        for kind in (CHANGE, NO_CHANGE)
    ]


def faults(manifest: Manifest) -> list[str]:
    """Indices in two splits, twice in one, or without captions, a change type or true frames."""
    root, problems = manifest.root, []
    split_of: dict[int, str] = {}
    splits = _splits(root)
    for split, indices in splits.items():
        for index in indices:
            if index in split_of:
                problems.append(f"splits.json: {index} is in {split_of[index]} and in {split}")
            split_of[index] = split
    types = _types(root)
    for kind in ("change", "no_change"):
        captions = _captions(root, kind)
        missing = [i for i in sorted(split_of) if f"CLEVR_default_{i:06d}.png" not in captions]
        problems += [
            f"{kind}_captions.json: nothing for index {i} of {split_of[i]}" for i in missing
        ]
    problems += [
        f"type_mapping.json: no type for index {i}" for i in sorted(split_of) if i not in types
    ]
    if storage.is_folder(storage.join(root, "truth")):
        for indices in splits.values():
            problems += _truth_faults(root, sorted(set(indices)))
    return problems


def _pair(
    manifest: Manifest,
    split: str,
    index: int,
    kind: str,
    *,
    captions: dict[str, list[str]],
    types: dict[int, str],
    mask_files: dict[str, frozenset[str]],
    truth: dict[str, tuple[tuple[float, str], ...]],
    facts: dict[str, Facts],
) -> ImagePair:
    number = f"{index:06d}"
    folder, name = ("sc", "semantic") if kind == CHANGE else ("nsc", "nonsemantic")
    before = f"CLEVR_default_{number}.png"
    pair = ImagePair(
        dataset=manifest.name,
        split=split,
        id=number,
        kind=kind,
        before=f"images/{before}",
        after=f"{folder}_images/CLEVR_{name}_{number}.png",
        captions=tuple(captions.get(before, ())),
        change_type=types.get(index) if kind == CHANGE else None,
        truth=truth.get(_truth_folder(index, kind), ()),
        image_id=_image_id(number, kind),
        facts=facts.get(before),
    )
    # Both pairs of an index have masks, or none has.
    references = (
        (f"{folder}/{number}.png" if kind == CHANGE else EMPTY_MASK)
        if f"{number}.png" in files
        else None
        for folder, files in mask_files.items()
    )
    return masks.with_masks(pair, *references)


def _image_id(number: str, kind: str) -> str:
    """The official id of a pair."""
    return f"{number}.png" if kind == CHANGE else f"{number}.png_n"


def _truth_folder(index: int, kind: str) -> str:
    return f"truth/{'sc' if kind == CHANGE else 'nsc'}/{index:06d}"


def _true_frames(root: str, indices: Iterable[int]) -> dict[str, dict[int, str]]:
    """The true frames of each folder by their numbers."""
    folders = [_truth_folder(index, kind) for index in indices for kind in (CHANGE, NO_CHANGE)]
    return {
        folder: {
            int(name[:-4]): f"{folder}/{name}"
            for name in storage.list_files(storage.join(root, folder), ".png")
            if name[:-4].isdecimal()
        }
        for folder in folders
    }


def _last(frames: Mapping[str, Iterable[int]]) -> int:
    """The number of the last true frame, which is the same for all pairs of a split.

    Where they differ it is that of most pairs, or of two alike the larger one.
    """
    counts = Counter(max(numbers) for numbers in frames.values() if numbers)
    return max(counts, key=lambda last: (counts[last], last), default=0)


def _truth(root: str, indices: Iterable[int]) -> dict[str, tuple[tuple[float, str], ...]]:
    """(time, image) of the true frames by folder.

    A folder whose last one is another has none: its frames may be fewer, or at other times, and
    nothing says which. Where another file is missing, the others keep their times.
    """
    frames = _true_frames(root, indices)
    last = _last(frames)
    return {
        folder: tuple((number / (last + 1), image) for number, image in images.items())
        for folder, images in frames.items()
        if last == max(images, default=0)
    }


def _truth_faults(root: str, indices: Iterable[int]) -> list[str]:
    """Folders that lack true frames which others of their split have."""
    frames = _true_frames(root, indices)
    last = _last(frames)
    return [
        f"{folder}: {len(images)} true frames, not {last}"
        + ("" if max(images) == last else f"; left out, for their last is not {last:02d}.png")
        for folder, images in frames.items()
        if images and (len(images) < last or max(images) > last)
    ]


def _splits(root: str) -> dict[str, list[int]]:
    path = storage.join(root, "splits.json")
    value: dict[str, list[int]] = annotation_files.read_json(path, dict, LAYOUT)
    if not all(
        isinstance(v, list) and all(type(i) is int and 0 <= i < 10**6 for i in v)
        for v in value.values()
    ):
        raise UserError(f"{path}: a split is not a list of numbers", "See docs/formats.md")
    return value


def _captions(root: str, kind: str) -> dict[str, list[str]]:
    path = storage.join(root, f"{kind}_captions.json")
    value: dict[str, list[str]] = annotation_files.read_json(path, dict, LAYOUT)
    for name, captions in value.items():
        if not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
            raise UserError(f"{path}: {name} has no list of captions", "Fix the file")
    return value


def facts_by_image_id(path: str) -> dict[str, Facts]:
    """What truly changed by the pairs' official ids, of a file that `cc-prep synth` wrote.

    Raises:
        UserError: For a file that is not there or is no such file.
    """
    return {
        _image_id(name.removeprefix("CLEVR_default_").removesuffix(".png"), kind): facts
        for kind, by_name in _facts(path).items()
        for name, facts in by_name.items()
    }


def _facts(path: str) -> dict[str, dict[str, Facts]]:
    """By kind and name of the before image."""
    value: dict[str, Any] = annotation_files.read_json(path, dict, LAYOUT)
    facts_of: dict[str, dict[str, Facts]] = {}
    for kind in (CHANGE, NO_CHANGE):
        entries = value.get(kind)
        if not isinstance(entries, dict):
            raise UserError(f"{path}: no {kind} in it", "Run cc-prep synth again")
        try:
            facts_of[kind] = {name: Facts.from_json(facts) for name, facts in entries.items()}
        except ValueError as error:
            raise UserError(f"{path}: {kind}: {error}", "Run cc-prep synth again") from None
    return facts_of


def _types(root: str) -> dict[int, str]:
    path = storage.join(root, "type_mapping.json")
    types: dict[int, str] = {}
    for name, files in annotation_files.read_json(path, dict, LAYOUT).items():
        if not isinstance(files, list):
            raise UserError(f"{path}: {name} is not a list of file names", "Fix the file")
        for file in files:
            stem = str(file).removesuffix(".png")
            if not stem.isdecimal():
                raise UserError(f"{path}: {name}: {file!r} is not NNNNNN.png", "Fix the file")
            types[int(stem)] = name
    return types
