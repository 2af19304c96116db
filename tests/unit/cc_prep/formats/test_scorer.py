"""Features and labels as SCORER's public code and its neighbours read them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import scorer, training_shards
from cc_prep.formats.training_shards import Features
from cc_prep.records import CHANGE, NO_CHANGE
from tests.shard_factory import npy

CAPTIONS = {0: "the red cube moved.", 1: "a ball, small; left?", 2: "the cube has gone"}
SPLITS = ("train", "train", "val")


def shard(
    path: Path,
    numbers: tuple[int, ...] = (0, 1, 2),
    name: str = "a_{}.png",
    folder: str = "images",
    split: str | None = None,
    extra: int = 0,
    unchanged: str = "the same",
) -> str:
    """A shard with a changed and an unchanged pair of each number; features tell which image.

    folder: of the images before. split: of all pairs. extra: is added to all features.
    """
    samples: dict[str, dict[str, bytes]] = {}
    for number in numbers:
        for kind, word, value in ((CHANGE, "b", 1), (NO_CHANGE, "c", 2)):
            meta: dict[str, Any] = {
                "kind": kind, "split": split or SPLITS[number],
                "frames": 2, "height": 8, "width": 8,
                "before": f"{folder}/{name.format(number)}",
                "after": f"{kind}/{word}_{number}.png",
                "captions": [CAPTIONS[number], "it changed"] if kind == CHANGE else [unchanged],
            }  # fmt: skip
            values = np.zeros((2, 3, 2, 2), np.float16)
            values[0], values[1] = number + extra, number + 10 * value + extra
            features = Features("planted", "0" * 64, (0, 1), values)
            meta["features"] = features.meta()
            samples[f"set-{number}-{kind}"] = {
                "json": json.dumps(meta).encode(),
                "tokens.npy": npy(np.zeros((2, 0, 0), np.int16)),
                "scores.npy": npy(np.zeros((2, 0, 2), np.float32)),
                "features.npy": npy(values),
            }
    with training_shards.write_shard(str(path)) as (writer, _):
        for key, members in samples.items():
            writer.add(key, members)
    return str(path)


def test_words_are_split_as_the_public_code_does() -> None:
    assert scorer.words_of("a ball, small; left?") == ["a", "ball", ",", "small", ";", "left"]
    assert scorer.words_of("The  cube. ") == ["The", "cube"]
    words = scorer.vocabulary(["b a B", "a"], 1)
    assert words == [*scorer.MARKS, "B", "a", "b"]
    assert scorer.vocabulary(["b a B", "a"], 2) == [*scorer.MARKS, "a"]


@pytest.mark.parametrize("end", [True, False])
def test_features_labels_and_splits(tmp_path: Path, end: bool) -> None:
    count = scorer.export([shard(tmp_path / "train-000000.tar")], str(tmp_path / "out"), end)
    assert count == {"images": 9, "pairs": 6}
    for folder, name, extra in (("features", "a", 0), ("sc_features", "b", 10),
                                ("nsc_features", "c", 20)):  # fmt: skip
        for number in range(3):
            values = np.load(tmp_path / f"out/{folder}/{name}_{number}.png.npy")
            assert (values.shape, values.dtype) == ((3, 2, 2), np.float32)
            assert (values == number + extra).all()
    splits = json.loads((tmp_path / "out/splits.json").read_text())
    assert splits == {"train": [0, 1], "val": [2]}
    ids = json.loads((tmp_path / "out/vocab.json").read_text())
    assert "gone" not in ids, "a word of val"
    names = {number: word for word, number in ids.items()}
    with h5py.File(tmp_path / "out/labels.h5") as file:
        labels, first, last = (file[n][()] for n in ("labels", "label_start_idx", "label_end_idx"))
        assert labels.shape == (6, 7 + end)
        assert (first.tolist(), last.tolist()) == ([0, 2, 4], [1, 3, 5])
        words = [names[i] for i in labels[first[1]] if i]
        tail = ["<END>"] if end else []
        assert words == ["<START>", "a", "ball", ",", "small", ";", "left", *tail]
        assert [names[i] for i in labels[first[2]] if i][-1 - end] == "<UNK>"
        assert file["neg_labels"].shape == (3, 7 + end)
        assert file["label_length"][0] == 5 + end


def test_a_long_caption_of_an_unchanged_pair_is_whole(tmp_path: Path) -> None:
    """Keeps away: captions cut to the longest one of a changed pair, to none where none changed."""
    made = shard(tmp_path / "train-000000.tar", (0,), unchanged="all is as it was before")
    scorer.export([made], str(tmp_path / "out"))
    words = list(json.loads((tmp_path / "out/vocab.json").read_text()))
    with h5py.File(tmp_path / "out/labels.h5") as file:
        row = file["neg_labels"][0]
    said = [words[number] for number in row]
    assert said == ["<START>", "all", "is", "as", "it", "was", "before", "<END>"]


def test_what_the_public_code_could_not_count_is_refused(tmp_path: Path) -> None:
    """Keeps away: captions of other images than the features, where numbers have gaps."""
    gap = shard(tmp_path / "gap-000000.tar", (0, 2))
    with pytest.raises(UserError, match="image 1 is missing"):
        scorer.export([gap], str(tmp_path / "gap"))
    named = shard(tmp_path / "named-000000.tar", (0,), "room{}.png")
    with pytest.raises(UserError, match="has no number"):
        scorer.export([named], str(tmp_path / "named"))


def test_an_earlier_export_is_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    """Keeps away: features of another backbone that stay beside new labels."""
    out = tmp_path / "out"
    scorer.export([shard(tmp_path / "one-000000.tar")], str(out))
    with pytest.raises(UserError, match="features already exists"):
        scorer.export([shard(tmp_path / "two-000000.tar", extra=50)], str(out))
    assert (np.load(out / "features/a_1.png.npy") == 1).all()


def test_a_refused_export_leaves_nothing(tmp_path: Path) -> None:
    """Keeps away: features of half a data set that look complete."""
    with pytest.raises(UserError):
        scorer.export([shard(tmp_path / "gap-000000.tar", (0, 2))], str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    """Keeps away: gigabytes in a hidden folder, one more for each try."""
    left = tmp_path / "out/.0123456789ab.tmp/features"
    left.mkdir(parents=True)
    two_days_ago = time.time() - 2 * storage.A_DAY
    os.utime(left.parent, (two_days_ago, two_days_ago))
    scorer.export([shard(tmp_path / "one-000000.tar")], str(tmp_path / "out"))
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name[0] == "."]


def test_two_images_of_one_name_or_number_are_refused(tmp_path: Path) -> None:
    """Keeps away: one image's features in the place of another's, and a pair in two splits."""
    first = shard(tmp_path / "first-000000.tar", (0, 1))
    for options, message in (
        ({"folder": "test"}, "images/a_0.png and test/a_0.png both are image 0"),
        ({"name": "b_{}.png"}, "images/a_0.png and images/b_0.png both are image 0"),
        ({"split": "test"}, "image 0 is in train and in test"),
    ):
        second = shard(tmp_path / "second-000000.tar", (0,), **options)
        with pytest.raises(UserError, match=message):
            scorer.export([first, second], str(tmp_path / "out"))
