"""ProCap's files: its names, its axes, and what a file of strangers may hold instead."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import procap
from cc_prep.records import FrameScores, ImagePair

CLEVR = procap.Names("anything", "clevr_change")
OTHER = procap.Names("std", "spot_the_diff")
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), np.uint8)


def one(id: str, kind: str = "change", split: str = "train") -> ImagePair:
    return ImagePair("mine", split, id, kind, "b.png", "a.png")


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
    assert (CLEVR.key(one("000123")), CLEVR.scores) == (
        "000123.png",
        "clevr_similarity_scores.json",
    )
    for kind in ("change", "no_change"):
        assert (OTHER.videos(kind), OTHER.part(kind)) == ("std_videos.h5", None)
    assert (OTHER.key(one("12")), OTHER.scores) == ("12", "std_similarity_scores.json")


@pytest.mark.parametrize("names", [CLEVR, OTHER], ids=["clevr", "other"])
def test_round_trip(tmp_path: Path, names: procap.Names) -> None:
    with procap.exporting(str(tmp_path / "new"), names) as exporter:
        exporter.add_frames(one("1"), FRAMES)
        exporter.add_frames(one("2"), FRAMES[::-1])
        exporter.add_scores(one("1"), frame_scores(2))
        assert not [p for p in (tmp_path / "new").iterdir() if p.is_file()], "not complete yet"
    there = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert there == sorted([names.videos("change"), names.scores])
    with h5py.File(tmp_path / "new" / names.videos("change")) as file:
        assert np.array_equal(file[names.key(one("1"))][()], FRAMES.transpose(0, 3, 1, 2))
    videos = procap.Videos(str(tmp_path / "new"), names)
    assert np.array_equal(videos.frames(one("1")), FRAMES)
    assert np.array_equal(videos.frames(one("2")), FRAMES[::-1])
    assert videos.count("change") == 5
    entries = procap.read_scores(str(tmp_path / "new"), names)
    mine = frame_scores(2)
    back = procap.scores_of(entries, names, one("1"), mine.captions, 5)
    assert np.array_equal(back.bef_inter_sim, mine.bef_inter_sim)
    assert np.array_equal(back.inter_aft_sim, mine.inter_aft_sim)
    assert back.captions == mine.captions


def test_both_kinds_of_a_scene_stand_below_one_key(tmp_path: Path) -> None:
    """Keeps away: a no-change pair's matrices in the place of the change pair's."""
    with procap.exporting(str(tmp_path), CLEVR) as exporter:
        exporter.add_scores(one("1"), frame_scores(1))
        exporter.add_scores(one("1", "no_change"), frame_scores(2))
    text = (tmp_path / CLEVR.scores).read_text()
    entries = json.loads(text)
    assert text == json.dumps(entries, sort_keys=True), "the same bytes whatever came first"
    assert entries.keys() == {"1.png"}
    assert len(entries["1.png"]["sc_sim_matrixes"]["bef_inter_sim"]) == 1
    assert len(entries["1.png"]["nsc_sim_matrixes"]["bef_inter_sim"]) == 2


def test_nothing_appears_when_the_work_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with procap.exporting(str(tmp_path), OTHER) as exporter:
            exporter.add_frames(one("1"), FRAMES)
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
        assert videos.frames(one("1")).shape == (3, 4, 4, 3)
    else:
        with pytest.raises(RejectedPair, match=r"not uint8 \[F, 3, H, W\]"):
            videos.frames(one("1"))
    with pytest.raises(RejectedPair, match=r"std_videos\.h5 has no 2"):
        videos.frames(one("2"))


def test_damaged_videos_are_named(tmp_path: Path) -> None:
    (tmp_path / OTHER.videos("change")).write_bytes(b"hello")
    with pytest.raises(RejectedPair, match=r"std_videos\.h5: .*file signature not found"):
        procap.Videos(str(tmp_path), OTHER).frames(one("1"))
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
        procap.scores_of(entries, OTHER, one("1", "change"), ("a", "b"), 5)
    assert message in caught.value.detail


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e300", "1e19", "null"])
def test_scores_that_are_not_finite_reject_their_pair(value: str) -> None:
    """Keeps away: keyframes drawn from NaN, in shards that a training then learns nothing from."""
    good = [[0.0] * 5] * 2
    bad = json.loads(f"[[0, 0, 0, 0, 0], [0, 0, 0, 0, {value}]]")
    for entry in ([good, bad], [bad, good]):
        entries = {"1": dict(zip(procap.MATRICES, entry, strict=True))}
        with pytest.raises(RejectedPair, match=r"1: .*no finite number") as caught:
            procap.scores_of(entries, OTHER, one("1", "change"), ("a", "b"), 5)
        assert caught.value.reason is Reason.UNREADABLE_SEQUENCE


def test_ids_that_two_splits_share_and_ids_of_paths(tmp_path: Path) -> None:
    """Keeps away: a traceback of HDF5, and a group where a slash is, in a data set of folders."""
    names = procap.Names("mine", "folders")
    pairs = [one("1"), one("1", split="val"), one("train/1")]
    with procap.exporting(str(tmp_path), names) as exporter:
        for number, pair in enumerate(pairs):
            exporter.add_frames(pair, FRAMES + number)
            exporter.add_scores(pair, frame_scores(number + 1))
    videos = procap.Videos(str(tmp_path), names)
    assert videos.count("change") == 5
    entries = procap.read_scores(str(tmp_path), names)
    for number, pair in enumerate(pairs):
        assert np.array_equal(videos.frames(pair), FRAMES + number)
        captions = frame_scores(number + 1).captions
        assert procap.scores_of(entries, names, pair, captions, 5).captions == captions


def test_files_of_others_that_go_by_ids_are_read_too(tmp_path: Path) -> None:
    names = procap.Names("mine", "folders")
    with h5py.File(tmp_path / names.videos("change"), "w") as file:
        file["1"] = FRAMES.transpose(0, 3, 1, 2)
    assert np.array_equal(procap.Videos(str(tmp_path), names).frames(one("1")), FRAMES)


def test_a_key_counts_more_than_an_id() -> None:
    """Keeps away: the frames of another split's pair of that id, where both are there."""
    names, pair = procap.Names("mine", "folders"), one("1")
    assert names.key_in({pair.key, pair.id}, pair) == pair.key
    assert names.key_in({"2"}, pair) == pair.key
    assert names.key_in({pair.id}, pair) == pair.id


