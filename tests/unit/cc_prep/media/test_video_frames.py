"""Frames in one pass a video: the same ones, each video in order, no more memory than allowed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import images, video_frames
from cc_prep.media.video_frames import VideoFrames

SIZE = 16
FRAME_BYTES = 3 * SIZE * SIZE


class Decoder:
    """In place of `images.read`: every frame is its number, and what is asked for is noted."""

    def __init__(self, damaged: Sequence[str] = ()) -> None:
        self.damaged = set(damaged)
        self.asked: list[str] = []

    def __call__(self, reference: str, size: int | None = None) -> np.ndarray:
        self.asked.append(reference)
        if reference in self.damaged:
            raise RejectedPair(Reason.UNREADABLE_VIDEO, reference)
        return np.full((SIZE, SIZE, 3), images.frame_of(reference)[1], np.uint8)


def seeks(asked: Sequence[str]) -> int:
    """How often a decoder that has one video open must start anew."""
    pairs = [images.frame_of(reference) for reference in asked]
    return sum(
        before[0] != after[0] or after[1] <= before[1]
        for before, after in itertools.pairwise(pairs)
    )


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    decoder = Decoder()
    monkeypatch.setattr(video_frames.images, "read", decoder)
    return decoder


def shuffled(count: int) -> list[str]:
    """Before and after of pairs of two videos; neighbours share a frame."""
    pairs = [(video, start) for video in ("a.mp4", "b.mp4") for start in range(count)]
    random.Random(0).shuffle(pairs)
    return [f"{video}{images.FRAME}{frame}" for video, at in pairs for frame in (at, at + 1)]


def read_all(frames: VideoFrames, references: Sequence[str], size: int | None = SIZE) -> None:
    for reference in references:
        assert frames.read(reference, size)[0, 0, 0] == images.frame_of(reference)[1]


@pytest.mark.parametrize("size", [SIZE, None])
def test_one_pass_a_video(decoder: Decoder, size: int | None) -> None:
    references = shuffled(20)
    frames = VideoFrames()
    frames.expect(references)
    read_all(frames, references, size)
    assert len(decoder.asked) <= len(set(references)) + 1  # one to learn how large a frame is
    assert seeks(decoder.asked) <= 2
    assert not frames._frames


def test_bounded_memory(decoder: Decoder) -> None:
    references = shuffled(20)
    frames = VideoFrames(most_bytes=10 * FRAME_BYTES)
    frames.expect(references)
    for reference in references:
        assert frames.read(reference, SIZE)[0, 0, 0] == images.frame_of(reference)[1]
        assert len(frames._frames) <= 10
    assert len(decoder.asked) <= len(references)
    assert seeks(decoder.asked) < len(references) / 4


def test_what_is_left_out_or_read_again(decoder: Decoder) -> None:
    """Keeps away: pairs that are set aside, or tried once more, and put the rest out of step."""
    references = shuffled(20)
    frames = VideoFrames(most_bytes=6 * FRAME_BYTES)
    frames.expect(references)
    read_all(frames, references[10:20])
    read_all(frames, references[10:12])
    read_all(frames, references[60:])
    read_all(frames, references[:4])
    read_all(frames, ["other.mp4#frame=3"])
    frames.expect(references)
    read_all(frames, references)


def test_a_damaged_frame_is_the_pairs_own(decoder: Decoder) -> None:
    references = [f"a.mp4{images.FRAME}{number}" for number in (5, 2, 9, 1)]
    for damaged in references:
        decoder.damaged = {damaged}
        for size in (SIZE, None):
            frames = VideoFrames()
            frames.expect(references)
            for reference in references:
                if reference == damaged:
                    with pytest.raises(RejectedPair):
                        frames.read(reference, size)
                else:
                    read_all(frames, [reference], size)


def test_what_names_no_frame_is_the_pairs_own_fault(decoder: Decoder) -> None:
    """Keeps away: a ValueError that ends a job, and another pair that is blamed for it."""
    good, bad = f"v.mp4{images.FRAME}0", f"v.mp4{images.FRAME}x"
    frames = VideoFrames()
    frames.expect([good, bad])
    assert frames.read(good, None) is not None
    with pytest.raises(RejectedPair, match="'x' is no frame's number"):
        frames.read(bad, None)
