"""CLEVR-DC (Kim et al., ICCV 2021): scenes seen from very different places.

    bef/0.png, aft/0.png      before and after (also `images/000000.png`, `sc_images/000000.png`)
    captions.json             {"0": [captions]} (also `change_captions.json`, "000000.png": …)
    split.json                {"train": [0, …], "val": […], "test": […]} (also `splits.json`)
    type_mapping.json         {"color": ["000000.png", …], …}, where there is one

Every index is one pair. Without a type mapping we assume that the indices come in six blocks of
8,000, an action each, in the order in which the authors' README lists the actions; in the sixth
nothing changes. The README does not say how the pairs are numbered.
"""

from __future__ import annotations

import re
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files
from cc_prep.datasets.layouts.annotation_files import Images, MissingPart, first_folder
from cc_prep.datasets.no_change_sentences import says_nothing_changed
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair

LAYOUT = "CLEVR-DC"
WANTED = (
    "Put CLEVR-DC there (bef/, aft/, captions.json, split.json), or name its folder with --root"
)
ACTIONS = ("color", "material", "add", "drop", "move", None)  # None: nothing changes
BLOCK = 8_000
STILL_TYPES = ("distractor", "no_change", "nochange", "none", "nothing")  # in a type_mapping.json
SIDES = (("bef", "images"), ("aft", "sc_images"))
CAPTIONS = ("captions.json", "captions_dc.json", "change_captions.json")
SPLITS = ("split.json", "splits.json", "split_dc.json")
TYPES = ("type_mapping.json", "type_mapping_dc.json")


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    # With distractors beside them, `images` and `sc_images` are CLEVR-Change's.
    change = storage.is_folder(storage.join(root, "nsc_images"))
    sides = [[f"{name}/" for name in (names[:1] if change else names)] for names in SIDES]
    return annotation_files.parts(root, [*sides, CAPTIONS, SPLITS])


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split, by index."""
    root = manifest.root
    splits = _splits(root)
    if split not in splits:
        raise MissingPart(
            f"{root}: no split {split!r} in its split file", f"It has: {', '.join(sorted(splits))}"
        )
    captions, types = _captions(root), _types(root)
    before, after = sides = [first_folder(root, names, LAYOUT) for names in SIDES]
    images = Images(root, sides)
    image_pairs = []
    for index in sorted(set(splits[split])):
        action = _action(index, types)
        image_pairs.append(
            ImagePair(
                dataset=manifest.name,
                split=split,
                id=f"{index:06d}",
                kind=NO_CHANGE if action is None else CHANGE,
                before=_image(images, before, index),
                after=_image(images, after, index),
                captions=captions.get(index, ()),
                change_type=action,
                image_id=f"{index:06d}.png",
            )
        )
    return image_pairs


def faults(manifest: Manifest) -> list[str]:
    """Indices in two splits, without captions or without a type, captions of no split, and kinds
    that the captions gainsay.
    """
    splits, captions = _splits(manifest.root), _captions(manifest.root)
    problems: list[str] = []
    split_of: dict[int, str] = {}
    for split, indices in splits.items():
        for index in indices:
            if index in split_of:
                problems.append(f"{index} is in {split_of[index]} and in {split}")
            split_of[index] = split
    missing = [index for index in sorted(split_of) if index not in captions]
    problems += [f"no captions for index {index} of {split_of[index]}" for index in missing]
    unassigned = captions.keys() - split_of.keys()
    if unassigned:
        problems.append(
            f"{len(unassigned)} captioned indices are in no split, such as {min(unassigned)}"
        )
    return problems + _kind_faults(_types(manifest.root), sorted(split_of), captions)


def _kind_faults(
    types: dict[int, str], indices: list[int], captions: dict[int, tuple[str, ...]]
) -> list[str]:
    """What tells that pairs count as unchanged by mistake. captions: by index."""
    untyped = [index for index in indices if types and index not in types]
    if untyped and any(kind.lower() in STILL_TYPES for kind in types.values()):
        return [
            f"{TYPES[0]}: no type for {len(untyped):,} of {len(indices):,} indices, such as "
            f"{untyped[0]}, which count as unchanged"
        ]
    still = [i for i in indices if captions.get(i) and _action(i, types) is None]
    changed = [i for i in still if not any(map(says_nothing_changed, captions[i]))]
    if 2 * len(changed) <= len(still):
        return []
    why = f"{TYPES[0]} does not name them" if types else f"the sixth {BLOCK:,} indices are assumed"
    return [
        f"{len(changed):,} of {len(still):,} pairs that count as unchanged have captions of a "
        f"change, such as {changed[0]} ({why}): say what changed in a {TYPES[0]}"
    ]


def _action(index: int, types: dict[int, str]) -> str | None:
    if index in types:
        return None if types[index].lower() in STILL_TYPES else types[index]
    if types:
        return None
    if index >= BLOCK * len(ACTIONS):
        raise UserError(
            f"index {index} is beyond the {BLOCK * len(ACTIONS):,} of {LAYOUT}",
            f"Say what changes there in a {TYPES[0]}",
        )
    return ACTIONS[index // BLOCK]


def _image(images: Images, folder: str, index: int) -> str:
    """The index as the authors write it, or padded as others need it."""
    padded_name = f"{folder}/{index:06d}"
    return images.find(padded_name) or images.of(f"{folder}/{index}")


def _number(name: Any) -> int | None:
    """0, "0", "0.png", "000000.png" and "CLEVR_default_000000.png" → 0."""
    match = re.fullmatch(r"(?:\D*_)?(\d{1,9})(?:\.png)?", str(name))
    return int(match[1]) if match else None


def _splits(root: str) -> dict[str, list[int]]:
    path = annotation_files.first_file(root, SPLITS)
    indices: dict[str, list[int]] = {}
    for split, entries in annotation_files.read_json(path, dict, LAYOUT).items():
        numbers = [_number(one) for one in entries] if isinstance(entries, list) else [None]
        if None in numbers:
            raise UserError(f"{path}: {split} is not a list of numbers", "Fetch it again")
        indices[split] = [number for number in numbers if number is not None]
    return indices


def _captions(root: str) -> dict[int, tuple[str, ...]]:
    path = annotation_files.first_file(root, CAPTIONS)
    captions: dict[int, tuple[str, ...]] = {}
    for name, sentences in annotation_files.read_json(path, dict, LAYOUT).items():
        number = _number(name)
        if number is None or not annotation_files.are_captions(sentences):
            raise UserError(f"{path}: {name!r} has no list of captions", "Fix the file")
        captions[number] = tuple(one.strip() for one in sentences if one.strip())
    return captions


def _types(root: str) -> dict[int, str]:
    path = annotation_files.first_file(root, TYPES)
    if not storage.exists(path):
        return {}
    types: dict[int, str] = {}
    for kind, names in annotation_files.read_json(path, dict, LAYOUT).items():
        for name in names if isinstance(names, list) else [None]:
            number = _number(name)
            if number is None:
                raise UserError(f"{path}: {kind}: {name!r} is no index", "Fix the file")
            types[number] = str(kind)
    return types
