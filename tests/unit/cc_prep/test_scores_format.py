"""Scores and training shards on disk: what goes in comes out, what is damaged is named."""

from __future__ import annotations

import io
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


def row(found: FrameScores) -> scores.Row:
    return scores.encode(found, np.zeros(5, np.float32), [0, 2, 4], "clip4idc-mini", "ab")


@pytest.mark.parametrize("captions", [0, 1, 7])
def test_scores_come_back_exactly(tmp_path: Path, captions: int) -> None:
    place = str(tmp_path / "train-000000.parquet")
    found = frame_scores(captions)
    with scores.write_shard(place) as (writer, written):
        writer.add("a", row(found))
        writer.add("b", row(frame_scores(2)))
    assert written.samples == 2
    back = dict(scores.read_shard(place))
    assert list(back) == ["a", "b"]
    mine = scores.decode(back["a"])
    assert mine.captions == found.captions
    for name in ("bef_inter_sim", "inter_aft_sim", "bef_inter_visual", "inter_aft_visual"):
        assert np.array_equal(getattr(mine, name), getattr(found, name))


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
    found = training_shards.decode("k", sample())
    assert found.tokens.dtype == np.int16
    assert np.array_equal(found.tokens, np.arange(20).reshape(5, 2, 2))
    assert np.array_equal(found.scores, frame_scores(1).similarities())
    assert sorted(found.images) == [0, 4]
    assert found.image(0).shape == (32, 32, 3)
    assert found.meta["captions"] == ["it moved"]
    with pytest.raises(tar.DamagedShard, match="frame 2"):
        found.image(2)


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
    with tar.write_shard(place) as (writer, written):
        for name in ("a", "b", "c"):
            writer.add(name, sample())
    index = {"train-000000": (written.offsets, written.bytes)}
    training_shards.write_index(str(tmp_path), index)
    rows = training_shards.read_index(str(tmp_path))
    assert [r["key"] for r in rows] == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        found = training_shards.lookup(str(tmp_path), name)
        assert found is not None
        assert found.key == name
    assert training_shards.lookup(str(tmp_path), "d") is None
