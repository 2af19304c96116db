"""Images: a file, an object store or a video → uint8 RGB arrays, or a rejection; and the codec.

`decode` is the one door: what is of 8 bits is read here, all else by `deep`, parts of videos and
rasters by `video` and `scenes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import re
import struct
import warnings
from collections.abc import Sequence

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from cc_prep import storage
from cc_prep.errors import FileRefused, FileTooLarge, Reason, RejectedPair, first_line
from cc_prep.manifest import Filter, ImageValues
from cc_prep.media import deep, file_kinds, scenes, video
from cc_prep.media.deep import AS_STORED, Values

MIN_SIDE = 16
MAX_PIXELS = 64_000_000
MAX_BYTES = 2**29  # of a file: MAX_PIXELS of four 16-bit values
PART = "#"  # before what names a part of a file
FRAME = f"{PART}frame="  # between a video's path and the number of a frame
FRAME_NUMBER = "[0-9]{1,15}"
CELL = re.compile(r".+\.(?i:parquet)#row=[0-9]{1,12},.+", re.DOTALL)  # an image in a table
STORED = ("PNG", "JPEG", "WEBP")  # what our own shards hold
# What a data set may hold. Not EPS: Pillow runs Ghostscript on it, whatever the file is called.
DECODED = (*STORED, "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "TGA")
# The endings of such files, and those that are taken where a folder has two images of a name.
PREFERRED = (".png", ".jpg", ".jpeg", ".webp")
OTHERS = (
    ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga",
    ".dcm",
)  # fmt: skip
ENDINGS = PREFERRED + OTHERS
# One filter and run lengths: 1.8 times as fast as level 1 alone, which tries all filters, for as
# many bytes of video frames and a tenth more of rendered ones.
PNG = (
    cv2.IMWRITE_PNG_COMPRESSION, 1,
    cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE,
    cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP,
)  # fmt: skip

# Of JPEGs. Pillow shows what libjpeg makes up for a damaged scan, and drops the warning. A scan has
# no checksum: damage is seen where the code breaks off, has no meaning, or ends at another place
# than the image; and as a hole, since no picture is coded as so many zeros.
JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
EIGHT_BITS = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # Pillow's modes of such JPEGs and PNGs
PNG_START = b"\x89PNG\r\n\x1a\n"  # byte 24 has its bits a sample
CORRUPT = "Corrupt JPEG data: "  # libjpeg's other warnings are of metadata
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")  # that of the image's end
HOLE = bytes(64)
BASELINE, TABLES, SCAN = (0xC0, 0xC1), 0xC4, 0xDA  # markers
END_OF_BLOCK = 0  # the symbol of a code


def _keep_decoders_quiet() -> None:
    """Takes the lines off standard error that decoders write there of bad files.

    They name no file, and what is wrong is in the exception. A program that sets up logging still
    gets those of Python packages.
    """
    for package in ("PIL", "tifffile", "rasterio", "pydicom"):
        logging.getLogger(package).addHandler(logging.NullHandler())
    if hasattr(cv2, "setLogLevel"):  # OpenCV 4
        cv2.setLogLevel(0)
    else:
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    with contextlib.suppress(AttributeError, OSError):  # of a Pillow that hides its libtiff
        ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler(None)


_keep_decoders_quiet()


def read(reference: str, size: int | None = None, values: ImageValues = AS_STORED) -> np.ndarray:
    """The image at `reference` as uint8 [H, W, 3] RGB, resized to size × size if given.

    `reference` is a path or URL of an image, or `video.mp4#frame=12`. Grey, palette, CMYK and
    transparent images become RGB (alpha is dropped, as the field's code does); a camera's EXIF
    rotation is applied; of an animation the first frame is taken.

    Args:
        values: Which bands are read, and what is black and white.

    Raises:
        RejectedPair: For a file that is missing, damaged, no image, outside the size limits, or
            that would be one grey.
    """
    return read_together([reference], size, values)[0]


def read_together(
    references: Sequence[str], size: int | None = None, values: ImageValues = AS_STORED
) -> list[np.ndarray]:
    """Images as `read` gives them, of one range of values: equal values become equal colours."""
    found = [load(reference, values) for reference in references]
    return [resize(pixels, size, values.filter) for pixels in to_rgb(found, values)]


def load(reference: str, values: ImageValues = AS_STORED) -> np.ndarray | Values:
    """What `stored` gives of the image at a path or URL, or of a frame; a scene's tile as RGB.

    Raises:
        RejectedPair: As `read` does.
    """
    if PART in reference:
        if is_frame(reference):
            return video.read_frame(*frame_of(reference))
        if scenes.is_tile(reference):
            return scenes.read_tile(reference, values)
    return stored(read_encoded(reference), reference, values)


def to_rgb(
    images: Sequence[np.ndarray | Values], values: ImageValues = AS_STORED
) -> list[np.ndarray]:
    """uint8 [H, W, 3] RGB of images of one range of values.

    Args:
        images: Uint8 [H, W, 3] RGB, which stay as they are, or values as they are stored.

    Raises:
        RejectedPair: As `read` does.
    """
    chosen = [deep.choose(image, values) for image in images if isinstance(image, Values)]
    limits = deep.limits(chosen, values) if chosen else np.empty(0)
    left = iter(chosen)
    return [
        deep.to_rgb(next(left), limits) if isinstance(image, Values) else image for image in images
    ]


def is_frame(reference: str) -> bool:
    """Whether a reference names a frame of a video, and no file that is called so itself."""
    return FRAME in reference and not storage.exists(reference)


def frame_of(reference: str) -> tuple[str, int]:
    """A video and the number of a frame in it.

    Raises:
        RejectedPair: Where that is no number.
    """
    path, _, frame = reference.rpartition(FRAME)
    if not re.fullmatch(FRAME_NUMBER, frame):
        raise RejectedPair(Reason.UNREADABLE_VIDEO, f"{reference}: {frame!r} is no frame's number")
    return path, int(frame)


def read_encoded(reference: str) -> bytes:
    """The bytes of the image file at a path or URL, or of an image in a table.

    Raises:
        RejectedPair: Where there are none.
    """
    if CELL.fullmatch(reference):
        from cc_prep.formats import image_tables  # which needs pyarrow

        return image_tables.read_image(reference, MAX_BYTES)
    try:
        return storage.read_bytes(reference, MAX_BYTES)
    except FileNotFoundError:
        hint = ": folders are separated by /, not by a backslash" if "\\" in reference else ""
        raise RejectedPair(Reason.MISSING_IMAGE, reference + hint) from None
    except FileTooLarge as error:
        raise RejectedPair(Reason.IMAGE_TOO_LARGE, error.what) from None
    except FileRefused as error:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, error.what) from None


def size_of(image: np.ndarray | Values) -> tuple[int, int]:
    """Height and width of what `stored` gives, in px."""
    return (image.bands if isinstance(image, Values) else image).shape[:2]


def decode(
    data: bytes, name: str, size: int | None = None, values: ImageValues = AS_STORED
) -> np.ndarray:
    """An encoded image's pixels, as `read` gives them. Raises RejectedPair naming `name`."""
    return resize(to_rgb([stored(data, name, values)], values)[0], size, values.filter)


def stored(data: bytes, name: str, values: ImageValues = AS_STORED) -> np.ndarray | Values:
    """An encoded image: uint8 [H, W, 3] RGB, or the values of other types and bands.

    Args:
        values: Where they name bands or a scale, RGB are values too, and all samples of a TIFF
            bands.

    Raises:
        RejectedPair: As `read` does.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bombs, and of damaged metadata
            is_plain = _is_plain(data)
            opened = None if is_plain else deep.opened(data, name, values)
            if opened is not None:
                _check_size(opened.size, name)
                return opened.load()
            with Image.open(io.BytesIO(data), formats=DECODED) as image:
                _check_size(image.size, name)
                is_plain = is_plain and image.mode in EIGHT_BITS
                found = None if is_plain else deep.of_pillow(image, data, name)
                pixels = found or np.asarray(_to_rgb(image))
    except RejectedPair:
        raise
    except Image.DecompressionBombError:
        raise RejectedPair(Reason.IMAGE_TOO_LARGE, f"{name}: a decompression bomb") from None
    except UnidentifiedImageError:
        what, remedy = file_kinds.why_no_image(data)
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{name}: {what}", remedy) from None
    except Exception as error:  # decoders raise nearly every type for some damaged file
        reason = f"cannot be decoded ({first_line(error)})"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{name}: {reason}") from None
    if (damage := jpeg_damage(data)) is not None:
        raise RejectedPair(
            Reason.UNREADABLE_IMAGE,
            f"{name}: a damaged JPEG ({damage}), part of which shows something else",
            "Fetch it again; if it looks right, open and save it anew",
        )
    return _as_asked(pixels, name, values)


def _is_plain(data: bytes) -> bool:
    """Whether a file starts as a JPEG, or as a PNG of at most 8 bits, and not also as a DICOM."""
    is_png = data.startswith(PNG_START) and data[24:25] <= b"\x08"
    return (is_png or data.startswith(JPEG_START)) and data[128:132] != deep.DICOM


def _as_asked(image: np.ndarray | Values, name: str, values: ImageValues) -> np.ndarray | Values:
    as_stored = values.bands is None and values.scale == "dtype"
    return image if as_stored or isinstance(image, Values) else Values(image, name, 255)


def alpha_of(image: Image.Image) -> np.ndarray | None:
    """How opaque the pixels are, uint8 [H, W], 0 for transparent; None where nothing says so."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return None
    return np.asarray(ImageOps.exif_transpose(image).convert("RGBA").getchannel("A"))


def has_transparent_pixels(data: bytes) -> bool:
    """Whether some pixels of an encoded image that can be read are fully transparent."""
    with Image.open(io.BytesIO(data), formats=DECODED) as image:
        alpha = alpha_of(image)
    return alpha is not None and int(alpha.min()) == 0


def from_pillow(
    image: Image.Image, name: str, values: ImageValues = AS_STORED
) -> np.ndarray | Values:
    """The pixels of a PIL image, as `stored` would give them of its file.

    Raises RejectedPair naming `name` for one that is damaged or outside the size limits.
    """
    _check_size(image.size, name)
    try:
        if deep.is_deep(image):
            return Values(np.asarray(image)[..., None], name, None if image.mode == "F" else 65535)
        return _as_asked(np.asarray(_to_rgb(image)), name, values)
    except Exception as error:  # a lazily loaded file: Pillow raises nearly every type
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{name}: {error}") from None


def from_array(image: object, name: str, values: ImageValues = AS_STORED) -> np.ndarray | Values:
    """uint8 [H, W, 3] RGB of an array of that form or of grey uint8 [H, W], else values of bands.

    Raises RejectedPair naming `name` for what is no array [H, W] or [H, W, bands] of numbers, and
    outside the size limits.
    """
    pixels = np.asarray(image)
    grey = pixels.ndim == 2
    is_first = pixels.ndim == 3 and pixels.shape[0] < MIN_SIDE <= min(pixels.shape[1:])
    if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "iuf" or is_first:
        form = f"{name}: {pixels.dtype} {list(pixels.shape)}, not numbers [H, W, bands]"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, form)
    _check_size((pixels.shape[1], pixels.shape[0]), name)
    if pixels.dtype == np.uint8 and (grey or pixels.shape[2] == 3):
        rgb = np.ascontiguousarray(np.repeat(pixels[..., None], 3, axis=2) if grey else pixels)
        return _as_asked(rgb, name, values)
    return Values(pixels[..., None] if grey else pixels, name, deep.white_of(pixels.dtype))


