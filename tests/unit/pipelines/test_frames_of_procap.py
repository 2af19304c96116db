"""Sequences and scores out of ProCap's files, pair by pair."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console

from cc_prep import manifest
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.records import ImagePair
from cc_prep.steps.procap import ImportFrames
from pipelines import fingerprint, job, jobs
from pipelines.shards import of_pairs


def test_a_sequence_of_another_length_is_rejected(tmp_path: Path) -> None:
    """Keeps away: 5 frames among sequences of 9, stored as one of depth 3."""
    with h5py.File(tmp_path / "own_videos.h5", "w") as file:
        for id, frames in (("1", 9), ("2", 5)):
            file[id] = np.zeros((frames, 3, 16, 16), np.uint8)
    settings = fingerprint.for_imported_sequences(manifest.load("own", root=str(tmp_path)), 3)
    step = ImportFrames(settings, {}, str(tmp_path), "cpu")
    good, bad = step([ImagePair("own", "train", id, "change", "b", "a") for id in ("1", "2")])
    assert isinstance(good, dict)
    assert isinstance(bad, RejectedPair)
    assert bad.reason is Reason.UNREADABLE_SEQUENCE
    assert "5 frames, not 9" in bad.detail


def test_too_few_frames_for_the_keyframes_are_a_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a ValueError of each pair in place of one line with the remedy."""
    (tmp_path / "own_similarity_scores.json").write_text("{}")
    settings = manifest.load("own", ["interpolate.depth=1", "keyframes.k=2"], str(tmp_path))
    monkeypatch.setattr(fingerprint, "continue_from", lambda manifest, folder: manifest)
    request = job.Request(settings, str(tmp_path / "out"), ["train"], None, job.Options(), None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Lower keyframes\.k"):
        jobs.run("import-scores", request, str(tmp_path))


def test_keyframes_are_checked_before_frames_are_written(tmp_path: Path) -> None:
    """Keeps away: hours of taking in frames that end with a refusal known at the start."""
    with h5py.File(tmp_path / "own_videos.h5", "w") as file:
        file["1"] = np.zeros((3, 3, 16, 16), np.uint8)
    (tmp_path / "own_similarity_scores.json").write_text("{}")
    settings = manifest.load("own", ["keyframes.k=2"], str(tmp_path))
    request = job.Request(settings, str(tmp_path / "out"), ["train"], None, job.Options(), None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Lower keyframes\.k"):
        jobs.run("import-frames", request, str(tmp_path))


def test_one_sequence_is_not_taken_for_two_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the pair 1 of the split val with the frames of the pair 1 of train."""
    with h5py.File(tmp_path / "own_videos.h5", "w") as file:
        file["1"] = np.zeros((9, 3, 16, 16), np.uint8)
    pairs = [ImagePair("own", split, "1", "change", "b", "a") for split in ("train", "val")]
    shards = [of_pairs(pair.split, 0, [pair]) for pair in pairs]
    monkeypatch.setattr(jobs, "plan", lambda *arguments: shards)
    settings = manifest.load("own", root=str(tmp_path))
    options = job.Options(dry_run=True)
    request = job.Request(settings, str(tmp_path / "out"), ["train", "val"], None, options, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the id of two"):
        jobs.run("import-frames", request, str(tmp_path))


def test_masks_that_are_not_taken_in_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: training shards without masks of a data set that has some, without a word."""
    with h5py.File(tmp_path / "own_videos.h5", "w") as file:
        file["1"] = np.zeros((9, 3, 16, 16), np.uint8)
    (tmp_path / "pairs.csv").write_text("before,after,mask\nb.png,a.png,m.png\nc.png,a.png,\n")
    settings = manifest.load("own", [], str(tmp_path))
    out = io.StringIO()
    console = Console(file=out, width=500)
    request = job.Request(settings, str(tmp_path / "out"), ["train"], None, job.Options(), console)
    monkeypatch.setattr(job, "run", lambda spec, options, console: None)
    jobs.run("import-frames", request, str(tmp_path))
    line = "the masks of 1 pair are not taken in: ProCap's files hold frames alone\n"
    assert out.getvalue() == line
