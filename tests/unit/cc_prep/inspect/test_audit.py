"""Labels that cannot all be right are found, and those that can are left in peace."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import datasets, manifest
from cc_prep.datasets import exclusions
from cc_prep.inspect import audit
from cc_prep.inspect.inspection import inspect
from cc_prep.records import Facts, ImagePair
from cc_prep.synth.facts import attributes as solid
from cc_prep.synth.grammar import NO_CHANGE_SENTENCES, PLAIN_NO_CHANGE, SENTENCES
from tests.conftest import Command
from tests.dataset_factory import levir_mci

LEVIR = (
    "the scene is the same as before .",
    "there is no difference .",
    "the two scenes seem identical .",
    "no change has occurred .",
    "almost nothing has changed .",
)
OTHERS = (
    "I see no differences between the two images",
    "There appears to be no difference",
    "nothing appears to have changed",
    "there are no differences",
    "no visible changes in the scene",
    "The images are identical",
    "no changes in the forest",
    "there is no difference between the first and the second image that I can see",
    "the scene is the same as it was before",
    "nothing is different in these two pictures",
    "the scene has not changed",
    "the scene hasn't changed since the first picture",
    "the area has not been changed",
    "there has been no change",
    "unchanged",
    "Same image.",
    "it is the same",
    "everything remains unchanged",
    "the scene remains as before",
    "the two images show the same scene",
    "the images do not differ",
)
UNCLEAR = (
    "the buildings are the same as before",
    "there was no change in the number of buildings and roads",
    "the houses and the trees remained the same",
    "I could not find that anything was changed",
)


@pytest.mark.parametrize("caption", [*NO_CHANGE_SENTENCES, PLAIN_NO_CHANGE, *LEVIR, *OTHERS])
def test_sentences_of_no_change(caption: str) -> None:
    assert audit.says_nothing_changed(caption)


@pytest.mark.parametrize(
    "caption",
    [
        *(one.format(it="red cube", new="blue") for kind in SENTENCES.values() for one in kind),
        "no changes in the forest but a road was built",
        "no changes in the forest and a road was built",
        "the scene is the same as before and a house was built",
        "nothing has changed and there is a new road",
        "the scene is the same with a new building added",
        "there is no change in the left image and a car left",
        "there is no change in the scene where a car left",
        "nothing changed color",
        "all objects are the same size",
        "the two images are identical outside of a person who moved",
        "nothing else changed",
        "it is the same car but it moved",
        "they are the same size",
        "they are identical to the left object now",
        "it is the same object at the top",
        "the images show the same area in the winter",
        "the same car is now red",
        "the scene has changed",
        "it has not moved to the right but to the left",
        "the car is no longer there",
        "there is no tree any more",
        "the scene is darker",
        "a house looks the same as its neighbour and is new",
        "there is no difference except for a new road",
        "",
    ],
)
def test_sentences_of_a_change(caption: str) -> None:
    """Keeps away: a changed pair that is left out because one of its sentences has a "no"."""
    assert not audit.says_nothing_changed(caption)


def pair(number: int, kind: str = "change", split: str = "train", **fields: object) -> ImagePair:
    record = ImagePair("d", split, str(number), kind, f"{number}b.png", f"{number}a.png")
    return replace(record, **{"captions": ("a road appears",), **fields})  # type: ignore[arg-type]


def test_contradictions() -> None:
    same = ("nothing changed",)
    pairs = [
        pair(0),
        pair(1, "no_change", captions=same),
        pair(2, captions=same),
        pair(3, "no_change"),
        pair(4, captions=("nothing changed", "a road appears")),
        pair(5, "no_change", captions=same),
        pair(6),
        pair(7, "no_change", captions=()),
        pair(8, captions=()),
        pair(9, captions=("a new road at the same place. nothing else has changed",)),
    ]
    seen = {0: {1}, 1: set(), 5: {2}, 6: set(), 7: {1}, 9: set()}
    classes = {pairs[i].key: frozenset(ids) for i, ids in seen.items()}
    details = {one.id: one.detail for one in audit.contradictions(pairs, classes)}
    unchanged, changed = (f"the captions say that {x} changed" for x in ("nothing", "something"))
    assert details == {
        "2": f"kind change; {unchanged}",
        "3": f"kind no_change; {changed}",
        "4": "1 of 2 captions say that nothing changed",
        "5": f"kind no_change; {unchanged}; the mask shows a change",
        "6": f"kind change; {changed}; the mask is empty",
        "7": "kind no_change; the mask shows a change",
        "9": f"kind change; {changed}; the mask is empty",
    }


@pytest.mark.parametrize("caption", UNCLEAR)
def test_a_sentence_that_may_say_either_is_no_witness(caption: str) -> None:
    """Keeps away: unchanged pairs that are left out, since their wording is in no list of ours."""
    assert not audit.says_nothing_changed(caption)
    pairs = [pair(0), pair(1, "no_change", captions=(caption,)), pair(2, captions=(caption,))]
    pairs.append(pair(3, "no_change", captions=(caption, "nothing changed")))
    assert not list(audit.contradictions(pairs, {}))
    [found] = audit.contradictions([pair(4, "no_change", captions=(caption, "a road appears"))], {})
    assert found.detail == "kind no_change; the captions say that something changed"


@pytest.mark.parametrize(
    "caption",
    [
        "the person is no longer there, the car moved",
        "the man is not there, and the car has moved",
        "there is no more car and a different one is parked",
        "two identical houses were built",
        "a building was built where nothing was",
        "the road remains the same but new houses appear",
        "only the tree remains",
    ],
)
def test_a_sentence_of_a_change_is_a_witness(caption: str) -> None:
    """Keeps away: wrong flags that are not found, since a sentence has a "no" or a "same"."""
    [found] = audit.contradictions([pair(0, "no_change", captions=(caption,)), pair(1)], {})
    assert found.detail == "kind no_change; the captions say that something changed"


def test_near_duplicates_across_splits() -> None:
    """Keeps away: a fixed camera's before image as a duplicate, and a smaller test split."""
    pairs = [pair(0), pair(1), pair(2), pair(3, split="test"), pair(4, split="test")]
    hashes = {"0b.png": 0, "0a.png": 255, "1b.png": 0, "1a.png": 2**60 - 1, "2b.png": 2**63,
              "3b.png": 15, "3a.png": 255, "4b.png": 31, "4a.png": 255, "2a.png": 1}  # fmt: skip
    [finding] = audit.near_duplicates(pairs, hashes)
    assert (finding.split, finding.id, finding.reason) == ("train", "0", "near duplicate")
    assert finding.detail == "looks like 3 (test)"
    within = [replace(one, split="train") for one in pairs]
    assert list(audit.near_duplicates(within, hashes)) == []
    assert list(audit.near_duplicates(pairs, {})) == [], "no image could be read"


