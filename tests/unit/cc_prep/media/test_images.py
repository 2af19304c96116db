"""Every image that people have is read right, or rejected with its reason."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from cc_prep.errors import Reason, RejectedPair
from cc_prep.manifest import ImageValues
from cc_prep.media import images, masks

GREEN = np.full((20, 30, 3), (0, 204, 0), np.uint8)


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def test_rgb_is_read_bit_for_bit() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    assert np.array_equal(images.decode(saved(Image.fromarray(noise)), "x"), noise)


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    """Keeps away: Pillow's own conversion, which turns all above 255 white."""
    ramp = np.linspace(0, 65535, 600).reshape(20, 30).astype(np.uint16)
    decoded = images.decode(saved(Image.fromarray(ramp)), "x")
    assert np.array_equal(decoded[..., 0], np.rint(ramp / 257).astype(np.uint8))


@pytest.mark.parametrize(
    ("dtype", "white"),
    [("float32", 1), ("float32", 1.02), ("float32", 255), ("float32", 65535), ("int32", 65535)],
)
def test_deep_tiffs_are_scaled_by_their_range(dtype: str, white: float) -> None:
    """Keeps away: black images of floats from 0 to 255."""
    ramp = np.linspace(0, white, 600).reshape(20, 30)
    decoded = images.decode(saved(Image.fromarray(ramp.astype(dtype)), "TIFF"), "x")
    top = {1.02: 1}.get(white, white)
    off = np.abs(decoded[..., 0] - ramp.clip(0, top) / top * 255)
    assert off.max() <= 1


def test_a_dark_image_of_sixteen_bits_stays_dark() -> None:
    """Keeps away: an image of the same pair that is brighter only because it is darker."""
    dark = np.full((20, 30), 200, np.uint16)
    for format in ("PNG", "TIFF", "PPM"):
        assert images.decode(saved(Image.fromarray(dark), format), "x").max() == 1
    assert images.decode(saved(Image.fromarray(dark.astype(np.int32)), "TIFF"), "x").max() == 1


def test_floats_that_are_no_numbers() -> None:
    """Keeps away: a black image where one pixel is NaN."""
    pixels = np.full((20, 30), 0.5, np.float32)
    pixels[3, 4] = np.nan
    with pytest.raises(RejectedPair, match="x: a pixel that is no finite number"):
        images.decode(saved(Image.fromarray(pixels), "TIFF"), "x")


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "L", "LA", "1"])
def test_other_modes_become_rgb(mode: str) -> None:
    format = "JPEG" if mode == "CMYK" else "PNG"
    decoded = images.decode(saved(Image.fromarray(GREEN).convert(mode), format), "x")
    assert decoded.shape == (20, 30, 3)
    assert decoded.dtype == np.uint8
    if mode in ("RGBA", "P", "CMYK"):
        assert np.abs(decoded.astype(int) - GREEN).max() < 16


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(Image.fromarray(GREEN), "JPEG", exif=exif)
    assert images.decode(data, "x").shape == (30, 20, 3)


def test_first_frame_of_an_animation() -> None:
    red = Image.fromarray(np.full_like(GREEN, (200, 0, 0)))
    data = saved(Image.fromarray(GREEN), "GIF", save_all=True, append_images=[red])
    assert images.decode(data, "x")[0, 0, 1] > 150


