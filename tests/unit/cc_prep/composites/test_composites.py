"""Composed pairs: masks cover the change, sentences agree with facts, splits share nothing."""

from __future__ import annotations

import filecmp
import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from cc_prep import datasets, manifest
from cc_prep.composites import dataset, reading, scenes, sentences, sources
from cc_prep.composites.dataset import Settings
from cc_prep.composites.scenes import COUNTS, Library
from cc_prep.errors import JobFailed, UserError
from cc_prep.records import CHANGE, NO_CHANGE, REVERSED, Facts, ObjectAttributes
from pipelines.cli.main import main
from tests import commands, dataset_factory
from tests.dataset_factory import PASTED_CLASSES, cutout, photograph

SIZE = 96
SEEDS = st.integers(0, 10**6)


def library() -> Library:
    return Library(
        ["0", "1", "2"],
        {name: [f"{i}", f"{i + 1}"] for i, name in enumerate(PASTED_CLASSES)},
        lambda path: photograph(int(path)),
        lambda path: cutout(int(path)),
    )


def scene_of(seed: int, kind: str) -> scenes.Scene:
    for attempt in range(200):
        rng = np.random.default_rng([seed, attempt])
        scene = scenes.sample(rng, kind, SIZE, library())
        if scene is not None:
            return scene
    raise AssertionError(f"no {kind} in 200 tries")


@given(SEEDS, st.sampled_from(list(COUNTS)))
@limits(max_examples=40, deadline=None)
def test_masks_cover_what_changed(seed: int, kind: str) -> None:
    """Keeps away: a shadow, a rim or a moved object beside its mask."""
    scene = scene_of(seed, kind)
    before, after = scenes.pictures(scene)
    if kind in sentences.OF_PICTURE:
        return
    covered = np.zeros(before.shape[:2], bool)
    for one in scene.changed:
        if one is not None:
            covered |= scenes.coverage(one, scene.side)
    differs = np.abs(before.astype(int) - after).max(2) > 8
    assert differs.any()
    assert not (differs & ~covered).any()
    composed = scenes.compose(scene, SIZE, 0.0, np.random.default_rng(seed))
    union, gone, came = composed.masks
    assert (union == gone | came).all()
    assert gone.any() == (scene.changed[0] is not None)
    assert came.any() == (scene.changed[1] is not None)


@given(SEEDS, st.sampled_from(list(COUNTS)))
@limits(max_examples=60, deadline=None)
def test_sentences_agree_with_facts_both_ways(seed: int, kind: str) -> None:
    """Keeps away: a wrong place, a class or color that the reversed sentence gets wrong."""
    rng = np.random.default_rng(seed)
    composed = scenes.compose(scene_of(seed, kind), SIZE, 1.0, rng)
    for facts in composed.facts.values():
        for one in (facts, facts.reversed()):
            assert one.reversed().reversed() == one
            truth = reading.true_values(one)
            for sentence in (sentences.plain(one), *sentences.rich(one, rng)):
                claims = reading.parse(sentence, one)
                assert claims.grammatical, sentence
                said = {fact: claims.value(fact) for fact in reading.FACTS}
                assert {f: v for f, v in said.items() if v is not None} == truth, sentence


@pytest.mark.parametrize("kind", list(COUNTS))
def test_places_are_where_the_masks_are(kind: str) -> None:
    composed = scenes.compose(scene_of(3, kind), SIZE, 1.0, np.random.default_rng(0))
    facts = composed.facts[CHANGE]
    assert composed.facts[NO_CHANGE].type == "none"
    for one, mask in zip((facts.before, facts.after), composed.masks[1:], strict=True):
        if one is not None:
            rows, columns = np.nonzero(mask)
            middle = np.array(((columns.min() + columns.max()) / 2, (rows.min() + rows.max()) / 2))
            assert np.abs(middle / SIZE - one.location).max() < 0.06
    if facts.before is None and facts.after is None:
        assert composed.masks[0].all()


def test_types_are_their_own_reverse_twice() -> None:
    assert all(REVERSED[REVERSED[kind]] == kind for kind in REVERSED)
    assert set(sentences.PLAIN) == set(sentences.RICH) == set(REVERSED) > set(COUNTS)


CAR = ObjectAttributes({"class": "car", "color": ""}, (0.1, 0.1))
DOG = ObjectAttributes({"class": "dog", "color": ""}, (0.5, 0.9))