@pytest.mark.parametrize(
    ("splits", "named"),
    [
        (("test", "val"), "val"),
        (("test", "test", "train"), "train"),
        (("train", "val", "val"), "train"),
        (("b", "a", "b"), "b"),
    ],
)
def test_the_test_split_stays_whole(splits: tuple[str, ...], named: str) -> None:
    """Keeps away: the test pair as the duplicate, where two splits have as many pairs."""
    pairs = [pair(number, split=split) for number, split in enumerate(splits)]
    hashes = {reference: 0 for one in pairs for reference in (one.before, one.after)}
    assert {one.split for one in audit.near_duplicates(pairs, hashes)} == {named}


@pytest.mark.parametrize("at_once", [1, 7, audit.AT_ONCE])
def test_each_duplicate_is_named_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: pairs that are lost where one block of comparisons ends and the next begins."""
    monkeypatch.setattr(audit, "AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    splits = rng.choice(["test", "train", "train", "val"], 40)
    pairs = [pair(number, split=str(split)) for number, split in enumerate(splits)]
    looks = [0, 3, 2**60 - 1, 2**63]
    hashes = {name: int(rng.choice(looks)) for one in pairs for name in (one.before, one.after)}
    rank = {"train": 0, "val": 1, "test": 2}

    def alike(one: ImagePair, other: ImagePair) -> bool:
        sides = ((one.before, other.before), (one.after, other.after))
        return all((hashes[a] ^ hashes[b]).bit_count() <= audit.DISTANCE for a, b in sides)

    expected = {
        (one.split, one.id): [
            f"looks like {two.name}"
            for two in pairs
            if rank[one.split] < rank[two.split] and alike(one, two)
        ]
        for one in pairs
    }
    named = [(one.split, one.id) for one in audit.near_duplicates(pairs, hashes)]
    assert sorted(named) == sorted(key for key, details in expected.items() if details)
    assert len(named) > 5
    for one in audit.near_duplicates(pairs, hashes):
        assert one.detail in expected[one.split, one.id]


def test_a_fixed_camera_takes_no_time() -> None:
    """Keeps away: a walk over all hits in Python where every image looks like every other."""
    pairs = [pair(number, split="val" if number % 2 else "train") for number in range(3000)]
    hashes = {reference: 0 for one in pairs for reference in (one.before, one.after)}
    start = time.process_time()
    assert len(list(audit.near_duplicates(pairs, hashes))) == 1500
    assert time.process_time() - start < 1, "0.03 s on one core; the walk took 4"


def test_shared_captions() -> None:
    """Keeps away: a sentence that many pairs with the same kind of change have, as wrong."""
    cube = solid("red", "cube", "metal", "large", (0.1, 0.2))
    moved = replace(cube, location=(0.9, 0.2))
    blue = replace(cube, values={**cube.values, "color": "blue"})
    pairs = [
        pair(0, change_type="move", captions=("It moved", "x")),
        pair(1, change_type="add", captions=("it  moved",)),
        pair(2, captions=("b",), facts=Facts("drop", cube)),
        pair(3, captions=("b",), facts=Facts("drop", moved)),
        pair(4, captions=("c",), facts=Facts("drop", cube)),
        pair(
            5,
            captions=("c",),
            facts=Facts("drop", blue),
        ),
        pair(6, captions=("d",)),
        pair(7, captions=("d",)),
        pair(8, captions=("e",)),
        pair(9, captions=("e",)),
        pair(10, captions=("e",)),
        pair(11, change_type="move", captions=("f",)),
        pair(12, captions=("f",)),
    ]
    sets = {6: {1}, 7: {1, 2}, 8: {1}, 9: {2}, 10: set()}
    classes = {pairs[i].key: frozenset(ids) for i, ids in sets.items()}
    listed = [(one.id, one.detail) for one in audit.shared_captions(pairs, classes)]
    assert listed == [
        ("0", "it moved"), ("1", "it moved"), ("4", "c"), ("5", "c"),
        ("8", "e"), ("9", "e"),
    ]  # fmt: skip


def test_a_wrong_label_condemns_no_sentence() -> None:
    """Keeps away: every unchanged pair of LEVIR-MCI listed, because two have a wrong mask."""
    same, changed = ("there is no difference .",), ("a road appears",)
    unchanged = [pair(number, "no_change", captions=same) for number in range(6)]
    others = [pair(6, captions=same), pair(7, captions=changed), pair(8, captions=changed)]
    wrong = {0: {1}, 1: {2}, 7: {1}, 8: set()}
    classes = {pair(i, "no_change" if i < 6 else "change").key: frozenset(wrong.get(i, ()))
               for i in range(9)}  # fmt: skip
    assert list(audit.shared_captions([*unchanged, *others], classes)) == []


def test_from_the_audit_to_a_smaller_data_set(tmp_path: Path, prepare: Command) -> None:
    """Keeps away: a list that the manifest does not take, and a second audit that shortens it."""
    settings = levir_mci(tmp_path / "data")
    captions = tmp_path / "data/LevirCCcaptions.json"
    captions.write_text(captions.read_text().replace(" caption", " the caption"))
    label = np.zeros((32, 32), np.uint8)
    label[3, 3] = 128
    labels = tmp_path / "data/images"
    Image.fromarray(label).save(labels / "train/label/train_000000.png")
    Image.fromarray(label).save(labels / "train/label/train_000003.png")
    Image.fromarray(np.where(label, 255, 0).astype(np.uint8)).save(
        labels / "val/label/val_000001.png"
    )
    result = inspect(settings, settings.splits)
    assert result.masks == {"road": 2, "building": 1, "empty": 1}
    assert result.audit == {"contradiction": 2, "near duplicate": 0, "shared caption": 2}
    kinds = "kind no_change; the captions say that something changed; the mask shows a change"
    line = f"train: 1 pair with a contradiction: train_000000 ({kinds}). Correct changeflag, or "
    assert any(note.startswith(line) for note in result.notes)
    file = tmp_path / "out.csv"
    data = ("levir_mci", "--root", tmp_path / "data")
    done = prepare("inspect", *data, "--write-exclusions", tmp_path)
    assert (done.returncode, "a folder. Give a file" in done.stderr) == (2, True), done.stderr
    done = prepare("inspect", *data, "--write-exclusions", file)
    assert done.returncode == 0, done.stderr
    assert f"{file}: 2 pairs" in done.stderr
    assert {row.id for row in exclusions.read(str(file))} == {"train_000000", "test_000002"} | {
        one.id for one in result.findings if one.reason == audit.CONTRADICTION
    }
    again = tmp_path / "again.csv"
    excluding = (*data, "--set", f"exclude={file}")
    done = prepare("inspect", *excluding, "--write-exclusions", again, "--reason", "shared caption")
    assert done.returncode == 1, "the split val has no pairs left"
    assert {*exclusions.read(str(again))} >= {*exclusions.read(str(file))}
    smaller = manifest.load("levir_mci", [f"exclude={file}"], root=str(tmp_path / "data"))
    assert [one.id for one in datasets.pairs(smaller, "train")] == ["train_000003"]


def test_masks_of_some_classes_do_not_say_that_nothing_changed() -> None:
    """Keeps away: a training set without the changes of which a data set has no masks."""
    some = {"mask_classes": ("building",)}
    trees = ("trees were planted",)
    same = ("nothing changed",)
    pairs = [
        pair(0, captions=trees, **some),
        pair(1, "no_change", captions=same, **some),
        pair(2, captions=trees, mask_classes=("tree", "water"), land_cover=True),
        pair(3, captions=trees),
    ]
    classes = {one.key: frozenset(range(one.id == "1")) for one in pairs}
    classes[pairs[1].key] = frozenset({1})
    assert {one.id for one in audit.contradictions(pairs, classes)} == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("unchanged", "changed"),
    [
        ("Es hat sich nichts ver\u00e4ndert.", "Ein Auto ist verschwunden."),
        ("Il n'y a aucun changement.", "Une voiture a disparu de la route."),
        ("Er is niets veranderd.", "Er is een auto verdwenen van de weg."),
        ("No hay cambios.", "Ha desaparecido un coche de la carretera."),
    ],
)
def test_captions_of_another_language_contradict_nothing(unchanged: str, changed: str) -> None:
    """Keeps away: all unchanged pairs of such a data set listed as contradictions."""
    pairs = [pair(number, "no_change", captions=(unchanged,)) for number in range(3)]
    assert list(audit.contradictions([*pairs, pair(3, captions=(changed,))], {})) == []


def test_short_english_captions_are_read() -> None:
    """Keeps away: "a red car appeared" of an unchanged pair, taken for another language."""
    pairs = [pair(i, kind="no_change", captions=("a red car appeared",)) for i in range(2)]
    assert {one.id for one in audit.contradictions(pairs, {})} == {"0", "1"}
