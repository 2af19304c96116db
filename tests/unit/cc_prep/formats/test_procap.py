"""ProCap's files: its names, its axes, and what a file of strangers may hold instead."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from cc_prep.errors import RejectedPair, UserError
from cc_prep.formats import procap
from cc_prep.records import FrameScores

CLEVR = procap.Names("anything", "clevr_change")
OTHER = procap.Names("std", "spot_the_diff")
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), np.uint8)


def frame_scores(captions: int, frames: int = 5) -> FrameScores:
    values = np.arange(captions * frames, dtype=np.float32).reshape(captions, frames)
    nothing = np.zeros(0, np.float32)
    texts = tuple(f"caption {i}" for i in range(captions))
    return FrameScores(texts, values, -values, nothing, nothing)


def test_names() -> None:
    """Keeps away: the no-change pairs of CLEVR-Change under the names of the change pairs."""
    assert CLEVR.videos("change") == "sc_videos.h5"
    assert CLEVR.videos("no_change") == "nsc_videos.h5"
    assert CLEVR.part("change") == "sc_sim_matrixes"
    assert CLEVR.part("no_change") == "nsc_sim_matrixes"
    assert (CLEVR.key("000123"), CLEVR.scores) == ("000123.png", "clevr_similarity_scores.json")
    for kind in ("change", "no_change"):
        assert (OTHER.videos(kind), OTHER.part(kind)) == ("std_videos.h5", None)
    assert (OTHER.key("12"), OTHER.scores) == ("12", "std_similarity_scores.json")


@pytest.mark.parametrize("names", [CLEVR, OTHER], ids=["clevr", "other"])
def test_round_trip(tmp_path: Path, names: procap.Names) -> None:
    with procap.exporting(str(tmp_path / "new"), names) as exporter:
        exporter.add_frames("1", "change", FRAMES)
        exporter.add_frames("2", "change", FRAMES[::-1])
        exporter.add_scores("1", "change", frame_scores(2))
        assert not [p for p in (tmp_path / "new").iterdir() if p.is_file()], "not complete yet"
    there = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert there == sorted([names.videos("change"), names.scores])
    with h5py.File(tmp_path / "new" / names.videos("change")) as file:
        assert np.array_equal(file[names.key("1")][()], FRAMES.transpose(0, 3, 1, 2))
    videos = procap.Videos(str(tmp_path / "new"), names)
    assert np.array_equal(videos.frames("1", "change"), FRAMES)
    assert np.array_equal(videos.frames("2", "change"), FRAMES[::-1])
    assert videos.count("change") == 5
    entries = procap.read_scores(str(tmp_path / "new"), names)
    mine = frame_scores(2)
    back = procap.scores_of(entries, names, "1", "change", mine.captions, 5)
    assert np.array_equal(back.bef_inter_sim, mine.bef_inter_sim)
    assert np.array_equal(back.inter_aft_sim, mine.inter_aft_sim)
    assert back.captions == mine.captions


def test_both_kinds_of_a_scene_stand_below_one_key(tmp_path: Path) -> None:
    """Keeps away: a no-change pair's matrices in the place of the change pair's."""
    with procap.exporting(str(tmp_path), CLEVR) as exporter:
        exporter.add_scores("1", "change", frame_scores(1))
        exporter.add_scores("1", "no_change", frame_scores(2))
    text = (tmp_path / CLEVR.scores).read_text()
    entries = json.loads(text)
    assert text == json.dumps(entries, sort_keys=True), "the same bytes whatever came first"
    assert entries.keys() == {"1.png"}
    assert len(entries["1.png"]["sc_sim_matrixes"]["bef_inter_sim"]) == 1
    assert len(entries["1.png"]["nsc_sim_matrixes"]["bef_inter_sim"]) == 2


def test_nothing_appears_when_the_work_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with procap.exporting(str(tmp_path), OTHER) as exporter:
            exporter.add_frames("1", "change", FRAMES)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("array", "fits"),
    [
        (np.zeros((3, 3, 4, 4), np.uint8), True),
        (np.zeros((2, 3, 4, 4), np.uint8), False),
        (np.zeros((5, 4, 4, 3), np.uint8), False),
        (np.zeros((5, 3, 4), np.uint8), False),
        (np.zeros((5, 3, 4, 4), np.float32), False),
    ],
    ids=["fits", "two frames", "channels last", "three axes", "floats"],
)
def test_only_sequences_are_taken(tmp_path: Path, array: np.ndarray, fits: bool) -> None:
    """Keeps away: one wrong property of a dataset that only counts beside another."""
    with h5py.File(tmp_path / OTHER.videos("change"), "w") as file:
        file["1"] = array
    videos = procap.Videos(str(tmp_path), OTHER)
    if fits:
        assert videos.frames("1", "change").shape == (3, 4, 4, 3)
    else:
        with pytest.raises(RejectedPair, match=r"not uint8 \[F, 3, H, W\]"):
            videos.frames("1", "change")
    with pytest.raises(RejectedPair, match=r"std_videos\.h5 has no 2"):
        videos.frames("2", "change")


def test_damaged_videos_are_named(tmp_path: Path) -> None:
    (tmp_path / OTHER.videos("change")).write_bytes(b"hello")
    with pytest.raises(RejectedPair, match=r"std_videos\.h5: .*file signature not found"):
        procap.Videos(str(tmp_path), OTHER).frames("1", "change")
    with pytest.raises(UserError, match=r"std_videos\.h5: no HDF5 file"):
        procap.Videos(str(tmp_path), OTHER).count("change")
    assert procap.Videos(str(tmp_path / "none"), OTHER).count("change") == 0


@pytest.mark.parametrize("text", ["[]", "{", "[" * 10**5])
def test_damaged_scores_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / OTHER.scores).write_text(text)
    with pytest.raises(UserError, match=OTHER.scores):
        procap.read_scores(str(tmp_path), OTHER)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([[0.0] * 5] * 2, [[0.0] * 4] * 2, "not 2 captions × 5 frames"),
        ([[0.0] * 5] * 3, [[0.0] * 5] * 3, "has (3, 5), not 2 captions"),
        ([[0.0] * 5, [0.0]], [[0.0] * 5] * 2, "has no matrices of 1"),
        (None, None, "has no matrices of 1"),
    ],
)
def test_matrices_have_a_row_a_caption_and_a_column_a_frame(
    before: object, after: object, message: str
) -> None:
    """Keeps away: scores of other captions or frames, of which one matrix happens to fit."""
    entry = {"bef_inter_sim": before, "inter_aft_sim": after}
    entries = {"1": entry if before is not None else None}
    with pytest.raises(RejectedPair) as caught:
        procap.scores_of(entries, OTHER, "1", "change", ("a", "b"), 5)
    assert message in caught.value.detail
