"""Writes a synthetic data set in CLEVR-Change's own layout.

Beyond the published files there are `scenes/000000.json` (objects and positions; written last, so a
scene whose file is there is whole), `masks/000000.png`, `masks_before/…` and `masks_after/…`,
`facts.json` (what truly changed, of all scenes), on request `truth/…`, and `synth.json` (the
settings; a folder made with others is refused).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from cc_prep import extras, storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.media.images import encode_image
from cc_prep.records import CHANGE, NO_CHANGE, SEVERAL
from cc_prep.synth import facts as scene_facts
from cc_prep.synth import grammar, masks, scenes

VERSION = 3
MAX_SCENES = 10**6  # six digits in a file name
TRUE_FRAMES = 7
SETTINGS_FILE = "synth.json"
SPLIT_SHARES = {"val": 0.05, "test": 0.10}
MAX_TRIES = 500
ORPHAN_SECONDS = 2.0


@dataclass(frozen=True)
class Settings:
    """Settings that determine every byte of the data set, except the number of scenes.

    wording affects the annotations alone: it can be changed in a folder without rendering again.
    """

    seed: int = 0
    size: int = 224
    samples: int = 16
    truth: bool = False
    jitter: float = 1.0
    wording: str = "rich"
    min_changes: int = 1
    max_changes: int = 1


def make(root: str, count: int, settings: Settings, workers: int | None = None) -> Iterator[int]:
    """Renders scenes 0 … count - 1 into `root`, yielding the number of each when it is whole.

    Existing scenes are kept, so a stopped run resumes where it stopped. A larger `count` extends a
    finished one, whose scenes are then divided again into splits: see `redealt`. The JSON files are
    written at the end.

    Raises UserError at once if `root` holds something else, or more scenes; JobFailed if a renderer
    dies.
    """
    if not 1 <= count < MAX_SCENES:
        raise UserError(f"{count} scenes", f"Ask for 1 to {MAX_SCENES - 1}")
    if importlib.util.find_spec("mitsuba") is None:
        raise UserError(
            "Mitsuba 3, which renders the scenes, is not installed",
            extras.install("synth"),
        )
    is_new = differs_from_stored(root, SETTINGS_FILE, _as_stored(settings), asdict(Settings()))
    if count < (finished := sum(map(len, _splits_of(root).values()))):
        raise UserError(
            f"{root} has {finished:,} scenes, more than {count:,}",
            "Give the same or a larger --scenes, or another folder",
        )
    if is_new:
        storage.write_json(storage.join(root, SETTINGS_FILE), _as_stored(settings))
    return _completed(root, count, settings, workers)


def _completed(root: str, count: int, settings: Settings, workers: int | None) -> Iterator[int]:
    """The scenes one by one as `make` renders them; the JSON files when all are whole."""
    there = {int(n[:-5]) for n in storage.list_files(storage.join(root, "scenes"), ".json")}
    missing = [index for index in range(count) if index not in there]
    yield from (index for index in range(count) if index in there)
    tasks = [partial(write_scene, root, index, settings) for index in missing]
    if tasks:
        yield from run_all(tasks, workers, _one_thread)
    _write_annotations(root, count, settings)


def run_all(
    tasks: Sequence[Callable[[], int]],
    workers: int | None,
    prepare: Callable[[], None] | None = None,
) -> Iterator[int]:
    """Runs tasks in processes and yields the number of the scene that each returns.

    Args:
        prepare: Is called once in each process.
    """
    # Fresh interpreters, since Mitsuba does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers or os.cpu_count() or 1, len(tasks)),
        context,
        initializer=_prepare,
        initargs=(os.getpid(), prepare),
    ) as pool:
        jobs = [pool.submit(task) for task in tasks]
        try:
            for job in as_completed(jobs):
                yield job.result()
        except BrokenProcessPool:
            raise JobFailed(
                "a process was killed; the same command resumes where it stopped"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import drjit

    drjit.set_thread_count(1)


def _prepare(parent: int, prepare: Callable[[], None] | None) -> None:
    """A process ends when its parent does, which a killed one cannot tell it."""
    if prepare is not None:
        prepare()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write_scene(root: str, index: int, settings: Settings) -> int:
    """Renders one scene with all its files; its number."""
    from cc_prep.synth import render

    scene, scene_masks, sentences = compose(index, settings)
    before, after, distractor = scene.moments
    number = f"{index:06d}"

    def write(name: str, pixels: np.ndarray) -> None:
        storage.write_bytes(storage.join(root, name), encode_image(pixels, "png", 0))

    # Each image has its own noise, as two photographs have.
    for serial, (name, moment) in enumerate(
        {
            f"images/CLEVR_default_{number}.png": before,
            f"sc_images/CLEVR_semantic_{number}.png": after,
            f"nsc_images/CLEVR_nonsemantic_{number}.png": distractor,
        }.items()
    ):
        write(name, _render(render, moment, settings, index, serial))
    masks.write(root, index, scene_masks)
    if settings.truth:
        for offset, (kind, end) in enumerate((("sc", after), ("nsc", distractor))):
            for step in range(1, TRUE_FRAMES + 1):
                moment = scenes.between(before, end, step / (TRUE_FRAMES + 1))
                serial = 3 + offset * TRUE_FRAMES + step
                pixels = _render(render, moment, settings, index, serial)
                write(f"truth/{kind}/{number}/{step:02d}.png", pixels)
    facts = {"captions": sentences, "scene": scene.to_json()}
    storage.write_json(storage.join(root, f"scenes/{number}.json"), facts)
    return index


def compose(
    index: int, settings: Settings
) -> tuple[scenes.Scene, masks.SceneMasks, dict[str, list[str]]]:
    """Scene `index`: the first that its dice give whose changes can be seen and said.

    Returns the scene, its masks bool [size, size], and its captions by kind.
    """
    change, further = change_type(index, settings.seed), further_types(index, settings)
    for attempt in range(MAX_TRIES):
        rng = np.random.default_rng([settings.seed, index, attempt])
        scene = scenes.sample(rng, index, change, settings.jitter, further)
        # Sides are those of the middle camera, which another one far from it sees the other way.
        if scene is None or (settings.jitter > 1 and not grammar.by_attributes(scene)):
            continue
        sentences = grammar.change_captions(scene, rng)
        seen = masks.visible_change(scene, settings.size) if len(sentences) >= 3 else None
        if seen is not None:
            unchanged = grammar.no_change_captions(rng)
            return scene, seen, {"change": sentences, "no_change": unchanged}
    raise JobFailed(f"scene {index}: no {', '.join((change, *further))} in {MAX_TRIES} tries")


def change_type(index: int, seed: int) -> str:
    """The first change of scene `index`: five in a row have all five types in a random order."""
    block, place = divmod(index, len(scenes.CHANGE_TYPES))
    order = np.random.default_rng([seed, 1, block]).permutation(len(scenes.CHANGE_TYPES))
    return scenes.CHANGE_TYPES[order[place]]


def further_types(index: int, settings: Settings) -> tuple[str, ...]:
    """The types of the further changes of scene `index`; each number is equally likely."""
    rng = np.random.default_rng([settings.seed, 4, index])
    count = int(rng.integers(settings.min_changes, settings.max_changes + 1)) - 1
    return tuple(str(kind) for kind in rng.choice(scenes.CHANGE_TYPES, count))


def splits(count: int, seed: int) -> dict[str, list[int]]:
    """Shares as in CLEVR-Change (85, 5 and 10 %), none of them empty from three scenes on."""
    order = [int(i) for i in np.random.default_rng([seed, 2]).permutation(count)]
    least = 1 if count >= 3 else 0
    val = max(least, round(SPLIT_SHARES["val"] * count))
    test = max(least, round(SPLIT_SHARES["test"] * count))
    return {
        "train": sorted(order[val + test :]),
        "val": sorted(order[:val]),
        "test": sorted(order[val : val + test]),
    }


def redealt(root: str, count: int, seed: int) -> int:
    """How many scenes of a finished folder are in another split among `count`.

    Args:
        root: A folder that `make` takes.
    """
    split_of = {i: split for split, indices in splits(count, seed).items() for i in indices}
    return sum(
        split_of.get(i) != split for split, indices in _splits_of(root).items() for i in indices
    )


def _splits_of(root: str) -> dict[str, list[int]]:
    """The scenes of each split of a finished folder; nothing for one that is not finished.

    Raises:
        UserError: For a damaged file.
    """
    path = storage.join(root, "splits.json")
    try:
        known: dict[str, list[int]] = storage.read_json(path)
    except FileNotFoundError:
        return {}
    except ValueError:
        known = {}
    lists = list(known.values()) if isinstance(known, dict) else []
    if len(lists) != 3 or not all(isinstance(one, list) for one in lists):
        raise UserError(f"{path}: damaged", "Restore it, or give another folder")
    return known


def _render(
    render: Any, moment: scenes.Moment, settings: Settings, index: int, serial: int
) -> np.ndarray:
    seed = int(np.random.SeedSequence([settings.seed, index, serial]).generate_state(1)[0])
    pixels: np.ndarray = render.image(moment, settings.size, settings.samples, seed)
    return pixels


def _as_stored(settings: Settings) -> dict[str, Any]:
    return {"version": VERSION, **asdict(settings)}


def differs_from_stored(
    root: str, file: str, expected: Mapping[str, Any], defaults: Mapping[str, Any]
) -> bool:
    """Whether a folder's settings are to be written: missing, older or of another wording.

    Args:
        file: Their name in the folder.
        defaults: Of what older settings do not say.

    Raises:
        UserError: For a folder of other settings, or of something else.
    """
    path = storage.join(root, file)
    try:
        settings_there = storage.read_json(path)
    except FileNotFoundError:
        if storage.is_folder(root) and storage.list_files(root):
            raise UserError(f"{root}: holds other files", "Give a new or empty folder") from None
        return True
    except ValueError:
        raise UserError(f"{path}: not JSON", "Give another folder") from None
    # What a folder does not say was not asked for when it was made: it has the default.
    recorded = {**defaults, **settings_there} if isinstance(settings_there, dict) else {}
    different = {k for k in expected if recorded.get(k) != expected[k]}
    if different - {"wording"}:
        raise UserError(
            f"{root} was made with other settings ({', '.join(sorted(different))})",
            "Use the same settings, or another folder",
        )
    return bool(settings_there != expected)


def _write_annotations(root: str, count: int, settings: Settings) -> None:
    captions_by_kind: dict[str, dict[str, list[str]]] = {CHANGE: {}, NO_CHANGE: {}}
    kinds = (*scenes.CHANGE_TYPES, *([SEVERAL] if settings.max_changes > 1 else []))
    types: dict[str, list[str]] = {kind: [] for kind in kinds}
    facts_by_kind: dict[str, dict[str, Any]] = {CHANGE: {}, NO_CHANGE: {}}
    for index in range(count):
        record = storage.read_json(storage.join(root, f"scenes/{index:06d}.json"))
        name = f"CLEVR_default_{index:06d}.png"
        sentences, reversed_sentences = _sentences(record, index, settings)
        for kind, captions_by_image in captions_by_kind.items():
            captions_by_image[name] = sentences[kind]
        facts_of = scene_facts.of_scene(scenes.from_json(record["scene"]), reversed_sentences)
        types[facts_of[CHANGE].type].append(f"{index:06d}.png")
        for kind, facts in facts_of.items():
            facts_by_kind[kind][name] = facts.to_json()
    for kind, captions_by_image in captions_by_kind.items():
        storage.write_json(storage.join(root, f"{kind}_captions.json"), captions_by_image)
    storage.write_json(storage.join(root, "type_mapping.json"), types)
    storage.write_json(storage.join(root, "facts.json"), facts_by_kind)
    storage.write_json(storage.join(root, "splits.json"), splits(count, settings.seed))


def _sentences(
    record: Mapping[str, Any], index: int, settings: Settings
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Captions of a scene's pairs by kind, forwards and backwards, in the wording asked for.

    Args:
        record: What `scenes/000000.json` holds, whose captions are the rich ones.
    """
    scene = scenes.from_json(record["scene"])
    rng = np.random.default_rng([settings.seed, 3, index])
    unchanged = record["captions"][NO_CHANGE]
    rich = (
        record["captions"],
        {CHANGE: grammar.change_captions(scene.reversed(), rng), NO_CHANGE: unchanged},
    )
    if settings.wording == "rich":
        return rich
    unchanged = [grammar.PLAIN_NO_CHANGE]
    plain = (
        {CHANGE: grammar.plain_captions(scene), NO_CHANGE: unchanged},
        {CHANGE: grammar.plain_captions(scene.reversed()), NO_CHANGE: unchanged},
    )
    if settings.wording == "plain":
        return plain
    # One of each, so that a training that draws captions at random sees both equally often.
    forwards, backwards = (
        {kind: sentences[kind] + varied[kind][:1] for kind in sentences}
        for sentences, varied in zip(plain, rich, strict=True)
    )
    return forwards, backwards