def bomb(side: int) -> bytes:
    """A PNG that declares so many pixels a side in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + crc

    size = side.to_bytes(4, "big")
    head = chunk(b"IHDR", size + size + b"\x08\x02\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000))


WHOLE = saved(Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)))
FAULTY = {
    "truncated": (WHOLE[:-300], Reason.UNREADABLE_IMAGE),
    "text": (b"hello\n", Reason.UNREADABLE_IMAGE),
    "empty": (b"", Reason.UNREADABLE_IMAGE),
    "flipped": (WHOLE[:900] + bytes([WHOLE[900] ^ 255]) + WHOLE[901:], Reason.UNREADABLE_IMAGE),
    "one pixel": (saved(Image.new("RGB", (1, 1))), Reason.IMAGE_TOO_SMALL),
    "bomb": (bomb(100_000), Reason.IMAGE_TOO_LARGE),
    "smaller bomb": (bomb(20_000), Reason.IMAGE_TOO_LARGE),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_files_are_rejected(name: str) -> None:
    data, reason = FAULTY[name]
    with pytest.raises(RejectedPair) as caught:
        images.decode(data, "the/file.png")
    assert caught.value.reason is reason
    assert "the/file.png" in caught.value.detail


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """Keeps away: one name that no system takes, and no word of the other images."""
    for path, reason in (
        (tmp_path / "no.png", Reason.MISSING_IMAGE),
        (tmp_path, Reason.UNREADABLE_IMAGE),
        (tmp_path / ("a" * 300), Reason.UNREADABLE_IMAGE),
        (tmp_path / "a\0.png", Reason.UNREADABLE_IMAGE),
    ):
        with pytest.raises(RejectedPair) as caught:
            images.read(str(path))
        assert caught.value.reason is reason


def test_resize() -> None:
    assert images.resize(GREEN, 24).shape == (24, 24, 3)
    assert images.resize(GREEN, (24, 40)).shape == (24, 40, 3)
    assert np.array_equal(images.resize(GREEN, None), GREEN)


def test_a_smaller_image_is_antialiased_also_where_one_side_grows() -> None:
    """Keeps away: fine stripes that become a moiré of black and white."""
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[::4] = 255
    for size in ((40, 410), (40, 390), 40):
        smaller = images.resize(stripes, size).astype(int)
        assert abs(smaller[5:-5] - 255 / 4).max() < 3, size


def test_pixels_are_those_of_the_authors_code() -> None:
    """As ProCap's `T.Resize` of Pillow images gives them, and SCORER's `cv2.resize`.

    Keeps away: another filter under the name of theirs; they differ by up to 114 levels of 255.
    """
    detailed = np.random.default_rng(0).integers(0, 256, (320, 480, 3), np.uint8)
    theirs = {
        "bilinear": np.asarray(Image.fromarray(detailed).resize((224, 224), 2)),
        "bicubic": np.asarray(Image.fromarray(detailed).resize((224, 224), 3)),
        "opencv-cubic": cv2.resize(detailed, (224, 224), interpolation=cv2.INTER_CUBIC),
    }
    values = {name: ImageValues(filter=name) for name in theirs}  # type: ignore[arg-type]
    encoded = saved(Image.fromarray(detailed))
    for name, pixels in theirs.items():
        assert np.array_equal(images.decode(encoded, "x", 224, values[name]), pixels), name
    assert np.array_equal(images.decode(encoded, "x", 224), theirs["bicubic"])
    far = np.abs(theirs["opencv-cubic"].astype(int) - theirs["bicubic"])
    assert far.max() > 60


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 64 64
%%EndComments
showpage
"""


def test_no_postscript_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: Ghostscript on a stranger's PostScript, which is called a.png."""
    from PIL import EpsImagePlugin

    Image.init()  # so that Pillow knows every format it has
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("was run"))
    with pytest.raises(RejectedPair, match=r"a\.png: no image in PNG"):
        images.decode(EPS, "a.png")


@pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF", "PPM", "JPEG2000", "WEBP", "TGA"])
def test_formats_of_data_sets(format: str) -> None:
    decoded = images.decode(saved(Image.fromarray(GREEN), format), "x")
    assert np.abs(decoded.astype(int) - GREEN).max() < 16


@pytest.mark.parametrize("number", ["x", "-1", "", "9" * 30])
def test_a_frame_without_a_number_is_rejected(number: str) -> None:
    """Keeps away: a traceback, and -1, which asks the decoder how many frames there are."""
    with pytest.raises(RejectedPair, match="is no frame's number") as caught:
        images.read(f"v.mp4{images.FRAME}{number}")
    assert caught.value.reason is Reason.UNREADABLE_VIDEO


def test_messages_hold_no_address() -> None:
    """Keeps away: a table of rejects that differs from run to run."""
    with pytest.raises(RejectedPair) as caught:
        images.decode(b"hello", "x.png")
    assert "0x" not in caught.value.detail


def test_a_file_that_is_there_is_no_frame(tmp_path: Path) -> None:
    """Keeps away: "missing image: a" of a photograph or mask called `a#frame=1.png`."""
    path = tmp_path / "a#frame=1.png"
    Image.new("RGB", (32, 24), (9, 9, 9)).save(path)
    assert images.read(str(path)).shape == (24, 32, 3)
    assert masks.read(str(path)).all()
    with pytest.raises(RejectedPair, match=r"'2\.png' is no frame's number"):
        images.read(str(tmp_path / "a#frame=2.png"))


def test_a_backslash_is_named_where_nothing_is_found(tmp_path: Path) -> None:
    """Keeps away: a missing image of a list from Windows, and no word of why."""
    with pytest.raises(RejectedPair, match=r"img.0\.png: folders are separated by /, not by"):
        images.read(str(tmp_path / "img\\0.png"))
    Image.new("RGB", (32, 24)).save(tmp_path / "img\\0.png")
    images.read(str(tmp_path / "img\\0.png"))


