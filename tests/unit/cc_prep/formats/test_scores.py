"""Scores on disk: what goes in comes out, what is damaged is named."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import scores, tar
from cc_prep.records import MAX_SCORE, FrameScores
from cc_prep.steps.score import penalties
from tests.job_factory import frame_scores


def row(similarities: FrameScores) -> scores.Row:
    return scores.encode(similarities, np.zeros(5, np.float32), [0, 2, 4], "clip4idc-mini", "ab")


@pytest.mark.parametrize("captions", [0, 1, 7])
def test_scores_come_back_exactly(tmp_path: Path, captions: int) -> None:
    path = str(tmp_path / "train-000000.parquet")
    original = frame_scores(captions)
    with scores.write_shard(path) as (writer, written):
        writer.add("a", row(original))
        writer.add("b", row(frame_scores(2)))
    assert written.samples == 2
    back = dict(scores.read_shard(path))
    assert list(back) == ["a", "b"]
    mine = scores.decode(back["a"])
    assert mine.captions == original.captions
    for name in ("bef_inter_sim", "inter_aft_sim", "bef_inter_visual", "inter_aft_visual"):
        assert np.array_equal(getattr(mine, name), getattr(original, name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(
            ("bef_inter_sim", "inter_aft_visual", "penalty"), (np.nan, np.inf, -np.inf)
        ),
        ("bef_inter_sim", 1e19),
        ("inter_aft_visual", 1e19),
    ],
)
def test_scores_that_are_not_finite_are_named(name: str, value: float) -> None:
    """Keeps away: training shards with scores of NaN, of a table that a step reads unchecked."""
    damaged = {"key": "k", **row(frame_scores(2))}
    flat = damaged[name] if name != "bef_inter_sim" else damaged[name][1]
    flat[4] = value
    with pytest.raises(tar.DamagedShard, match="k: a score is no finite number"):
        scores.decode(damaged)


def test_penalties_of_all_scores_that_are_taken() -> None:
    """Keeps away: a shard that a job writes, and that verify and the next step call damaged."""
    one = np.full((1, 5), MAX_SCORE / 2, np.float32)
    largest = FrameScores(("a",), one, -one, one[0], -one[0])
    penalty = penalties(*largest.similarities())
    back = scores.decode(scores.encode(largest, penalty, [0, 2, 4], "clip4idc-mini", "ab"))
    assert np.array_equal(back.bef_inter_sim, one)


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
