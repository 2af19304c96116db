"""What a file is that is no image or video, so that a message can say what to do about it."""

from __future__ import annotations

import io
import warnings

from PIL import TiffImagePlugin

BANDS, BITS, SAMPLE_FORMAT = 277, 258, 339  # tags of a TIFF
NUMBERS = {1: "whole numbers", 2: "signed whole numbers", 3: "floats", 6: "complex numbers"}
READ = "image in PNG, JPEG, WebP, BMP, GIF, TIFF, PPM, JPEG 2000 or TGA"
LFS_POINTER = b"version https://git-lfs.github.com/"
TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
HEIF = (b"heic", b"heix", b"mif1", b"msf1", b"avif")
FETCH = "Fetch it again"
HEAD = 512  # bytes of a file that tell its kind


def what_it_is(head: bytes) -> tuple[str, str] | None:
    """What is in the place of an image or a video, and a remedy; None where nobody can tell.

    Args:
        head: The first HEAD bytes of the file, or all of it.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if not head:
        return "an empty file", FETCH
    if head.startswith(LFS_POINTER):
        return "a Git LFS pointer in place of the file", "Run git lfs pull in its folder"
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "a web page in place of the file, as a failed download leaves it", FETCH
    if text.startswith((b"<?xml", b"<error")) and b"<svg" not in text:
        return "an XML text in place of the file, as a failed download leaves it", FETCH
    return None


def why_no_image(data: bytes) -> tuple[str, str]:
    """Why an image file that Pillow does not know cannot be read, and a remedy."""
    known = what_it_is(data[:HEAD])
    if known is not None:
        return known
    if data[4:8] == b"ftyp" and data[8:12] in HEIF:
        return "an HEIC or AVIF image, which is not read", "Save it as PNG or JPEG"
    if data.startswith(TIFFS):
        return _of_tiff(data)
    return f"no {READ}, or damaged at its start", "Save it again, as PNG or JPEG"


def _of_tiff(data: bytes) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tags that are cut off
            is_big = data[2:4] in (b"+\0", b"\0+")
            tags = TiffImagePlugin.ImageFileDirectory_v2(data[:16] if is_big else data[:8])
            file = io.BytesIO(data)
            file.seek(tags.next)
            tags.load(file)
        bands, bits = tags[BANDS], tags[BITS][0]
        numbers = NUMBERS.get(tags.get(SAMPLE_FORMAT, (1,))[0], "values")
    except Exception:  # Pillow raises nearly every type for some damaged file
        return "a TIFF that is damaged or cut off", FETCH
    noun = "band" if bands == 1 else "bands"
    return (
        f"a TIFF with {bands} {noun} of {bits}-bit {numbers}, which is not read",
        "Save three bands of 8 bits, red, green and blue",
    )
