"""Writes composed pairs in CLEVR-Change's layout: before, after, and the same without a change.

Beyond the files of that layout there are `masks/`, `masks_before/` and `masks_after/`,
`facts.json` (what truly changed), `scenes/000000.json` (of each scene, written last, so a scene
whose file is there is whole), `composites.json` (the settings) and `sources.json` (the backgrounds
and cut-outs of each split).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.composites import scenes, sentences, sources
from cc_prep.composites.scenes import COUNTS, Composed, Library
from cc_prep.composites.sources import Sources
from cc_prep.errors import JobFailed, UserError
from cc_prep.media.images import encode_image
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth import dataset as rendered
from cc_prep.synth import masks

VERSION = 2
SETTINGS_FILE, SOURCES_FILE = "composites.json", "sources.json"
MAX_TRIES = 200
KNOWN = "test_known"  # backgrounds of the test, cut-outs of the training
# The splits of each 20 scenes in a row, so that a larger data set keeps those of a smaller one.
SPLITS = {4: "val", 14: "val", 7: "test", 17: "test", 9: KNOWN, 19: KNOWN}
CACHED = 200  # files that a process keeps decoded


@dataclass(frozen=True)
class Settings:
    """Settings that determine every byte of the data set, except the number of scenes.

    wording affects the annotations alone: it can be changed in a folder without composing again.
    """

    seed: int = 0
    size: int = 224
    jitter: float = 1.0
    wording: str = "plain"


def make(
    root: str,
    count: int,
    files: Sources,
    settings: Settings,
    workers: int | None = None,
) -> Iterator[int]:
    """Composes scenes 0 … count - 1 in `root`, yielding the number of each when it is whole.

    Existing scenes are kept, so a stopped run resumes where it stopped, and a larger `count`
    extends a finished one. The JSON files are written at the end.

    Args:
        files: What `sources.read` found.

    Raises:
        UserError: At once if `root` holds something else, or was made of other files.
        JobFailed: If a process dies.
    """
    if not 1 <= count < rendered.MAX_SCENES:
        raise UserError(f"{count} scenes", f"Ask for 1 to {rendered.MAX_SCENES - 1}")
    stored = {"version": VERSION, **asdict(settings), "sources": files.digest}
    is_new = rendered.differs_from_stored(root, SETTINGS_FILE, stored, {})
    there = {int(n[:-5]) for n in storage.list_files(storage.join(root, "scenes"), ".json")}
    if more := [index for index in there if index >= count]:
        raise UserError(
            f"{root} has {max(more) + 1:,} scenes, more than {count:,}",
            "Give the same or a larger --scenes, or another folder",
        )
    if is_new:
        storage.write_json(storage.join(root, SOURCES_FILE), files.to_json())
        storage.write_json(storage.join(root, SETTINGS_FILE), stored)
    return _completed(root, count, there, files, settings, workers)


def _completed(
    root: str,
    count: int,
    there: set[int],
    files: Sources,
    settings: Settings,
    workers: int | None,
) -> Iterator[int]:
    yield from sorted(there)
    tasks = [
        partial(write_scene, root, index, files, settings)
        for index in range(count)
        if index not in there
    ]
    if tasks:
        yield from rendered.run_all(tasks, workers)
    _write_annotations(root, count, settings)


def write_scene(root: str, index: int, files: Sources, settings: Settings) -> int:
    """Composes one scene with all its files; its number."""
    kind, composed = compose(index, library(split_of(index), files, settings.size), settings)
    number = f"{index:06d}"
    for name, pixels in {
        f"images/CLEVR_default_{number}.png": composed.before,
        f"sc_images/CLEVR_semantic_{number}.png": composed.after,
        f"nsc_images/CLEVR_nonsemantic_{number}.png": composed.unchanged,
    }.items():
        storage.write_bytes(storage.join(root, name), encode_image(pixels, "png", 0))
    masks.write(root, index, composed.masks)
    record = {"type": kind, "facts": {k: facts.to_json() for k, facts in composed.facts.items()}}
    storage.write_json(storage.join(root, f"scenes/{number}.json"), record)
    return index


def library(split: str, files: Sources, size: int) -> Library:
    """What the scenes of a split are made of, of images of `size` px."""
    of_pictures, of_objects = ("test", "train") if split == KNOWN else (split, split)
    return Library(
        [storage.join(files.folders[0], path) for path in files.backgrounds[of_pictures]],
        {
            name: [storage.join(files.folders[1], path) for path in paths]
            for name, paths in files.objects[of_objects].items()
        },
        partial(_background, size=size),
        _cutout,
    )


def compose(index: int, library: Library, settings: Settings) -> tuple[str, Composed]:
    """Scene `index`: the first that its dice give whose change can be seen.

    Returns the type of its change, and the scene.
    """
    wanted = change_type(index, settings.seed)
    for attempt in range(MAX_TRIES):
        rng = np.random.default_rng([settings.seed, index, attempt])
        scene = scenes.sample(rng, wanted, settings.size, library)
        if scene is not None:
            return scene.type, scenes.compose(scene, settings.size, settings.jitter, rng)
    raise JobFailed(f"scene {index}: no change of type {wanted!r} in {MAX_TRIES} tries")


def change_type(index: int, seed: int) -> str:
    """The change of scene `index`: each 21 in a row have the types as often as COUNTS says."""
    types = [kind for kind, count in COUNTS.items() for _ in range(count)]
    block, place = divmod(index, len(types))
    order = np.random.default_rng([seed, 1, block]).permutation(len(types))
    return types[order[place]]


def split_of(index: int) -> str:
    """The split of scene `index`."""
    return SPLITS.get(index % 20, "train")


@lru_cache(maxsize=CACHED)
def _background(path: str, size: int) -> np.ndarray:
    return sources.background(path, size)


@lru_cache(maxsize=2 * CACHED)
def _cutout(path: str) -> np.ndarray:
    return sources.cutout(path)


def _write_annotations(root: str, count: int, settings: Settings) -> None:
    captions: dict[str, dict[str, list[str]]] = {CHANGE: {}, NO_CHANGE: {}}
    types: dict[str, list[str]] = {}
    facts_by_kind: dict[str, dict[str, Any]] = {CHANGE: {}, NO_CHANGE: {}}
    splits: dict[str, list[int]] = {name: [] for name in ("train", "val", "test", KNOWN)}
    for index in range(count):
        record = storage.read_json(storage.join(root, f"scenes/{index:06d}.json"))
        name = f"CLEVR_default_{index:06d}.png"
        rng = np.random.default_rng([settings.seed, 3, index])
        for kind, value in record["facts"].items():
            facts = Facts.from_json(value)
            captions[kind][name] = said(facts, settings.wording, rng)
            backwards = said(facts.reversed(), settings.wording, rng)
            facts_by_kind[kind][name] = {**value, "reversed_captions": backwards}
        types.setdefault(record["type"], []).append(f"{index:06d}.png")
        splits[split_of(index)].append(index)
    for kind, by_name in captions.items():
        storage.write_json(storage.join(root, f"{kind}_captions.json"), by_name)
    storage.write_json(storage.join(root, "type_mapping.json"), types)
    storage.write_json(storage.join(root, "facts.json"), facts_by_kind)
    storage.write_json(storage.join(root, "splits.json"), splits)


def said(facts: Facts, wording: str, rng: np.random.Generator) -> list[str]:
    """Sentences that are true of a pair.

    Args:
        wording: `plain`, `rich`, or `both`: the plain one and a rich one.
    """
    plain = [sentences.plain(facts)]
    if wording == "plain":
        return plain
    rich = sentences.rich(facts, rng)
    return plain + rich[:1] if wording == "both" else rich


def counts(root: str) -> Mapping[str, int]:
    """The number of scenes of each split of a finished folder."""
    splits: dict[str, list[int]] = storage.read_json(storage.join(root, "splits.json"))
    return {name: len(indices) for name, indices in splits.items()}
