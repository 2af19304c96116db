"""Images of any depth and number of bands: their values as they are stored, and from these to RGB.

A file of 8 bits with one, three or four bands is what `images` reads by itself. All others come
here: PNG, PNM and JPEG 2000 of more than 8 bits, every other TIFF, and DICOM. `image.bands` and
`image.scale` of a manifest say which values become red, green and blue, and what is black and what
white. The images of a pair share one range, so that equal values stay equal.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np
import tifffile
from PIL import Image
from tifffile import COMPRESSION, PHOTOMETRIC, SAMPLEFORMAT

from cc_prep import extras
from cc_prep.errors import Reason, RejectedPair
from cc_prep.manifest import ImageValues
from cc_prep.media import file_kinds

AS_STORED = ImageValues()
# Of its range that an image must fill to be read without a word: 12 bits in a type of 16 do not, in
# which a captioner sees black.
MIN_SHARE = 1 / 15
MIDDLE = (0.1, 99.9)  # percentiles between which it fills it: not a few dead or dazzled pixels
PERCENTILES = (2.0, 98.0)  # black and white of `percentile` and `per_band`, as GIS programs draw
MAX_SAMPLES = 2**20  # values of a band of which percentiles are taken
MAX_BYTES = 2**32  # of all values of an image: more than a decoder should ask for at once
NODATA = 42113  # GDAL's tag of a TIFF
DICOM = b"DICM"  # after a preamble of 128 bytes
DEFLATED = b"1.2.840.10008.1.2.1.99"  # a transfer syntax of DICOM
ORIENTATION = 274  # of TIFF and EXIF
BANDS = (PHOTOMETRIC.MINISBLACK, PHOTOMETRIC.RGB)  # whose samples are bands
PNM = re.compile(rb"P[56](?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+(\d+)\s")
JPEG2000_SIZE = re.compile(rb"\xff\x4f\xff\x51.{38}(.)", re.DOTALL)  # and bits of a component
MAX_NEGATIVE = 0.05  # of the values: resampling makes some
REMEDY = (
    "Say what is black and what white, as percentile or as [low, high]: image.scale in a manifest, "
    "--scale of cc-train caption, scale= in Python"
)
BANDS_REMEDY = (
    "Name those of red, green and blue, counted from 1, such as [3, 2, 1]: image.bands in a "
    "manifest, --bands of cc-train caption, bands= in Python"
)


@dataclass(frozen=True)
class Values:
    """The values of an image as they are stored.

    Attributes:
        bands: [H, W, bands] in the file's own type.
        name: Of the file, for messages.
        white: The largest value of the type, or of the bits that are used; None where a value may
            be anything, as of floats and 32 bits.
        nodata: What stands for no value; None where each value is one.
        window: What a DICOM's own window makes black and white, or where it has none, the ends of
            its type.
        is_inverted: Small values are bright, as in DICOM's MONOCHROME1.
    """

    bands: np.ndarray
    name: str
    white: float | None = None
    nodata: float | None = None
    window: tuple[float, float] | None = None
    is_inverted: bool = False

    def has_value(self, band: np.ndarray) -> np.ndarray | None:
        """Which values of a band are none of `nodata`, bool; None for all."""
        if self.nodata is None:
            return None
        return ~np.isnan(band) if np.isnan(self.nodata) else band != self.nodata


def white_of(dtype: np.dtype[Any], bits: int | None = None) -> float | None:
    """The largest value of whole numbers of up to 16 bits, of which `bits` are used; else None."""
    if dtype.kind == "b":
        return 1
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return None
    if bits is not None and bits < 8 * dtype.itemsize:
        return 2**bits - 1 - (dtype.kind == "i") * 2 ** (bits - 1)
    return float(np.iinfo(dtype).max)


def choose(values: Values, settings: ImageValues) -> Values:
    """The bands of `settings`, or the one or three that the image has.

    Raises RejectedPair for bands that it does not have, and where it has others and none are named.
    """
    count = values.bands.shape[2]
    if settings.bands is not None:
        if max(settings.bands) > count:
            what = f"{values.name}: has no band {max(settings.bands)}, but {count}"
            raise RejectedPair(Reason.UNREADABLE_IMAGE, what, "Correct image.bands or --bands")
        numbers = [number - 1 for number in settings.bands]
    elif count in (1, 3):
        return values
    else:
        what = f"{values.name}: has {count} bands"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, what, BANDS_REMEDY)
    return replace(values, bands=values.bands[..., numbers])


def limits(images: Sequence[Values], settings: ImageValues) -> np.ndarray:
    """Black and white of the bands of some images, float64 [bands, 2].

    Args:
        images: Of the same bands, as `choose` gives them.

    Raises:
        RejectedPair: For values that are no finite numbers or that a scale would make one grey,
            and for images with other numbers of bands or, where the type decides, of two types.
    """
    counts = {image.bands.shape[2] for image in images}
    if len(counts) > 1:
        detail = f"{images[0].name}: {images[0].bands.shape[2]} bands, and not as many in the other"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, detail, BANDS_REMEDY)
    samples = [[_sample(image, band) for band in range(*counts)] for image in images]
    if settings.scale == "per_band":
        joined = [np.concatenate([of[band] for of in samples]) for band in range(*counts)]
        return np.stack([_percentiles(values) for values in joined])
    if settings.scale == "percentile":
        everything = np.concatenate([values for of in samples for values in of])
        return np.tile(_percentiles(everything), (*counts, 1))
    by_user = settings.scale != "dtype"
    found = settings.scale if settings.scale != "dtype" else _of_type(images, samples)
    for image, of in zip(images, samples, strict=True):
        _check_filled(image, np.concatenate(of), found, by_user)
    return np.tile(np.array(found, np.float64), (*counts, 1))


def to_rgb(image: Values, limits: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] RGB; black where an image has no value.

    Args:
        image: Of one band, which becomes grey, or of three.
        limits: Black and white of each, [bands, 2].
    """
    bands = []
    for number in range(image.bands.shape[2]):
        band = image.bands[..., number]
        grey = _scaled(band, *limits[number])
        if image.is_inverted:
            grey = 255 - grey
        has_value = image.has_value(band)
        bands.append(grey if has_value is None else np.where(has_value, grey, np.uint8(0)))
    return np.stack(bands * (3 if len(bands) == 1 else 1), axis=-1)


