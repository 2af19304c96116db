"""Both libraries give the same frames, whatever was read before."""

from __future__ import annotations

import platform
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from cc_prep.errors import RejectedPair
from cc_prep.media import edit_lists, video, video_readers, yuv
from cc_prep.media.video_readers import Decord, PyAV, Reader

FRAMES, WIDTH, HEIGHT = 26, 32, 16
OPEN_GROUPS = {"x264-params": "open-gop=1:keyint=8:bframes=3:scenecut=0:threads=1"}
# By file: codec, pixel format, FFmpeg's numbers of colour space and range, options.
VIDEOS: dict[str, tuple[str, str, int, int, dict[str, str]]] = {
    "closed.mkv": ("libx264", "yuv420p", 2, 0, {"x264-params": "keyint=7:bframes=2:threads=1"}),
    "open.mp4": ("libx264", "yuv420p", 1, 0, OPEN_GROUPS),
    "full.mp4": ("libx264", "yuv422p", 2, 2, {}),
    "whole.mp4": ("libx264", "yuv444p", 2, 0, {}),
    "bidirectional.avi": ("mpeg4", "yuv420p", 2, 0, {"bf": "2", "g": "8"}),
    "stream.mpg": ("mpeg2video", "yuv420p", 2, 0, {"bf": "2", "g": "8"}),
    "stills.avi": ("mjpeg", "yuvj420p", 2, 0, {}),
    "web.webm": ("libvpx-vp9", "yuv420p", 2, 0, {"g": "8", "cpu-used": "8"}),
}

needs_decord = pytest.mark.skipif(
    video_readers.library() != "decord", reason="decord has no wheel for this machine"
)
needs_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="FFmpeg has other arithmetic on other processors"
)


def write(path: Path, width: int = WIDTH) -> None:
    codec, pixels, space, range_, options = VIDEOS[path.name]
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (FRAMES, HEIGHT, width, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, HEIGHT, pixels
        stream.codec_context.colorspace = space
        stream.codec_context.color_range = range_
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(noise[number], format="rgb24").reformat(
                format=pixels
            )
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for name in VIDEOS:
        write(folder / name)
    return folder


def in_turn(path: Path) -> list[np.ndarray]:
    """All frames from the first to the last, without a seek."""
    import decord

    reader = decord.VideoReader(str(path), num_threads=1)
    return [reader.next().asnumpy() for _ in range(len(reader))]


@needs_decord
@needs_x86
@pytest.mark.parametrize("name", VIDEOS)
def test_both_give_the_same_frames_in_any_order(folder: Path, name: str) -> None:
    """Keeps away: decord's own [i], which is another frame where groups of pictures are open."""
    frames = in_turn(folder / name)
    assert len(frames) == FRAMES
    order = np.random.default_rng(1).permutation(FRAMES)
    readers: list[Reader] = [Decord(str(folder / name)), PyAV(str(folder / name))]
    for reader in readers:
        assert len(reader) == FRAMES
        for index in [*order[:15], 0, 9, 10, FRAMES - 1]:
            np.testing.assert_array_equal(reader[int(index)], frames[index])


# The matrix [a, b, c, d] of a file's header, and the quarter turns anticlockwise that it asks for.
TURNS = {
    (0, 1, -1, 0): 3,
    (-1, 0, 0, -1): 2,
    (0, -1, 1, 0): 1,
    (1, 0, 0, -1): 0,  # mirrored
    (0.8, 0.6, -0.6, 0.8): 0,  # 37 degrees
}


def turn(video: Path, target: Path, matrix: tuple[float, ...]) -> None:
    """Writes an mp4 that says it is shown turned, as a phone does that is held upright."""
    data = bytearray(video.read_bytes())
    a, b, c, d = (round(value * 2**16) for value in matrix)
    struct.pack_into(">9i", data, data.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 2**30)
    target.write_bytes(data)


@needs_x86
@pytest.mark.parametrize("matrix", TURNS)
def test_frames_are_turned_as_the_file_says(
    folder: Path, tmp_path: Path, matrix: tuple[float, ...]
) -> None:
    """Keeps away: a portrait video that lies on its side on machines without decord."""
    target = tmp_path / "turned.mp4"
    turn(folder / "open.mp4", target, matrix)
    lying = PyAV(str(folder / "open.mp4"))[11]
    expected = np.rot90(lying, TURNS[matrix])
    readers: list[Reader] = [PyAV(str(target))]
    if video_readers.library() == "decord":
        readers.append(Decord(str(target)))
    for reader in readers:
        np.testing.assert_array_equal(reader[11], expected)


def trim(video: Path, target: Path, first: int, last: int) -> None:
    """Writes an mp4 whose edit list leaves out so many first and last of its frames."""
    data = bytearray(video.read_bytes())
    at = data.index(b"elst") + 12
    duration, start = struct.unpack_from(">Ii", data, at)
    with av.open(str(video)) as container:
        ticks = round(Fraction(1, 25) / container.streams.video[0].time_base)
    struct.pack_into(
        ">Ii", data, at, duration - 40 * (first + last), start + first * ticks
    )  # in ms, in ticks
    target.write_bytes(data)


@needs_x86
@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 0), (0, 5), (5, 5)])
@pytest.mark.parametrize("name", ["open.mp4", "whole.mp4"])
def test_frames_that_an_edit_list_leaves_out(
    folder: Path, tmp_path: Path, name: str, first: int, last: int
) -> None:
    """Keeps away: the last frame of a trimmed video in place of those behind it."""
    target = tmp_path / name
    trim(folder / name, target, first, last)
    assert edit_lists.leaves_frames_out(str(target)) == bool(first + last)
    whole, count = PyAV(str(folder / name)), FRAMES - first - last
    readers: list[Reader] = [PyAV(str(target))]
    if video_readers.library() == "decord":
        readers.append(Decord(str(target)))
    for reader in readers:
        assert len(reader) == count
        for index in (count - 1, 3, 10, 0, count - 2):
            np.testing.assert_array_equal(reader[index], whole[first + index])