@pytest.mark.parametrize(
    ("caption", "facts", "said"),
    [
        # of photos-mini
        ("something appeared at the top left", Facts("add", None, CAR), {"place": "the top left"}),
        ("a dog disappeared in the middle. another dog moved from the left to the right",
         Facts("drop", CAR), {"type": "several"}),
        ("something changed on the left", Facts("add", None, CAR), {"type": "several"}),
        ("the two images are equal", Facts("none"), {"type": "none"}),
        ("the picture became brighter", Facts("brighter"), {"type": "brighter"}),
        # of others
        ("A car has been added in the upper left corner.", Facts("add", None, CAR),
         {"type": "add", "class": "car", "place": "the top left"}),
        ("The car was replaced with a dog", Facts("replace", CAR, DOG),
         {"type": "replace", "class": "car", "new": "dog"}),
        ("There are no visible differences.", Facts("none"), {"type": "none"}),
        ("The image was converted to grayscale", Facts("black_and_white"),
         {"type": "black_and_white"}),
        ("The car is now painted red", Facts("color", CAR, CAR), {"type": "color", "new": "red"}),
        ("not sure: the two images seem to show different views", Facts("none"), {}),
        ("", Facts("none"), {}),
    ],
)  # fmt: skip
def test_captions_of_others_are_read(caption: str, facts: Facts, said: dict[str, str]) -> None:
    claims = reading.parse(caption, replace(facts, grammar="composites"))
    known = {fact: claims.value(fact) for fact in reading.FACTS}
    known = {fact: value for fact, value in known.items() if value is not None}
    assert known.items() >= said.items()
    assert bool(known) == bool(said)


@given(st.text(), st.sampled_from(sentences.RICH["move"]))
def test_any_text_is_read(text: str, template: str) -> None:
    for caption in (text, template.format(the=text, place=text, new=text)):
        claims = reading.parse(caption, Facts("add", None, CAR, grammar="composites"))
        assert all(0 <= mark.start <= mark.end <= len(caption) for mark in claims.marks)


def test_splits_share_no_background_and_no_cutout(tmp_path: Path) -> None:
    """Keeps away: a test on photographs of the training, under another name."""
    files = sources.read(*dataset_factory.composites(tmp_path), SIZE, 0)
    assert files.rejected == []
    pictures = {split: set(paths) for split, paths in files.backgrounds.items()}
    objects = {
        split: {path for paths in by_class.values() for path in paths}
        for split, by_class in files.objects.items()
    }
    for of in (pictures, objects):
        assert set(of) == {"train", "val", "test"}
        assert all(of.values())
        assert sum(map(len, of.values())) == len(set().union(*of.values()))
    assert sum(map(len, pictures.values())) == 6
    with_copy = [split for split, paths in pictures.items() if paths & {"0.png", "more/0.jpg"}]
    assert len(with_copy) == 1, "the same photograph in two splits"
    assert set(files.objects["train"]) == set(PASTED_CLASSES)
    assert set(files.objects["test"]) == set(PASTED_CLASSES)


def test_views_of_one_object_stay_together(tmp_path: Path) -> None:
    """Keeps away: an object of the training that is called never seen, from another side."""
    photos, objects = dataset_factory.composites(tmp_path)
    for thing in range(5):
        (folder := Path(objects, "car", f"model{thing}")).mkdir()
        for view in range(3):
            assert cv2.imwrite(str(folder / f"{view}.png"), cutout(100 + 3 * thing + view))
    for seed in range(5):
        files = sources.read(photos, objects, SIZE, seed)
        things = [{Path(one).parent for one in of["car"]} for of in files.objects.values()]
        models = [thing for of in things for thing in of if thing.name.startswith("model")]
        assert len(models) == len(set(models)) == 5
        assert sum(len(of["car"]) for of in files.objects.values()) == 3 + 5 * 3


def test_a_class_in_one_folder_is_no_single_object(tmp_path: Path) -> None:
    """Keeps away: a class that only tests have, since all of it lies in `images/`."""
    photos, objects = dataset_factory.composites(tmp_path)
    (folder := Path(objects, "car", "images")).mkdir()
    for path in Path(objects, "car").glob("*.png"):
        path.rename(folder / path.name)
    files = sources.read(photos, objects, SIZE, 0)
    assert all("car" in files.objects[split] for split in ("train", "test"))


