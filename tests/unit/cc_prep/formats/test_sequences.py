"""Sequence samples survive their shard; damaged ones are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import sequences
from cc_prep.formats.tar import DamagedShard, write_shard
from cc_prep.manifest import MAX_CLASSES
from cc_prep.media import images
from cc_prep.records import FrameSequence
from tests.job_factory import pair

FRAMES = np.random.default_rng(0).integers(0, 256, (5, 24, 32, 3), np.uint8)


def stored(path: Path, sequence: FrameSequence, codec: str = "png") -> sequences.StoredSequence:
    with write_shard(str(path)) as (writer, _):
        members = sequences.encode(sequence, codec, 90, {"method": "x"})
        writer.add(sequence.pair.key, members)
    return next(sequences.read(str(path)))


def test_png_is_exact(tmp_path: Path) -> None:
    masks = [(FRAMES[0, ..., channel] > 99).astype(np.uint8) for channel in range(3)]
    sequence = stored(tmp_path / "a.tar", FrameSequence(pair(3), FRAMES, {2: FRAMES[1]}, *masks))
    assert np.array_equal(sequence.frames(), FRAMES)
    assert np.array_equal(sequence.truth()[2], FRAMES[1])
    assert np.array_equal(sequence.masks(), masks)
    assert sequence.meta["mask_classes"] == ["change"]
    assert sequence.meta["captions"] == list(pair(3).captions)
    assert (sequence.meta["height"], sequence.meta["width"], sequence.meta["frames"]) == (24, 32, 5)


@pytest.mark.parametrize("codec", ["jpg", "webp"])
def test_lossy_codecs_keep_colours_apart(tmp_path: Path, codec: str) -> None:
    """Keeps away: red and blue swapped on the way in or out."""
    red = np.zeros((2, 24, 32, 3), np.uint8)
    red[..., 0] = 255
    frames = stored(tmp_path / "a.tar", FrameSequence(pair(0), red), codec).frames()
    assert frames[..., 0].mean() > 240
    assert frames[..., 2].mean() < 15


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


def test_members_of_others_are_no_true_frames(tmp_path: Path) -> None:
    """Keeps away: a WebDataset's .txt beside the frames, which ends every command on the shard."""
    members = sequences.encode(FrameSequence(pair(0), FRAMES, {2: FRAMES[2]}), "png", 90, {})
    others = dict.fromkeys(("txt", "t1.png", "t²².png", "t01.json", "tiff"), b"x")
    with write_shard(str(tmp_path / "a.tar")) as (writer, _):
        writer.add("k", {**members, **others})
    [sample] = sequences.read(str(tmp_path / "a.tar"))
    assert list(sample.truth()) == [2]


@pytest.mark.parametrize(("count", "fits"), [(1, False), (2, True), (99, True), (100, False)])
def test_how_many_frames_a_sample_may_have(count: int, fits: bool) -> None:
    """Keeps away: a sample of one frame, and one whose frames' names have three digits."""
    members = {"json": f'{{"frames": {count}, "codec": "png"}}'.encode()}
    if fits:
        assert sequences.decode("k", members).meta["frames"] == count
    else:
        with pytest.raises(DamagedShard, match=f"{count} frames"):
            sequences.decode("k", members)


@pytest.mark.parametrize(
    ("count", "fits"), [(1, True), (MAX_CLASSES, True), (MAX_CLASSES + 1, False)]
)
def test_how_many_classes_a_mask_may_have(count: int, fits: bool) -> None:
    names = [f"class {number}" for number in range(count)]
    meta = {"frames": 2, "codec": "png", "mask_classes": names}
    members = {"json": json.dumps(meta).encode(), "mask.png": b""}
    if fits:
        assert sequences.decode("k", members).meta["mask_classes"] == names
    else:
        with pytest.raises(DamagedShard, match=r"k: mask_classes in its \.json is"):
            sequences.decode("k", members)


def test_members_in_their_order_and_json_sorted() -> None:
    """Keeps away: bytes that depend on the order in which the code builds a dictionary."""
    truth = {3: FRAMES[3], 1: FRAMES[1]}
    mask = np.zeros((24, 32), np.uint8)
    members = sequences.encode(FrameSequence(pair(3), FRAMES, truth, mask), "png", 90, {"b": 1})
    frames = [f"f{i:02d}.png" for i in range(5)]
    assert list(members) == ["json", *frames, "t01.png", "t03.png", "mask.png"]
    meta = members["json"]
    assert meta == json.dumps(json.loads(meta), sort_keys=True, ensure_ascii=False).encode()


def test_captions_are_stored_as_they_are_read() -> None:
    """Keeps away: a caption of another script as six bytes of escapes a letter."""
    sequence = FrameSequence(replace(pair(3), captions=("Ünïcode 变化",)), FRAMES)
    assert "Ünïcode 变化".encode() in sequences.encode(sequence, "png", 90, {})["json"]


@pytest.mark.parametrize("codec", ["jpg", "webp"])
def test_quality_is_a_codecs_own(codec: str) -> None:
    """Keeps away: a quality that is ignored, or given under another codec's number."""
    sizes = [len(images.encode_image(FRAMES[0], codec, quality)) for quality in (20, 95)]
    assert sizes[0] < 0.7 * sizes[1]


def test_threads_change_no_byte() -> None:
    sequence = FrameSequence(pair(3), FRAMES)
    assert sequences.encode(sequence, "png", 90, {}, 3) == sequences.encode(sequence, "png", 90, {})