def test_files_without_an_edit_list(folder: Path, tmp_path: Path) -> None:
    for name in VIDEOS:
        assert not edit_lists.leaves_frames_out(str(folder / name))
    data = (folder / "open.mp4").read_bytes()
    for number in range(0, len(data), 97):
        (tmp_path / "cut.mp4").write_bytes(data[:number])
        assert not edit_lists.leaves_frames_out(str(tmp_path / "cut.mp4"))


@needs_decord
@needs_x86
@pytest.mark.parametrize("width", [2, 16, 18, 48])
def test_narrow_frames_have_three_channels(tmp_path: Path, width: int) -> None:
    """Keeps away: the padding of decord's rows as further channels of the pixels."""
    path = tmp_path / "closed.mkv"
    write(path, width)
    frame = Decord(str(path))[3]
    assert frame.shape == (HEIGHT, width, 3)
    np.testing.assert_array_equal(frame, PyAV(str(path))[3])


def test_exact_keyframes(folder: Path) -> None:
    assert video_readers.exact_keyframes(str(folder / "stills.avi")) == list(range(FRAMES))
    assert video_readers.exact_keyframes(str(folder / "stream.mpg")) == [0]
    assert len(video_readers.exact_keyframes(str(folder / "closed.mkv"))) > 2
    assert video_readers.exact_keyframes(str(folder / "bidirectional.avi")) == [0]


@needs_x86
@pytest.mark.parametrize("space", [1, 2, 4, 5, 7, 9])
@pytest.mark.parametrize("full", [False, True])
def test_arithmetic_of_ffmpeg(space: int, full: bool) -> None:
    values = np.random.default_rng(space).integers(0, 256, (24, 16), np.uint8)
    frame = av.VideoFrame.from_ndarray(values, format="yuv420p")
    frame.colorspace, frame.color_range = space, 2 if full else 1
    np.testing.assert_array_equal(
        yuv.to_rgb(frame), frame.to_ndarray(format="rgb24", dst_color_range=2)
    )


@pytest.mark.parametrize(("pixels", "shape"), [("gray", (16, 16)), ("yuv420p", (21, 14))])
def test_other_formats_are_converted_by_ffmpeg(pixels: str, shape: tuple[int, int]) -> None:
    frame = av.VideoFrame.from_ndarray(np.full(shape, 128, np.uint8), format=pixels)
    rgb = yuv.to_rgb(frame)
    assert rgb.shape == (frame.height, frame.width, 3)
    assert abs(int(rgb.mean()) - 128) < 4


def test_a_machine_without_decord(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: an installation on ARM that cannot read a video."""
    path = str(folder / "open.mp4")
    expected = PyAV(path)[11]
    find = video_readers.importlib.util.find_spec
    monkeypatch.setattr(
        video_readers.importlib.util, "find_spec", lambda n: None if n == "decord" else find(n)
    )
    assert video_readers.library() == "av"
    video.stop_decoder()
    try:
        np.testing.assert_array_equal(video.read_frame(path, 11), expected)
        assert video._OWN.decoder
        assert "video_child av" in " ".join(map(str, video._OWN.decoder.process.args))
        damaged = tmp_path / "damaged.mp4"
        damaged.write_bytes((folder / "open.mp4").read_bytes()[:400])
        with pytest.raises(RejectedPair, match=r"damaged\.mp4"):
            video.count_frames(str(damaged))
        with pytest.raises(RejectedPair, match=f"has {FRAMES} frames, and no frame {FRAMES}"):
            video.read_frame(path, FRAMES)
    finally:
        video.stop_decoder()