def test_bad_files_are_named(tmp_path: Path) -> None:
    """Keeps away: a run that ends in the middle for one file, or pastes a rectangle."""
    photos, objects = map(Path, dataset_factory.composites(tmp_path))
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no image")
    assert cv2.imwrite(str(photos / "tiny.png"), photograph(9, 64))
    assert cv2.imwrite(str(objects / "car" / "opaque.png"), photograph(9))
    assert cv2.imwrite(str(objects / "loose.png"), cutout(1))
    (objects / "red_car").mkdir()
    assert cv2.imwrite(str(objects / "red_car" / "1.png"), cutout(2))
    empty = cutout(3)
    empty[..., 3] = 0
    assert cv2.imwrite(str(objects / "car" / "empty.png"), empty)
    said = "\n".join(sources.read(str(photos), str(objects), SIZE, 0).rejected)
    for name in ("broken.jpg", "tiny.png", "opaque.png", "loose.png", "red_car/1.png", "empty.png"):
        assert said.count(name) == 1, said


def test_too_few_files_are_refused(tmp_path: Path) -> None:
    photos, objects = dataset_factory.composites(tmp_path)
    for i in range(1, 5):
        Path(photos, f"{i}.png").unlink()
    with pytest.raises(UserError, match="at least 3"):
        sources.read(photos, objects, SIZE, 0)
    with pytest.raises(UserError, match="no such folder"):
        sources.read(photos, objects + "x", SIZE, 0)


def made(root: Path, count: int, files: tuple[str, str], **settings: object) -> list[int]:
    chosen = Settings(size=SIZE, **settings)  # type: ignore[arg-type]
    known = sources.read(*files, SIZE, chosen.seed)
    return list(dataset.make(str(root), count, known, chosen, workers=1))


def test_same_seed_same_bytes_resumed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a resumed data set that differs from one made at once."""
    monkeypatch.setattr("cc_prep.synth.dataset.run_all", lambda tasks, *_: (one() for one in tasks))
    files = dataset_factory.composites(tmp_path)
    made(tmp_path / "once", 10, files)
    iterator = dataset.make(
        str(tmp_path / "twice"), 10, sources.read(*files, SIZE, 0), Settings(size=SIZE)
    )
    for _ in range(3):
        next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    made(tmp_path / "twice", 4, files)
    made(tmp_path / "twice", 10, files)
    names = sorted(p.relative_to(tmp_path / "once") for p in (tmp_path / "once").rglob("*.*"))
    assert len(names) == 10 * 7 + 7
    for name in names:
        assert filecmp.cmp(tmp_path / "once" / name, tmp_path / "twice" / name, shallow=False), name
    with pytest.raises(UserError, match="other settings"):
        made(tmp_path / "once", 10, files, seed=1)
    with pytest.raises(UserError, match="more than 5"):
        made(tmp_path / "once", 5, files)
    Path(files[0], "4.png").unlink()
    with pytest.raises(UserError, match="sources"):
        made(tmp_path / "once", 10, files)


def test_manifest_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cc_prep.synth.dataset.run_all", lambda tasks, *_: (one() for one in tasks))
    files = dataset_factory.composites(tmp_path)
    root = tmp_path / "out"
    made(root, 20, files, wording="both")
    settings = manifest.load("composites", (), str(root))
    counts = {split: len(datasets.pairs(settings, split)) for split in settings.splits}
    assert counts == {"train": 28, "val": 4, "test": 4, "test_known": 4}
    pair = datasets.pairs(settings, "train")[0]
    assert pair.facts is not None
    assert pair.facts.grammar == "composites"
    assert 1 <= len(pair.captions) <= 2
    assert pair.facts.reversed_captions
    before = json.loads((root / "change_captions.json").read_text())
    made(root, 20, files, wording="plain")
    after = json.loads((root / "change_captions.json").read_text())
    assert all(len(listed) == 1 and listed[0] == before[name][0] for name, listed in after.items())


def test_command_composes_in_processes(tmp_path: Path) -> None:
    photos, objects = dataset_factory.composites(tmp_path)
    arguments = ["--backgrounds", photos, "--objects", objects, "--scenes", "3", "--size", "64"]
    result = commands.in_process(main, "composites", tmp_path / "out", *arguments)
    assert result.returncode == 0, result.stderr
    assert "3 scenes" in result.stdout


def test_a_change_that_cannot_be_seen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = Library(["0"], {"car": ["0"]}, lambda _: np.full((160, 160, 3), 90, np.uint8), cutout)  # type: ignore[arg-type]
    monkeypatch.setattr(dataset, "change_type", lambda *_: "black_and_white")
    monkeypatch.setattr(scenes, "BYSTANDERS", (0,))
    with pytest.raises(JobFailed, match="black_and_white"):
        dataset.compose(0, grey, Settings(size=SIZE))
