"""Scores and training shards on disk: what goes in comes out, what is damaged is named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import scores, tar, training_shards
from cc_prep.records import FrameScores, FrameSequence, ImagePair


def frame_scores(captions: int, frames: int = 5) -> FrameScores:
    rng = np.random.default_rng(captions)
    draw = [rng.normal(size=(captions, frames)).astype(np.float32) for _ in range(2)]
    likeness = [rng.normal(size=frames).astype(np.float32) for _ in range(2)]
    return FrameScores(tuple(f"caption {i} ü" for i in range(captions)), *draw, *likeness)


def row(similarities: FrameScores) -> scores.Row:
    return scores.encode(similarities, np.zeros(5, np.float32), [0, 2, 4], "clip4idc-mini", "ab")


@pytest.mark.parametrize("captions", [0, 1, 7])
def test_scores_come_back_exactly(tmp_path: Path, captions: int) -> None:
    place = str(tmp_path / "train-000000.parquet")
    original = frame_scores(captions)
    with scores.write_shard(place) as (writer, written):
        writer.add("a", row(original))
        writer.add("b", row(frame_scores(2)))
    assert written.samples == 2
    back = dict(scores.read_shard(place))
    assert list(back) == ["a", "b"]
    mine = scores.decode(back["a"])
    assert mine.captions == original.captions
    for name in ("bef_inter_sim", "inter_aft_sim", "bef_inter_visual", "inter_aft_visual"):
        assert np.array_equal(getattr(mine, name), getattr(original, name))


def test_similarities_fall_back_to_likeness() -> None:
    assert frame_scores(3).similarities().shape == (2, 3, 5)
    assert frame_scores(3).similarities(visual=True).shape == (2, 1, 5)
    assert frame_scores(0).similarities().shape == (2, 1, 5)


def test_equal_rows_equal_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        with scores.write_shard(str(tmp_path / name)) as (writer, written):
            writer.add("k", row(frame_scores(2)))
        digests.append(written.sha256)
    assert digests[0] == digests[1]


def test_nothing_is_written_when_the_work_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with scores.write_shard(str(tmp_path / "x")) as (writer, _):
            writer.add("k", row(frame_scores(2)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1PAR1"])
def test_no_table(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(tar.DamagedShard, match=r"x\.parquet"):
        list(scores.read_shard(str(tmp_path / "x.parquet")))


def test_lists_that_do_not_fit() -> None:
    bad = row(frame_scores(2))
    bad["inter_aft_sim"] = [[1.0]]
    with pytest.raises(tar.DamagedShard):
        scores.decode(bad)


@pytest.mark.parametrize(
    "name", ["penalty", "captions", "bef_inter_sim", "bef_inter_visual", "inter_aft_visual"]
)
def test_a_missing_list_is_not_an_empty_one(name: str) -> None:
    """Keeps away: a null in a table of strangers that is read as a score."""
    with pytest.raises(tar.DamagedShard):
        scores.decode({**row(frame_scores(2)), name: None})


@pytest.mark.parametrize("length", [1, 4, 6])
def test_likeness_without_words_has_a_value_a_frame_or_none(length: int) -> None:
    values = row(frame_scores(2))
    assert scores.decode({**values, "bef_inter_visual": []}).bef_inter_visual.shape == (0,)
    with pytest.raises(tar.DamagedShard):
        scores.decode({**values, "bef_inter_visual": [0.5] * length})


def sample() -> dict[str, bytes]:
    pair = ImagePair("d", "train", "1", "change", "b", "a", ("it moved",))
    frames = np.arange(5 * 32 * 32 * 3).reshape(5, 32, 32, 3).astype(np.uint8)
    tokens = np.arange(20).reshape(5, 2, 2)
    return training_shards.encode(
        FrameSequence(pair, frames),
        tokens,
        frame_scores(1).similarities(),
        [0, 4],
        95,
        {"codes": 20},
    )


def test_training_sample_comes_back() -> None:
    decoded = training_shards.decode("k", sample())
    assert decoded.tokens.dtype == np.int16
    assert np.array_equal(decoded.tokens, np.arange(20).reshape(5, 2, 2))
    assert np.array_equal(decoded.scores, frame_scores(1).similarities())
    assert sorted(decoded.images) == [0, 4]
    assert decoded.image(0).shape == (32, 32, 3)
    assert decoded.meta["captions"] == ["it moved"]
    with pytest.raises(tar.DamagedShard, match="frame 2"):
        decoded.image(2)


def test_object_arrays_are_never_unpickled() -> None:
    """Keeps away: a shard of a stranger that runs code."""
    members = sample()
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], object), allow_pickle=True)
    with pytest.raises(tar.DamagedShard):
        training_shards.decode("k", {**members, "tokens.npy": buffer.getvalue()})


@pytest.mark.parametrize("member", ["json", "tokens.npy", "scores.npy"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]"])
def test_damaged_members(member: str, content: bytes | None) -> None:
    members = {**sample(), member: content}
    if content is None:
        del members[member]
    with pytest.raises(tar.DamagedShard):
        training_shards.decode("k", members)


def test_the_index_finds_every_sample(tmp_path: Path) -> None:
    place = str(tmp_path / "train-000000.tar")
    with training_shards.write_shard(place) as (writer, written):
        for name in ("a", "b", "c"):
            writer.add(name, sample())
    training_shards.write_index(str(tmp_path), {"train-000000": written.index})
    rows = training_shards.read_index(str(tmp_path))
    assert [r["key"] for r in rows] == ["a", "b", "c"]
    assert [r["captions"] for r in rows] == [["it moved"]] * 3
    for name in ("a", "b", "c"):
        looked_up = training_shards.lookup(str(tmp_path), name)
        assert looked_up is not None
        assert looked_up.key == name
    assert training_shards.lookup(str(tmp_path), "d") is None


def test_equal_samples_equal_bytes() -> None:
    """Keeps away: JSON whose keys stand in the order in which the code happens to build it."""
    json_bytes = sample()["json"]
    assert json_bytes == json.dumps(json.loads(json_bytes), sort_keys=True).encode()
    assert list(sample()) == ["json", "tokens.npy", "scores.npy", "f00.jpg", "f04.jpg"]


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("member", "array"),
    [
        ("tokens.npy", np.zeros((5, 2, 2), np.int32)),
        ("tokens.npy", np.zeros((5, 4), np.int16)),
        ("tokens.npy", np.zeros((4, 2, 2), np.int16)),
        ("scores.npy", np.zeros((2, 1, 5), np.float64)),
        ("scores.npy", np.zeros((2, 5), np.float32)),
        ("scores.npy", np.zeros((2, 1, 4), np.float32)),
        ("scores.npy", np.zeros((1, 1, 5), np.float32)),
    ],
)
def test_arrays_of_another_kind_or_shape(member: str, array: np.ndarray) -> None:
    """Keeps away: one wrong property of an array that only counts beside another."""
    with pytest.raises(tar.DamagedShard, match=member.partition(".")[0]):
        training_shards.decode("k", {**sample(), member: npy(array)})


def test_the_index_stands_in_the_order_of_the_bytes(tmp_path: Path) -> None:
    rows = {
        "b": [{"key": "k3", "offset": 0, "bytes": 4096}],
        "a": [
            {"key": "k2", "offset": 1024, "bytes": 4096},
            {"key": "k1", "offset": 0, "bytes": 1024},
        ],
    }
    training_shards.write_index(str(tmp_path), rows)
    listed = training_shards.read_index(str(tmp_path))
    assert [(row["key"], row["shard"], row["offset"], row["bytes"]) for row in listed] == [
        ("k1", "a", 0, 1024),
        ("k2", "a", 1024, 4096),
        ("k3", "b", 0, 4096),
    ]


def test_the_index_counts_every_byte_once(tmp_path: Path) -> None:
    """Keeps away: rows that overlap, or that take in what ends a tar."""
    with training_shards.write_shard(str(tmp_path / "a.tar")) as (writer, written):
        for name in ("k1", "k2"):
            writer.add(name, sample())
    one, two = written.index
    assert one["offset"] == 0
    assert two["offset"] == one["bytes"]
    assert two["offset"] + two["bytes"] <= written.bytes - 1024
    assert set((tmp_path / "a.tar").read_bytes()[two["offset"] + two["bytes"] :]) == {0}