def test_an_id_of_two_pairs_names_neither(tmp_path: Path) -> None:
    """Keeps away: the frames of a training pair as those of the validation pair of its id too."""
    names = procap.Names("mine", "folders")
    pairs = [one("1"), one("1", split="val"), one("2", split="val")]
    videos = procap.Videos(str(tmp_path), names)
    videos.check_names(pairs)  # without a file each pair is rejected
    for keys, ambiguous in ((("1", "2"), True), ([pair.key for pair in pairs], False)):
        with h5py.File(tmp_path / names.videos("change"), "w") as file:
            for key in keys:
                file[key] = FRAMES.transpose(0, 3, 1, 2)
        videos.check_names(pairs[1:])
        if ambiguous:
            with pytest.raises(UserError, match="1 is the id of two pairs, mine-train-1-change an"):
                videos.check_names(pairs)
        else:
            videos.check_names(pairs)


def test_two_pairs_of_one_name_are_a_users_mistake(tmp_path: Path) -> None:
    with procap.exporting(str(tmp_path), OTHER) as exporter:
        exporter.add_frames(one("1"), FRAMES)
        with pytest.raises(UserError, match=r"two pairs are called 1 in std_videos\.h5"):
            exporter.add_frames(one("1", split="val"), FRAMES)


def test_scores_of_a_pair_without_captions_come_back(tmp_path: Path) -> None:
    """Keeps away: a pair without captions that is rejected on its way back."""
    with procap.exporting(str(tmp_path), OTHER) as exporter:
        exporter.add_scores(one("1"), frame_scores(0))
    entries = procap.read_scores(str(tmp_path), OTHER)
    back = procap.scores_of(entries, OTHER, one("1"), (), 5)
    assert back.bef_inter_sim.shape == back.inter_aft_sim.shape == (0, 5)
    with pytest.raises(RejectedPair, match="not 0 captions × 4 frames"):
        procap.scores_of({"1": {n: [[0.0]] for n in procap.MATRICES}}, OTHER, one("1"), (), 4)


def test_files_of_another_export_are_not_taken_for_this_one(tmp_path: Path) -> None:
    """Keeps away: scores of other sequences beside those that were just written."""
    for number in range(2):  # the same again replaces what is there
        with procap.exporting(str(tmp_path), CLEVR) as exporter:
            exporter.add_frames(one("1"), FRAMES + number)
            exporter.add_scores(one("1"), frame_scores(1))
    before = (tmp_path / "sc_videos.h5").read_bytes()
    message = r"has clevr_similarity_scores\.json of another export"
    with pytest.raises(UserError, match=message), procap.exporting(str(tmp_path), CLEVR) as other:
        other.add_frames(one("1"), FRAMES[::-1])
    assert (tmp_path / "sc_videos.h5").read_bytes() == before