def _scaled(band: np.ndarray, low: float, high: float) -> np.ndarray:
    """uint8 of a band; by a table of all values of a type where these are few."""
    span = high - low if high > low else 1.0

    def levels(values: np.ndarray) -> np.ndarray:
        clipped = values.astype(np.float64).clip(low, max(high, low))
        with np.errstate(invalid="ignore"):  # of NaN, which stands for no value
            return np.rint((clipped - low) * (255 / span)).astype(np.uint8)

    if band.dtype.kind in "iu" and band.dtype.itemsize <= 2:
        first = np.iinfo(band.dtype).min
        every = np.arange(first, np.iinfo(band.dtype).max + 1)
        table = levels(every)
        return table[band.astype(np.int32) - first] if first else table[band]
    return levels(band)


def _sample(image: Values, number: int) -> np.ndarray:
    """Values of a band at even distances, at most about MAX_SAMPLES. Raises RejectedPair."""
    band = image.bands[..., number]
    has_value = image.has_value(band)
    values = band.reshape(-1) if has_value is None else band[has_value]
    if band.dtype.kind == "f" and not np.isfinite(values).all():
        raise RejectedPair(
            Reason.UNREADABLE_IMAGE,
            f"{image.name}: a pixel that is no finite number",
            "Declare in the file what stands for no data, or fill such pixels",
        )
    return values[:: -(-len(values) // MAX_SAMPLES) or 1]


def _percentiles(values: np.ndarray) -> np.ndarray:
    """Black and white, float64 [2]; the smallest and largest value where most are the same."""
    if not len(values):
        return np.array([0.0, 1.0])
    ends = np.percentile(values, PERCENTILES).astype(np.float64)
    if ends[0] < ends[1]:
        return ends
    return np.array([values.min(), values.max()], np.float64)


def _of_type(images: Sequence[Values], samples: Sequence[list[np.ndarray]]) -> tuple[float, float]:
    """Black and white by the type of the values, or by a DICOM's own window.

    Floats and 32 bits go to 1 (floats alone), 255 or 65535: the smallest of these that they pass by
    half at most, as resampling does; larger ones to the largest value of their type.

    Raises:
        RejectedPair: For images of two types, whose values do not mean the same, and for values of
            which many are negative, as of [-1, 1] or decibels: they would be black.
    """
    if images[0].window is not None:
        return images[0].window
    for image, of in zip(images, samples, strict=True):
        values = np.concatenate(of)
        # The smallest of all may stand for no data, as -9999 does, without the file saying so.
        below = (values < 0) & (values > values.min(initial=0))
        negative = float(below.mean()) if len(values) else 0.0
        if negative > MAX_NEGATIVE:
            detail = f"{image.name}: {100 * negative:.0f} % of its values are negative"
            raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{detail}, and would be black", REMEDY)
    whites = {image.white for image in images}
    if len(whites) > 1:
        what = " and ".join(str(image.bands.dtype) for image in images[:2])
        raise RejectedPair(
            Reason.UNREADABLE_IMAGE, f"{images[0].name}: images of two types ({what})", REMEDY
        )
    [white] = whites
    if white is not None:
        return 0.0, white
    dtypes = {image.bands.dtype for image in images}
    tops = [1.0] if any(dtype.kind == "f" for dtype in dtypes) else []
    tops += [255.0, 65535.0] if tops else [65535.0]
    tops += [float(np.iinfo(dtype).max) for dtype in dtypes if dtype.kind in "iu"]
    largest = max((float(one.max()) for of in samples for one in of if len(one)), default=0.0)
    return 0.0, next((top for top in tops if largest <= 1.5 * top), tops[-1])


def _check_filled(
    image: Values, values: np.ndarray, limits: tuple[float, float], by_user: bool
) -> None:
    """Raises RejectedPair for values beyond 8 bits that all become one grey, though they differ.

    Args:
        by_user: Whether the range was given: then a part of it may be all that an image shows.
    """
    if not len(values) or values.min() == values.max() or image.bands.dtype == np.uint8:
        return
    low, high = limits
    ends = np.percentile(values, MIDDLE).clip(low, high)
    share = (ends[1] - ends[0]) / (high - low)
    if share >= MIN_SHARE or (by_user and share > 0):
        return
    raise RejectedPair(
        Reason.UNREADABLE_IMAGE,
        f"{image.name}: nearly all values lie within {values.min():g} to {values.max():g} and fill "
        f"{100 * share:.1f} % of the range from {low:g} to {high:g}, one grey to the eye",
        REMEDY,
    )


@dataclass(frozen=True)
class Opened:
    """An image of which the header is read. size: width and height in px."""

    size: tuple[int, int]
    load: Callable[[], Values]


def opened(data: bytes, name: str, settings: ImageValues) -> Opened | None:
    """A DICOM, or a TIFF that 8 bits of grey or RGB cannot hold; None for other files.

    Args:
        settings: Where they name bands or a scale, all samples of a TIFF count as bands, those
            beside red, green and blue too.

    Raises:
        RejectedPair: For what cannot be decoded, or needs an extra.
    """
    if data[128:132] == DICOM:
        return _dicom(data, name)
    if data.startswith(file_kinds.TIFFS):
        return _tiff(data, name, all_samples=settings != AS_STORED)
    return None


def _tiff(data: bytes, name: str, all_samples: bool) -> Opened | None:
    try:
        page = tifffile.TiffFile(io.BytesIO(data)).pages.first
        size = (page.imagewidth, page.imagelength)
        dtype, kind = page.dtype, page.photometric
    except Exception:  # tifffile raises many types for a damaged file
        return None  # Pillow says what is wrong
    eight_bits = page.bitspersample <= 8 and page.sampleformat == SAMPLEFORMAT.UINT
    as_pillow = eight_bits and (page.samplesperpixel in (1, 3) or kind not in BANDS)
    if page.samplesperpixel == 4 and eight_bits and kind == PHOTOMETRIC.RGB:
        as_pillow = True
    if dtype is None or kind not in BANDS or (as_pillow and not all_samples):
        return None
    if dtype.kind not in "iufb":
        detail = f"{name}: values of the type {dtype}"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, detail, "Save whole numbers or floats")

    count = size[0] * size[1] * page.samplesperpixel
    if count * dtype.itemsize > MAX_BYTES:
        detail = f"{name}: {count * dtype.itemsize:,} bytes of values"
        raise RejectedPair(Reason.IMAGE_TOO_LARGE, detail, "Save the bands that are needed")

    def load() -> Values:
        bands = _tiff_bands(page, data, name)
        return Values(
            _turned(bands, page.tags.valueof(ORIENTATION, 1)),
            name,
            white_of(bands.dtype, page.bitspersample),
            _number(page.tags.valueof(NODATA, "")),
        )

    return Opened(size, load)


def _tiff_bands(page: tifffile.TiffPage, data: bytes, name: str) -> np.ndarray:
    """[H, W, bands]. What tifffile has no decoder for, Pillow's libtiff or rasterio have."""
    try:
        stored = page.asarray().reshape(page.shaped)[:, 0]  # [planes, H, W, samples]
    except (KeyError, ValueError, ModuleNotFoundError) as error:
        if "imagecodecs" not in str(error) and not isinstance(error, ModuleNotFoundError):
            raise
    else:
        return np.moveaxis(stored, 0, -2).reshape(*stored.shape[1:3], -1)
    if find_spec("rasterio") is not None:
        from rasterio.io import MemoryFile

        with MemoryFile(data) as file, file.open(driver="GTiff") as raster:
            return np.ascontiguousarray(np.moveaxis(raster.read(), 0, -1))
    if page.samplesperpixel == 1:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image)[..., None]
    raise RejectedPair(
        Reason.UNREADABLE_IMAGE,
        f"{name}: a TIFF of several bands, compressed by {COMPRESSION(page.compression).name}",
        extras.install("geo"),
    )