def extension(data: bytes) -> str | None:
    """The extension of an encoded image that our shards would keep as it is, such as `.jpg`.

    None for other formats, and for what is no image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=STORED) as image:
            return {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}[str(image.format)]
    except Exception:  # Pillow raises nearly every type for some damaged file
        return None


def decode_stored(data: bytes) -> np.ndarray | None:
    """An image of a shard as uint8 [H, W, 3] RGB, by the quicker decoder; None if it is none.

    A shard may come from a stranger, so what the header declares is looked at before any pixel.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=STORED) as image:
                if image.width * image.height > MAX_PIXELS:
                    return None
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except Exception:  # Pillow raises nearly every type for some damaged file
        return None
    return None if pixels is None else np.ascontiguousarray(pixels[..., ::-1])


def encode_image(image: np.ndarray, codec: str, quality: int) -> bytes:
    """uint8 [H, W, 3] RGB or [H, W] → the encoded bytes, the same ones every time."""
    options = {
        "png": PNG,
        "jpg": (cv2.IMWRITE_JPEG_QUALITY, quality),
        "webp": (cv2.IMWRITE_WEBP_QUALITY, quality),
    }[codec]
    if image.ndim == 3:
        image = image[..., ::-1]
    done, data = cv2.imencode(f".{codec}", np.ascontiguousarray(image), options)
    assert done
    encoded: bytes = data.tobytes()
    return encoded


