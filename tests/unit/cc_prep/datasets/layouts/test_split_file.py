"""Splits of data that come without."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import UserError
from tests.dataset_factory import image, write


def test_splits_that_the_manifest_leaves_out(tmp_path: Path) -> None:
    """Keeps away: data of which only `train` is prepared, since `init` wrote no other split."""
    for name in ("1", "2"):
        image(tmp_path / f"A/{name}.png")
        image(tmp_path / f"B/{name}.png")
    file = {"about": {}, "splits": {"train": ["2"], "val": [], "test": ["1"]}}
    write(tmp_path / "splits.json", file)
    keys = ["layout=folders", "split_file=splits.json"]
    narrow = manifest.load("own", [*keys, "splits=[train]"], root=str(tmp_path))
    with pytest.raises(UserError) as error:
        datasets.pairs(narrow, "train")
    assert str(error.value) == (
        f"{tmp_path}/splits.json: its splits test are not among the manifest's splits. "
        "Set splits: [train, test] in the manifest"
    )
    without_val = manifest.load("own", [*keys, "splits=[train,test]"], root=str(tmp_path))
    assert [p.id for p in datasets.pairs(without_val, "test")] == ["1"]


def test_a_pair_in_two_splits(tmp_path: Path) -> None:
    """Keeps away: the split that stands last, without a word: a test pair that is trained on."""
    image(tmp_path / "A/1.png")
    image(tmp_path / "B/1.png")
    write(tmp_path / "splits.json", {"splits": {"train": ["1"], "test": ["1"]}})
    both = manifest.load("own", ["layout=folders", "split_file=splits.json"], root=str(tmp_path))
    with pytest.raises(UserError, match=r"splits\.json: '1' is in the splits train and test"):
        datasets.pairs(both, "train")


def test_any_description_of_a_split(tmp_path: Path) -> None:
    """Keeps away: a traceback of a split file that was written by hand."""
    write(tmp_path / "splits.json", {"about": "by hand", "splits": {"train": []}})
    settings = manifest.load("own", ["split_file=splits.json"], root=str(tmp_path))
    assert split_file.description(settings) == {"about": "by hand"}
