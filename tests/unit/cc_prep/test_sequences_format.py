"""Sequence samples survive their shard; damaged ones are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import sequences
from cc_prep.formats.tar import DamagedShard, write_shard
from cc_prep.records import FrameSequence
from tests.fakes import pair

FRAMES = np.random.default_rng(0).integers(0, 256, (5, 24, 32, 3), np.uint8)


def stored(place: Path, sequence: FrameSequence, codec: str = "png") -> sequences.StoredSequence:
    with write_shard(str(place)) as (writer, _):
        members = sequences.encode(sequence, codec, 90, {"method": "x"})
        writer.add(sequence.pair.key, members)
    return next(sequences.read(str(place)))


def test_png_is_exact(tmp_path: Path) -> None:
    mask = np.where(FRAMES[0, ..., 0] > 99, 255, 0).astype(np.uint8)
    found = stored(tmp_path / "a.tar", FrameSequence(pair(3), FRAMES, {2: FRAMES[1]}, mask))
    assert np.array_equal(found.frames(), FRAMES)
    assert np.array_equal(found.truth()[2], FRAMES[1])
    assert np.array_equal(found.mask(), mask)
    assert found.meta["captions"] == list(pair(3).captions)
    assert (found.meta["height"], found.meta["width"], found.meta["frames"]) == (24, 32, 5)


@pytest.mark.parametrize("codec", ["jpg", "webp"])
def test_lossy_codecs_keep_colours_apart(tmp_path: Path, codec: str) -> None:
    """Keeps away: red and blue swapped on the way in or out."""
    red = np.zeros((2, 24, 32, 3), np.uint8)
    red[..., 0] = 255
    found = stored(tmp_path / "a.tar", FrameSequence(pair(0), red), codec).frames()
    assert found[..., 0].mean() > 240
    assert found[..., 2].mean() < 15


@pytest.mark.parametrize(
    "members",
    [
        {"f00.png": b"x"},
        {"json": b"{}"},
        {"json": b"[1]"},
        {"json": b'{"frames": "9", "codec": "png"}'},
        {"json": b'{"frames": 9, "codec": "pkl"}'},
        {"json": b'{"frames": 1000000000, "codec": "png"}'},
        {"json": b"[" * 100_000},
    ],
)
def test_unusable_json(tmp_path: Path, members: dict[str, bytes]) -> None:
    with write_shard(str(tmp_path / "a.tar")) as (writer, _):
        writer.add("k", members)
    with pytest.raises(DamagedShard, match="k"):
        list(sequences.read(str(tmp_path / "a.tar")))


def test_missing_and_broken_frames_are_named(tmp_path: Path) -> None:
    with write_shard(str(tmp_path / "a.tar")) as (writer, _):
        meta = b'{"frames": 2, "codec": "png"}'
        writer.add("none", {"json": meta})
        writer.add("text", {"json": meta, "f00.png": b"hello", "f01.png": b""})
    for sample in sequences.read(str(tmp_path / "a.tar")):
        with pytest.raises(DamagedShard, match=f"{sample.key}.*f00"):
            sample.frames()