def resize(
    image: np.ndarray, size: int | tuple[int, int] | None, filter: Filter = "bicubic"
) -> np.ndarray:
    """`image` uint8 [H, W, 3] in another size.

    Args:
        size: Height and width in px, or the side of a square; None leaves the image as it is.
        filter: See `ImageValues`. ProCap's code has `bilinear`, SCORER's features are of images by
            `opencv-cubic`, which aliases what it makes smaller.
    """
    height, width = (size, size) if isinstance(size, int) else size or image.shape[:2]
    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
    if filter == "opencv-cubic":
        resized: np.ndarray = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
        return resized
    resampling = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
    return np.asarray(Image.fromarray(image).resize((width, height), resampling[filter]))


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise RejectedPair(
            Reason.IMAGE_TOO_LARGE, f"{name}: {width}×{height}, at most {MAX_PIXELS:,} pixels"
        )
    if min(width, height) < MIN_SIDE:
        raise RejectedPair(
            Reason.IMAGE_TOO_SMALL, f"{name}: {width}×{height}, at least {MIN_SIDE} a side"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    return ImageOps.exif_transpose(image).convert("RGB")


def jpeg_damage(data: bytes) -> str | None:
    """What is wrong with a JPEG that can be decoded; None if nothing is, and for other files."""
    if not data.startswith(JPEG_START):
        return None
    return _jpeg_warning(data) or ("a hole of zeros" if _has_hole(data) else None)


def _jpeg_warning(data: bytes) -> str | None:
    """What libjpeg says of pixels that it had to make up.

    Only the code is decoded: the image is asked for at an eighth of its size.
    """
    try:
        form = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(
            data
            + JPEG_END,  # the last warning is told, and none is to be of an end that is missing
            "CMYK" if form in ("CMYK", "YCCK") else "GRAY",
            min_height=1,
            min_width=1,
            strict=True,
        )
    except ValueError as error:
        warning = str(error)
        extraneous = EXTRANEOUS.search(warning)
        is_padded = extraneous is not None and _is_padding(data, int(extraneous[1]))
        if warning.startswith(CORRUPT) and not is_padded:
            return warning.removeprefix(CORRUPT)
    return None


def _is_padding(data: bytes, count: int) -> bool:
    """Whether so many bytes before the end are all the same, as some cameras fill them up."""
    end = data.rfind(JPEG_END)
    return end >= count and len(set(data[end - count : end])) == 1


def _has_hole(data: bytes) -> bool:
    """Whether the scan of a baseline JPEG has a run of zeros that no picture has.

    Zeros repeat the first symbol of the code of coefficients. Where that is the end of a block, a
    flat picture is coded so.
    """
    if HOLE not in data:
        return False
    is_baseline, first_symbols, at = False, {}, 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        segment = data[at + 4 : at + 2 + length]
        at += 2 + length
        if marker in BASELINE:
            is_baseline = True
        elif marker == TABLES:
            while len(segment) > 17:
                table, counts = segment[0], segment[1:17]
                first_symbols[table] = segment[17]
                segment = segment[17 + sum(counts) :]
        elif marker == SCAN and len(segment) > 2:
            coefficients = 0x10 | (segment[2] & 0x0F)  # the table of the first component
            scan = data[at : data.find(JPEG_END, at)].rstrip(b"\0")
            is_flat = first_symbols.get(coefficients, END_OF_BLOCK) == END_OF_BLOCK
            return is_baseline and not is_flat and HOLE in scan
    return False
