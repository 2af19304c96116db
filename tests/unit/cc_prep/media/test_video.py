"""Frames of videos: the right one, and no damaged file hangs or takes the process along."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import wave
from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.inspect.inspection import inspect
from cc_prep.media import images, video
from tests.conftest import write_video


def test_the_frame_asked_for(video_root: Path) -> None:
    """Keeps away: a decoder that seeks to a neighbour."""
    path = str(video_root / "ramp.mp4")
    assert video.count_frames(path) == 20
    for index in (0, 13, 7, 19, 1):
        frame = images.read(f"{path}#frame={index}")
        assert frame.shape == (48, 64, 3)
        assert abs(float(frame.mean()) - 10 * index) < 3


def test_past_the_end_and_missing(video_root: Path) -> None:
    with pytest.raises(RejectedPair, match=r"ramp.mp4: has 20 frames, and no frame 20 \(from 0\)$"):
        video.read_frame(str(video_root / "ramp.mp4"), 20)
    with pytest.raises(RejectedPair) as caught:
        video.read_frame(str(video_root / "none.mp4"), 0)
    assert caught.value.reason is Reason.MISSING_IMAGE


def test_damaged_video_is_rejected_and_the_next_one_read(tmp_path: Path, video_root: Path) -> None:
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes((video_root / "ramp.mp4").read_bytes()[:500])
    with pytest.raises(RejectedPair) as caught:
        video.count_frames(str(damaged))
    assert caught.value.reason is Reason.UNREADABLE_VIDEO
    assert video.count_frames(str(video_root / "ramp.mp4")) == 20


def test_a_decoder_that_dies_or_hangs(video_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: decord's hangs, which no interrupt ends."""
    path = str(video_root / "ramp.mp4")
    real = video.subprocess.Popen
    for program, seconds, message in (
        ("import time; time.sleep(60)", 0.3, "no answer"),
        ("", 30, "died|Broken pipe"),
    ):
        video.stop_decoder()
        monkeypatch.setattr(video, "SECONDS_A_FRAME", seconds)
        monkeypatch.setattr(
            video.subprocess,
            "Popen",
            lambda command, p=program, **options: real([sys.executable, "-c", p], **options),
        )
        with pytest.raises(RejectedPair, match=message):
            video.count_frames(path)
    monkeypatch.undo()
    assert video.count_frames(path) == 20
    assert video._OWN.decoder
    video._OWN.decoder.answers.close()
    with pytest.raises(RejectedPair, match="the decoder"):
        video.count_frames(path)
    assert video.count_frames(path) == 20


