"""What a training step sees: the index over shards, the order by seed and step."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.formats import sequences, tar
from cc_prep.records import FrameSequence, ImagePair
from cc_train.data import order, sequence_index
from cc_train.systems.clip4idc import recipe as clip4idc
from cc_train.systems.clip4idc.objective import sinusoids_2d
from cc_train.systems.procap import batches
from cc_train.systems.vqgan import recipe as vqgan

RANDOM = np.random.default_rng(0)


def write(folder: Path, numbers: range, split: str = "train", index: int = 0) -> Path:
    place = folder / f"{split}-{index:06d}.tar"
    with tar.write_shard(str(place)) as (writer, _):
        for i in numbers:
            kind = "no_change" if i % 2 else "change"
            pair = ImagePair("d", split, str(i // 2), kind, "b", "a", (f"caption {i}",))
            frames = np.full((3, 32, 40, 3), 10 * i, np.uint8)
            writer.add(pair.key, sequences.encode(FrameSequence(pair, frames), "png", 95, {}))
    return place


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 5), st.integers(0, 1000))
def test_every_item_once_an_epoch(count: int, batch: int, epochs: int, seed: int) -> None:
    steps = -(-count * epochs // batch)
    seen = [int(i) for s in range(steps) for i in order.items_of_step(s, batch, count, seed)]
    for epoch in range(epochs):
        part = seen[epoch * count : (epoch + 1) * count]
        assert sorted(part) == list(range(count))


@given(st.lists(st.integers(0, 20), min_size=2), st.floats(0.01, 0.99))
def test_no_id_in_both_parts(ids: list[int], share: float) -> None:
    names = [str(i) for i in ids]
    train, held_out = order.hold_out(names, names, share)
    assert not set(train) & set(held_out)
    assert Counter(train) + Counter(held_out) == Counter(names)
    if len(set(names)) > 1:
        assert train
        assert held_out


def test_the_index_reads_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, range(4))
    write(tmp_path, range(4, 6), index=1)
    samples = sequence_index.read_index([f"{tmp_path}/train-{{000000..000001}}.tar"])
    assert [s.meta["captions"] for s in samples] == [[f"caption {i}"] for i in range(6)]
    assert samples == sequence_index.read_index([f"{tmp_path}/*.tar"])
    for i, sample in enumerate(samples):
        assert sample.frames == ["f00.png", "f01.png", "f02.png"]
        assert (sample.image("f01.png") == 10 * i).all()


def test_what_is_no_shard(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        sequence_index.read_index([f"{tmp_path}/*.tar"])
    whole = write(tmp_path, range(3)).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.tar"):
        sequence_index.read_index([str(cut)])
    (tmp_path / "text.tar").write_text("hello " * 200)
    with pytest.raises(UserError, match=r"text\.tar"):
        sequence_index.read_index([str(tmp_path / "text.tar")])
    with tarfile.open(tmp_path / "link.tar", "w") as file:
        link = tarfile.TarInfo("a.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    with pytest.raises(UserError, match="no regular file"):
        sequence_index.read_index([str(tmp_path / "link.tar")])


@pytest.mark.parametrize("size", [(64, 64), (20, 90), (32, 32), (33, 31)])
def test_crops_fit(size: tuple[int, int]) -> None:
    data = vqgan.Data(crop=32)
    image = RANDOM.integers(0, 256, (*size, 3), np.uint8)
    for place in range(20):
        assert vqgan._crop(image, data, order.rng_of(0, 0, place)).shape == (32, 32, 3)


def test_a_mirrored_pair_keeps_its_caption_true() -> None:
    data = clip4idc.Data(mirror=True)
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :2] = 255  # something on the left
    seen = set()
    for place in range(20):
        variation = clip4idc.Variation.draw(data, order.rng_of(0, 0, place))
        pair = variation.of_pair(image, image)
        side = "left" if pair[0][0, 0, 0] else "right"
        assert variation.of_caption("the cube left of the ball") == f"the cube {side} of the ball"
        assert np.array_equal(*pair)
        seen.add(side)
    assert seen == {"left", "right"}


def test_both_images_move_together() -> None:
    image = RANDOM.integers(0, 256, (16, 16, 3), np.uint8)
    data = clip4idc.Data(shift=3, blur=1.0)
    variation = clip4idc.Variation.draw(data, order.rng_of(0, 0))
    before, after = variation.of_pair(image, image)
    assert np.array_equal(before, after)
    assert not np.array_equal(before, image)


def test_true_sentences_are_no_negatives() -> None:
    metas = [{"kind": "change"}, {"kind": "no_change"}, {"kind": "no_change"}, {"kind": "change"}]
    sentences = ["a", "b", "c", "a"]
    positives = clip4idc.positives(sentences, metas).int().tolist()
    assert positives == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]


def test_fewer_pairs_without_change(tmp_path: Path) -> None:
    write(tmp_path, range(20))
    samples = sequence_index.read_index([f"{tmp_path}/*.tar"])
    for share, still in ((0.0, 0), (0.3, 3), (1.0, 10)):
        chosen = clip4idc._fewer_unchanged(samples, share)
        assert sum(s.meta["kind"] == "no_change" for s in chosen) == still
        assert sum(s.meta["kind"] == "change" for s in chosen) == 10


def test_waves_tell_every_place_apart() -> None:
    embeddings = sinusoids_2d(7, 64)
    assert embeddings.shape == (50, 64)
    assert not embeddings[0].any()
    places = embeddings[1:]
    assert (places @ places.T).argmax(1).tolist() == list(range(49))


@given(st.integers(0, 10**6), st.floats(0.05, 1), st.integers(8, 40), st.integers(8, 40))
def test_a_crop_is_the_same_of_all_frames(seed: int, least: float, height: int, width: int) -> None:
    ramp = np.arange(height * width, dtype=np.int64).reshape(1, height, width, 1) * 255
    frame = np.broadcast_to(ramp // (height * width), (1, height, width, 3)).astype(np.uint8)
    frames = np.concatenate([frame, frame, frame])
    crops = batches.cropped(frames, least, np.random.default_rng(seed))
    assert crops.shape == frames.shape
    assert (crops[0] == crops[1]).all()
    assert (crops[0] == crops[2]).all()
    if least == 1:  # nothing is left out, and a resize to the same size changes nothing
        assert (crops == frames).all()
