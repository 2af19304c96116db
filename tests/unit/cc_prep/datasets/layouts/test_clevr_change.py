"""The CLEVR-Change reader on a miniature in the published layout, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import EMPTY_MASK


@pytest.fixture
def root(tmp_path: Path) -> Path:
    numbers = range(4)
    names = [f"CLEVR_default_{i:06d}.png" for i in numbers]
    files = {
        "change_captions.json": {name: [f"changed {name}", "two"] for name in names},
        "no_change_captions.json": {name: ["no change was made"] for name in names},
        "splits.json": {"train": [3, 0], "val": [1], "test": [2]},
        "type_mapping.json": {
            "color": ["000000.png", "000001.png"],
            "move": ["000002.png", "000003.png"],
        },
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    for folder in ("images", "sc_images", "nsc_images"):
        (tmp_path / folder).mkdir()
    return tmp_path


def settings(root: Path) -> Manifest:
    return manifest.load("clevr", root=str(root))


def test_two_pairs_an_index(root: Path) -> None:
    pairs = datasets.pairs(settings(root), "train")
    assert [(p.id, p.kind, p.change_type) for p in pairs] == [
        ("000000", "change", "color"),
        ("000000", "no_change", None),
        ("000003", "change", "move"),
        ("000003", "no_change", None),
    ]
    assert pairs[0].before == pairs[1].before == "images/CLEVR_default_000000.png"
    assert pairs[0].after == "sc_images/CLEVR_semantic_000000.png"
    assert pairs[1].after == "nsc_images/CLEVR_nonsemantic_000000.png"
    assert pairs[0].captions == ("changed CLEVR_default_000000.png", "two")
    assert pairs[1].captions == ("no change was made",)
    assert pairs[0].mask is None
    assert datasets.reader(settings(root)).faults(settings(root)) == []


def test_masks_and_truth_are_found(synth_root: Path) -> None:
    """Keeps away: a pair without change whose mask is not known, so that nothing teaches it."""
    settings = manifest.load("synth", root=str(synth_root))
    for pair in (p for split in settings.splits for p in datasets.pairs(settings, split)):
        references = (pair.mask, pair.mask_before, pair.mask_after)
        if pair.kind == "change":
            assert all((synth_root / str(path)).is_file() for path in references)
        else:
            assert references == (EMPTY_MASK,) * 3
        assert [t for t, _ in pair.truth] == [i / 8 for i in range(1, 8)]
        assert all((synth_root / path).is_file() for _, path in pair.truth)


def test_a_missing_true_frame_moves_no_other(root: Path) -> None:
    """Keeps away: frames at another time than their own because one file is not there."""
    for folder, missing in (("sc/000000", 2), ("nsc/000000", 3), ("sc/000003", None)):
        path = root / "truth" / folder
        path.mkdir(parents=True)
        for step in {1, 2, 3} - {missing}:
            (path / f"{step:02d}.png").touch()
    first, second, whole, none = datasets.pairs(settings(root), "train")
    assert [t for t, _ in first.truth] == [0.25, 0.75]
    assert second.truth == (), "its last frame may be at 0.5 or at 2/3"
    assert [t for t, _ in whole.truth] == [0.25, 0.5, 0.75]
    assert none.truth == ()
    assert datasets.reader(settings(root)).faults(settings(root)) == [
        "truth/sc/000000: 2 true frames, not 3",
        "truth/nsc/000000: 2 true frames, not 3; left out, for their last is not 03.png",
    ]


def test_pairs_with_fewer_true_frames_have_none(root: Path) -> None:
    """Keeps away: the frames of a pair that has three of them, at the times of one with seven; a
    split with other numbers of them, at the times of this one.
    """
    for folder, count in (("sc/000000", 7), ("nsc/000000", 3), ("sc/000001", 3)):
        path = root / "truth" / folder
        path.mkdir(parents=True)
        for step in range(1, count + 1):
            (path / f"{step:02d}.png").touch()
    first, second, *_ = datasets.pairs(settings(root), "train")
    assert [t for t, _ in first.truth] == [step / 8 for step in range(1, 8)]
    assert second.truth == ()
    assert datasets.reader(settings(root)).faults(settings(root)) == [
        "truth/nsc/000000: 3 true frames, not 7; left out, for their last is not 07.png",
    ]
    # One stray file takes no other pair its frames.
    for folder, name in (("sc/000003", "07.png"), ("nsc/000003", "08.png")):
        path = root / "truth" / folder
        path.mkdir()
        (path / name).touch()
    assert [len(pair.truth) for pair in datasets.pairs(settings(root), "train")] == [7, 0, 1, 0]
    [other] = [p for p in datasets.pairs(settings(root), "val") if p.truth]
    assert [t for t, _ in other.truth] == [0.25, 0.5, 0.75]


def change(root: Path, name: str, value: object) -> None:
    (root / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("splits.json", None, "no file"),
        ("splits.json", "{", "not JSON"),
        ("splits.json", [1], "not a JSON object"),
        ("splits.json", {"train": ["a"]}, "not a list of numbers"),
        ("splits.json", {"train": [True]}, "not a list of numbers"),
        ("splits.json", {"test": [1]}, "no split 'train'"),
        ("change_captions.json", {"CLEVR_default_000000.png": "text"}, "no list of captions"),
        ("change_captions.json", "[" * 100_000, "not JSON"),
        ("type_mapping.json", {"color": ["x.png"]}, "not NNNNNN.png"),
        ("type_mapping.json", {"color": 3}, "not a list of file names"),
    ],
)
def test_damaged_annotations_are_named(root: Path, name: str, value: object, message: str) -> None:
    if value is None:
        (root / name).unlink()
    else:
        change(root, name, value)
    with pytest.raises(UserError) as caught:
        datasets.pairs(settings(root), "train")
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_faults_of_the_annotations(root: Path) -> None:
    change(root, "splits.json", {"train": [0, 1, 1], "val": [1], "test": [9]})
    change(root, "change_captions.json", {"CLEVR_default_000000.png": []})
    faults = datasets.reader(settings(root)).faults(settings(root))
    assert "splits.json: 1 is in train and in val" in faults
    assert "splits.json: 1 is in train and in train" in faults
    assert "type_mapping.json: no type for index 9" in faults
    assert "change_captions.json: nothing for index 1 of val" in faults


def test_missing_folder_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        datasets.pairs(settings(tmp_path / "none"), "train")
    message = str(caught.value)
    assert str(tmp_path / "none") in message
    assert "cc-prep synth" in message
    with pytest.raises(UserError, match="no split 'tests'"):
        datasets.pairs(settings(tmp_path), "tests")