def test_an_interrupted_read_leaves_no_answer_behind(
    video_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the frame that was interrupted in place of each later one."""
    path = str(video_root / "ramp.mp4")
    assert video.read_frame(path, 0).mean() < 5

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            video.selectors.DefaultSelector, "select", interrupted
        )  # the request was sent by then
        with pytest.raises(KeyboardInterrupt):
            video.read_frame(path, 15)
    assert abs(video.read_frame(path, 4).mean() - 40) < 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no such limit")
def test_more_open_files_than_select_takes(video_root: Path) -> None:
    """Keeps away: every video is damaged in a process with more than 1023 open files."""
    import resource

    path = str(video_root / "ramp.mp4")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < 2048:
        pytest.skip("this user may not open so many files")
    video.stop_decoder()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(open(os.devnull, "rb"))
            assert abs(brightness(path, 7) - 70) < 5
    finally:
        video.stop_decoder()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def brightness(path: str, number: int) -> float:
    return float(video.read_frame(path, number).mean())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forks_read_frames_of_their_own(video_root: Path) -> None:
    """Keeps away: loader workers that take each other's frames from one decoder."""
    path = str(video_root / "ramp.mp4")
    video.count_frames(path)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        rows = pool.starmap(brightness, [(path, number) for number in range(20)], chunksize=1)
        # SIGTERM, by which a pool ends its workers, is lost on its way into a wait where an earlier
        # test of this process left a handler for it: Ray does.
        pool.close()
        pool.join()
    assert all(abs(mean - 10 * number) < 5 for number, mean in enumerate(rows)), rows
    assert video.count_frames(path) == 20  # the forks left this decoder alone


def test_pairs_with_their_true_frames(video_root: Path) -> None:
    settings = manifest.load("video", root=str(video_root))
    pairs = datasets.pairs(settings, "train")
    assert [pair.id for pair in pairs] == ["ramp_000000", "ramp_000008"]
    assert pairs[1].before == "ramp.mp4#frame=8"
    assert pairs[1].after == "ramp.mp4#frame=16"
    assert [t for t, _ in pairs[0].truth] == [i / 8 for i in range(1, 8)]
    odd = manifest.load("video", ["video.gap=6"], root=str(video_root))
    assert [t for t, _ in datasets.pairs(odd, "train")[0].truth] == [0.5]
    few = manifest.load("video", ["video.max_pairs_per_video=1"], root=str(video_root))
    assert len(datasets.pairs(few, "train")) == 1


def test_damaged_and_short_videos_are_named(tmp_path: Path) -> None:
    write_video(tmp_path / "short.mp4", 3)
    (tmp_path / "text.mp4").write_text("hello")
    settings = manifest.load("video", root=str(tmp_path))
    faults = datasets.reader(settings).faults(settings)
    assert any("short.mp4: 3 frames" in fault for fault in faults)
    assert any("text.mp4" in fault for fault in faults)
    # The damaged one stays in the plan, so that the job names it in its rejects.
    assert [pair.id for pair in datasets.pairs(settings, "train")] == ["text_000000"]


def test_a_bad_video_is_one_fault_in_plain_words(tmp_path: Path) -> None:
    """Keeps away: three equal faults of one file, with lines of decord's sources and a clock."""
    write_video(tmp_path / "whole.mp4", 20)
    data = (tmp_path / "whole.mp4").read_bytes()
    content = data.index(b"mdat")
    contents = {
        "cut.mp4": data[: len(data) // 2],
        "empty.mp4": b"",
        "hole.mp4": data[: content + 40] + bytes(600) + data[content + 640 :],
        "page.mp4": b"<!DOCTYPE html><html>",
        "pointer.mp4": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    }
    for name, damaged in contents.items():
        (tmp_path / name).write_bytes(damaged)
    with wave.open(str(tmp_path / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16_000))
    (tmp_path / "sound.wav").rename(tmp_path / "sound.avi")
    settings = manifest.load("video", root=str(tmp_path))
    faults = inspect(settings, ["train"]).faults
    plain = [line.removeprefix(f"unreadable video: {tmp_path}/") for line in faults]
    of_hole = [line for line in plain if line.startswith("hole.mp4: frame ")]
    assert all(": the file is damaged. Fetch it again, or convert it" in line for line in of_hole)
    assert [line for line in plain if line not in of_hole] == [
        "cut.mp4: cannot be opened: no video, cut off, or of a format that is not known. Fetch it "
        "again, or convert it, such as by ffmpeg -i VIDEO NEW.mp4",
        "empty.mp4: an empty file. Fetch it again",
        "page.mp4: a web page in place of the file, as a failed download leaves it. Fetch it again",
        "pointer.mp4: a Git LFS pointer in place of the file. Run git lfs pull in its folder",
        "sound.avi: has no pictures, but sound alone or nothing. Take another file",
    ]


def test_videos_that_are_all_too_short_are_not_called_none(tmp_path: Path) -> None:
    """Keeps away: "no videos in it" where each of them was refused for a reason."""
    write_video(tmp_path / "a.mp4", 3)
    write_video(tmp_path / "b.mp4", 3)
    settings = manifest.load("video", root=str(tmp_path))
    message = r"no pair of frames in it: a.mp4: 3 frames, too few for a gap of 8, and 1 more fault"
    with pytest.raises(UserError, match=message):
        datasets.pairs(settings, "train")


def test_empty_folder(tmp_path: Path) -> None:
    settings = manifest.load("video", root=str(tmp_path))
    with pytest.raises(UserError, match="cc-prep videos"):
        datasets.pairs(settings, "train")


def test_videos_of_one_name_have_ids_of_their_own(tmp_path: Path, video_root: Path) -> None:
    """Keeps away: "Give each pair an id of its own", which nobody can do for videos."""
    [film, *_] = sorted(video_root.iterdir())
    (tmp_path / "train").mkdir()
    for name in ("a" + film.suffix, "train/a" + film.suffix, "b" + film.suffix):
        (tmp_path / name).write_bytes(film.read_bytes())
    settings = manifest.load("video", ["video.max_pairs_per_video=1"], root=str(tmp_path))
    ids = [pair.id for pair in datasets.pairs(settings, "train")]
    ending = film.suffix
    assert ids == [f"a{ending}_000000", "b_000000", f"train/a{ending}_000000"]