def _dicom(data: bytes, name: str) -> Opened:
    """The first frame of a DICOM; its values after the rescaling that it asks for."""
    if find_spec("pydicom") is None:
        raise RejectedPair(
            Reason.UNREADABLE_IMAGE, f"{name}: DICOM is read by pydicom", extras.install("medical")
        )
    from pydicom import dcmread, pixels

    if DEFLATED in data[:1024]:  # which pydicom inflates whole, however large it becomes
        detail = f"{name}: a DICOM that is deflated as a whole"
        raise RejectedPair(Reason.UNREADABLE_IMAGE, detail, "Save it in another transfer syntax")
    dataset = dcmread(io.BytesIO(data))
    if "PixelData" not in dataset:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, f"{name}: a DICOM without an image")

    def load() -> Values:
        stored = pixels.pixel_array(dataset, index=0)
        if dataset.PhotometricInterpretation == "PALETTE COLOR":
            stored = pixels.apply_color_lut(stored, dataset)
        if stored.ndim == 3:  # pydicom makes RGB of other colours
            return Values(stored, name, float(np.iinfo(stored.dtype).max))
        bits, is_signed = dataset.BitsStored, dataset.PixelRepresentation
        ends = np.array([0, 2**bits - 1]) - is_signed * 2 ** (bits - 1)
        rescaled, *of_type = (
            pixels.apply_modality_lut(values, dataset)
            for values in (stored, ends.astype(stored.dtype)[None])
        )
        return Values(
            rescaled[..., None],
            name,
            window=_window(dataset) or (float(of_type[0][0, 0]), float(of_type[0][0, 1])),
            is_inverted=dataset.PhotometricInterpretation == "MONOCHROME1",
        )

    return Opened((int(dataset.Columns), int(dataset.Rows)), load)


