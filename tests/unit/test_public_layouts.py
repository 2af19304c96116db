"""Readers of the public data sets on miniatures in their layouts, and on real annotations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_prep import datasets, manifest
from cc_prep.datasets.inspection import inspect
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from tests.conftest import ROOT

REAL = ROOT.parent / "shared" / "realdata"  # no licence: read where it stands, never copied


def image(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(place), np.full((32, 32, 3), 90, np.uint8))


def spot(root: Path) -> Manifest:
    rows = {
        "train": [
            {"img_id": "7", "sentences": ["the car is gone", " "]},
            {"img_id": 8, "sentences": ["a man left.", "a dog came"]},
            {"img_id": "7", "sentences": ["no more car"]},
        ],
        "val": [{"img_id": "9", "sentences": ["same"]}],
        "test": [{"img_id": "8", "sentences": ["there are no differences"]}],
    }
    (root / "annotations").mkdir()
    for split, found in rows.items():
        (root / f"annotations/{split}.json").write_text(json.dumps(found))
    for name in ("7.png", "7_2.png", "8.jpg", "8_2.jpg", "9.png", "9_2.png"):
        image(root / "resized_images" / name)
    return manifest.load("spot", root=str(root))


def edit(root: Path) -> Manifest:
    for split in ("train", "valid", "test"):
        row = {
            "uid": f"Z_{split}",
            "img0": "a b.jpg",
            "img1": f"{split}.jpg",
            "sents": ["more light "],
        }
        (root / f"{split}.json").write_text(json.dumps([row]))
        image(root / "images" / f"{split}.jpg")
    image(root / "images" / "a b.jpg")
    return manifest.load("edit", root=str(root))


def levir(root: Path) -> Manifest:
    rows = []
    for number, split in enumerate(("train", "val", "test", "train")):
        name = f"{split}_{number:06d}.png"
        said = [{"raw": f" caption {i} ."} for i in range(5)]
        rows.append({"filename": name, "split": split, "changeflag": number % 2, "sentences": said})
        for side in "AB":
            image(root / "images" / split / side / name)
    (root / "LevirCCcaptions.json").write_text(json.dumps({"images": rows}))
    return manifest.load("levir", root=str(root))


MADE = {"spot": spot, "edit": edit, "levir": levir}


def test_spot_the_diff(tmp_path: Path) -> None:
    found = datasets.pairs(spot(tmp_path), "train")
    assert [(p.id, p.captions) for p in found] == [
        ("7", ("the car is gone", "no more car")),
        ("8", ("a man left.", "a dog came")),
    ]
    assert [(p.before, p.after) for p in found] == [
        ("resized_images/7.png", "resized_images/7_2.png"),
        ("resized_images/8.jpg", "resized_images/8_2.jpg"),
    ]
    joined = manifest.load("spot", ["captions.join=true"], root=str(tmp_path))
    assert datasets.pairs(joined, "train")[1].captions == ("a man left. a dog came",)
    said = inspect(joined, joined.splits).faults
    assert "train: 1 empty sentences, left out" in said
    assert "train: 1 pairs have several rows, taken as one pair each" in said
    assert "8 is in train and in test" in said


def test_image_editing(tmp_path: Path) -> None:
    settings = edit(tmp_path)
    [found] = datasets.pairs(settings, "val")
    assert (found.id, found.before, found.after) == (
        "Z_valid",
        "images/a b.jpg",
        "images/valid.jpg",
    )
    assert found.captions == ("more light",)
    said = inspect(settings, settings.splits)
    assert said.faults == [
        f"{s}: 1 before images are in another split too" for s in ("val", "test")
    ]
    assert said.image_sizes == {"32×32": 4}


def test_levir_cc(tmp_path: Path) -> None:
    settings = levir(tmp_path)
    found = datasets.pairs(settings, "train")
    assert [(p.id, p.kind) for p in found] == [
        ("train_000000", "no_change"),
        ("train_000003", "change"),
    ]
    assert found[0].after == "images/train/B/train_000000.png"
    assert found[0].captions[0] == "caption 0 ."
    assert inspect(settings, settings.splits).faults == []


@pytest.mark.parametrize("name", list(MADE))
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "row"])
def test_damaged_annotations(tmp_path: Path, name: str, damage: str) -> None:
    settings = MADE[name](tmp_path)
    [file] = [f for f in tmp_path.rglob("*.json") if f.stem in ("train", "LevirCCcaptions")]
    if damage == "missing":
        file.unlink()
    else:
        text = file.read_text()
        row = text.replace('"img_id"', '"x"').replace('"uid"', '"x"').replace('"filename"', '"x"')
        file.write_text({"cut": text[:-9], "foreign": "3", "row": row}[damage])
    with pytest.raises(UserError, match=file.name):
        datasets.pairs(settings, "train")


@pytest.mark.parametrize("name", list(MADE))
def test_no_folder_says_what_belongs_there(tmp_path: Path, name: str) -> None:
    settings = manifest.load(name, root=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="or name its folder with --root"):
        datasets.pairs(settings, "train")


# Counted by hand, with a few lines of Python that know nothing of ours.
COUNTS = {
    "spot": {"train": (8566, 53), "val": (1493, 6), "test": (1270, 7)},
    "edit": {"train": (3061, 0), "val": (383, 0), "test": (495, 0)},
}
FOLDERS = {"spot": "spot_the_diff", "edit": "image_editing_request"}


def check_real_annotations(folder: Path, name: str) -> None:
    shutil.copytree(REAL / FOLDERS[name], folder / "root")
    settings = manifest.load(name, root=str(folder / "root"))
    said = datasets.reader(settings).faults(settings)
    for split, (pairs, empty) in COUNTS[name].items():
        found = datasets.pairs(settings, split)
        assert len(found) == pairs
        assert len({pair.key for pair in found}) == pairs
        expected = f"{split}: {empty} empty sentences, left out"
        assert (expected in said) == bool(empty)


if REAL.exists():  # elsewhere there is nothing to check, and so no test that is skipped

    @pytest.mark.parametrize("name", list(COUNTS))
    def test_real_annotations(tmp_path: Path, name: str) -> None:
        check_real_annotations(tmp_path, name)