def texture(side: int = 96) -> Image.Image:
    """Patches of random colours with grain, of which no two parts are coded alike."""
    rng = np.random.default_rng(3)
    patches = Image.fromarray(rng.integers(0, 200, (12, 12, 3), np.uint8))
    smooth = np.asarray(patches.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
    grain = rng.integers(0, 40, smooth.shape)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


JPEGS = {
    "baseline": {},
    "optimised": {"optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "full colour": {"subsampling": 0},
    "CMYK": {"mode": "CMYK"},
    "grey": {"mode": "L"},
}


def jpeg(kind: str) -> bytes:
    options: dict[str, Any] = {**JPEGS[kind]}
    image = texture().convert(options.pop("mode", "RGB"))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def cut_with_an_end(data: bytes) -> bytes:
    return data[: len(data) // 2] + images.JPEG_END


def with_zeros(data: bytes) -> bytes:
    middle, count = len(data) // 2, len(data) // 5
    return data[:middle] + bytes(count) + data[middle + count :]


def test_a_hole_is_seen_wherever_it_is() -> None:
    """Keeps away: zeros that are decoded to as many blocks as stood there, without a warning; and
    a flat picture, whose code may be nothing but zeros, that is called damaged."""
    data = jpeg("baseline")
    for start in range(data.index(b"\xff\xda") + 20, len(data) - 120, 97):
        assert images.jpeg_damage(data[:start] + bytes(100) + data[start + 100 :]) is not None
    flat = saved(Image.new("RGB", (512, 512), (90, 90, 90)), "JPEG", optimize=True)
    assert bytes(64) in flat
    assert images.jpeg_damage(flat) is None


@pytest.mark.parametrize("damage", [cut_with_an_end, with_zeros])
@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_whose_middle_is_damaged(kind: str, damage: Callable[[bytes], bytes]) -> None:
    """Keeps away: an image half of which libjpeg made up, after a warning that Pillow drops."""
    with pytest.raises(RejectedPair, match=r"^unreadable image: x: a damaged JPEG \(.*\), part"):
        images.decode(damage(jpeg(kind)), "x")


@pytest.mark.parametrize("kind", JPEGS)
def test_a_whole_jpeg_is_no_damaged_one(kind: str) -> None:
    """Keeps away: a reject of what cameras write: padding before the end, a second image, an
    unknown revision."""
    data = jpeg(kind)
    pixels = images.decode(data, "x")
    end = len(data) - len(images.JPEG_END)
    revision = data.index(b"JFIF\0") + 5 if b"JFIF\0" in data else None
    for odd in (
        data[:end] + bytes(64) + images.JPEG_END,
        data + b"\0" * 9 + jpeg("baseline"),
        data[:revision] + b"\0\0" + data[revision + 2 :] if revision else data,
    ):
        assert np.array_equal(images.decode(odd, "x"), pixels)


def tiff(values: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


NO_IMAGES = {
    "four bands": (
        tiff(np.zeros((32, 32, 4), np.uint8), photometric="minisblack", planarconfig="contig"),
        "has 4 bands. Name those of red, green and blue",
    ),
    "complex": (tiff(np.zeros((32, 32), np.complex64)), "values of the type complex64"),
    "cut TIFF": (
        tiff(np.zeros((32, 32), np.float64))[:100], "a TIFF that is damaged or cut off. Fetch"
    ),
    "LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "a Git LFS pointer in place of the file. Run git lfs pull in its folder",
    ),
    "page": (b"\n<!DOCTYPE html><html>", "a web page in place of the file, as a failed download"),
    "answer": (b"<?xml version='1.0'?><Error/>", "an XML text in place of the file"),
    "empty": (b"", "an empty file. Fetch it again"),
    "phone": (b"\0\0\0\x18ftypheic\0\0\0\0", "an HEIC or AVIF image, which is not read"),
    "text": (b"hello", "no image in PNG, JPEG, .*, or damaged at its start"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_no_image_is_said(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Keeps away: "cannot identify image file" for everything, and Pillow's own lines, which name
    no file."""
    data, message = NO_IMAGES[kind]
    with pytest.raises(RejectedPair, match=f"^unreadable image: x: {message}"):
        images.decode(data, "x")
    assert capfd.readouterr().err == ""


def test_libtiff_writes_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Keeps away: "tempfile.tif: Using code not yet in table." on standard error."""
    buffer = io.BytesIO()
    texture().save(buffer, "TIFF", compression="tiff_lzw")
    data = bytearray(buffer.getvalue())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    with pytest.raises(RejectedPair, match="x: cannot be decoded"):
        images.decode(bytes(data), "x")
    assert capfd.readouterr().err == ""


def test_transparent_pixels() -> None:
    """Keeps away: colours that no viewer shows, without a word; and a word of opaque images."""
    image = texture().convert("RGBA")
    assert not images.has_transparent_pixels(saved(image))
    image.putpixel((3, 4), (255, 0, 255, 0))
    assert images.has_transparent_pixels(saved(image))
    assert not images.has_transparent_pixels(saved(texture()))
    palette = texture().quantize(8)
    palette.info["transparency"] = 0
    assert images.has_transparent_pixels(saved(palette, "GIF"))