def _window(dataset: Any) -> tuple[float, float] | None:
    """Black and white by a DICOM's first window; None where it has none."""
    if "WindowCenter" not in dataset or "WindowWidth" not in dataset:
        return None
    centre, width = (
        float(value[0] if isinstance(value, Sequence) else value)
        for value in (dataset.WindowCenter, dataset.WindowWidth)
    )
    half = max(width - 1, 1) / 2  # PS3.3, C.11.2.1.2.1: its linear function
    return centre - 0.5 - half, centre - 0.5 + half


def of_pillow(image: Image.Image, data: bytes, name: str) -> Values | None:
    """The values of an opened image with more than 8 bits; None for another.

    Pillow's own are 8 bits of colours, and scaled ones of PNM and JPEG 2000.

    Args:
        data: The file, of a size that was checked.
    """
    white = _white(image, data)
    if is_deep(image) and image.format not in ("PPM", "JPEG2000"):
        bands = np.asarray(image)[..., None]
    elif white is not None:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if decoded is None:
            raise ValueError("damaged")
        bands = decoded[..., 2::-1] if decoded.ndim == 3 else decoded[..., None]
    else:
        return None
    turned = _turned(bands, image.getexif().get(ORIENTATION, 1))
    return Values(turned, name, 65535.0 if white is None and image.mode != "F" else white)


def is_deep(image: Image.Image) -> bool:
    """Whether a pixel is one number of more than 8 bits."""
    return image.mode.startswith("I") or image.mode == "F"


def _white(image: Image.Image, data: bytes) -> float | None:
    """The largest value of a PNG, PNM or JPEG 2000 of more than 8 bits; None for other files."""
    if image.format == "PNG":
        bits = data[24]
    elif image.format == "PPM":
        header = PNM.match(data)
        largest = 0 if header is None else int(header[1])
        return largest if largest > 255 else None
    elif image.format == "JPEG2000":
        size = JPEG2000_SIZE.search(data)
        bits = 8 if size is None else (size[1][0] & 0x7F) + 1
    else:
        return None
    return 2.0**bits - 1 if bits > 8 else None


def _turned(bands: np.ndarray, orientation: int) -> np.ndarray:
    """The image as EXIF says that it is seen."""
    turns = {
        2: lambda one: one[:, ::-1],
        3: lambda one: one[::-1, ::-1],
        4: lambda one: one[::-1],
        5: lambda one: one.swapaxes(0, 1),
        6: lambda one: one.swapaxes(0, 1)[:, ::-1],
        7: lambda one: one.swapaxes(0, 1)[::-1, ::-1],
        8: lambda one: one.swapaxes(0, 1)[::-1],
    }
    turn = turns.get(orientation)
    return bands if turn is None else np.ascontiguousarray(turn(bands))


def _number(text: object) -> float | None:
    try:
        return float(str(text).strip("\0 "))
    except ValueError:
        return None
