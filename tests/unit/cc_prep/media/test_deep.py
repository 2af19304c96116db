"""Images of more than 8 bits and of other bands than three: every file kind, every scale."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pydicom
import pytest
import rasterio
import tifffile
from pydicom import uid
from rasterio.io import MemoryFile

from cc_prep import settings
from cc_prep.errors import RejectedPair
from cc_prep.manifest import ImageValues
from cc_prep.media import images
from cc_prep.media.deep import AS_STORED

# Reflectances of Sentinel-2, as 13 bands of 16 bits; other bands have other means.
SCENE = (np.random.default_rng(5).integers(200, 1200, (24, 32, 13)) * np.arange(1, 14) / 4).astype(
    np.uint16
)
SENTINEL = ImageValues(bands=(4, 3, 2), scale=(0.0, 3000.0))


def expected(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)


def tiff(values: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    kind = {"photometric": "minisblack", "planarconfig": "contig"} if values.ndim > 2 else {}
    tifffile.imwrite(buffer, values, **{**kind, **options})
    return buffer.getvalue()


def geotiff(values: np.ndarray, **options: Any) -> bytes:
    with MemoryFile() as file:
        height, width, count = values.shape
        with file.open(
            driver="GTiff", height=height, width=width, count=count, dtype=values.dtype,
            crs="EPSG:32632", transform=rasterio.Affine(10, 0, 5e5, 0, -10, 5e6), **options,
        ) as raster:  # fmt: skip
            raster.write(np.moveaxis(values, -1, 0))
        data: bytes = file.read()
        return data


def png(values: np.ndarray, kind: str = "png") -> bytes:
    done, data = cv2.imencode(f".{kind}", values[..., ::-1] if values.ndim == 3 else values)
    assert done
    return bytes(data)


FILES = {
    "TIFF": tiff(SCENE),
    "planes": tiff(np.moveaxis(SCENE, -1, 0), planarconfig="separate"),
    "BigTIFF": tiff(SCENE, bigtiff=True, compression="zlib", predictor=True),
    "big-endian": tiff(SCENE, byteorder=">"),
    "LZW": geotiff(SCENE, compress="LZW", predictor=2),
    "ZSTD, tiled": geotiff(SCENE, compress="ZSTD", tiled=True, blockxsize=16, blockysize=16),
    "bands apart": geotiff(SCENE, interleave="band"),
}


@pytest.mark.parametrize("kind", FILES)
def test_thirteen_bands_of_a_tiff(kind: str) -> None:
    """Keeps away: values that differ from those that rasterio reads, of whatever a GIS writes."""
    with MemoryFile(FILES[kind]) as file, file.open() as raster:
        truth = np.moveaxis(raster.read([4, 3, 2]), 0, -1)
    pixels = images.decode(FILES[kind], "x", values=SENTINEL)
    assert np.array_equal(pixels, expected(truth, 0, 3000))
    with pytest.raises(RejectedPair, match=r"x: has 13 bands\. .*image.bands.*--bands"):
        images.decode(FILES[kind], "x")


@pytest.mark.parametrize("kind", ["png", "ppm", "tiff"])
def test_colours_of_sixteen_bits_are_scaled_by_their_type(kind: str) -> None:
    """Keeps away: Pillow's 8 bits, which are none of a scale's values; and red that is blue."""
    colours = np.random.default_rng(1).integers(0, 65536, (20, 30, 3)).astype(np.uint16)
    data = tiff(colours, photometric="rgb") if kind == "tiff" else png(colours, kind)
    assert np.array_equal(images.decode(data, "x"), expected(colours, 0, 65535))
    narrow = images.decode(data, "x", values=ImageValues(scale=(100.0, 3000.0)))
    assert np.array_equal(narrow, expected(colours, 100, 3000))


def test_twelve_bits_of_jpeg_2000_and_pgm() -> None:
    """Keeps away: Pillow's values, which it shifts to 16 bits, so that [low, high] means others."""
    grey = np.random.default_rng(2).integers(0, 4096, (40, 48)).astype(np.uint16)
    with MemoryFile() as file:
        with file.open(
            driver="JP2OpenJPEG", height=40, width=48, count=1, dtype="uint16",
            NBITS=12, REVERSIBLE="YES", QUALITY=100,
        ) as raster:  # fmt: skip
            raster.write(grey, 1)
        jpeg2000 = file.read()
    for data in (jpeg2000, b"P5\n# of 12 bits\n48 40\n4095\n" + grey.astype(">u2").tobytes()):
        assert np.array_equal(images.decode(data, "x")[..., 0], expected(grey, 0, 4095))
        low = images.decode(data, "x", values=ImageValues(scale=(0.0, 1000.0)))
        assert np.array_equal(low[..., 1], expected(grey, 0, 1000))


NARROW = np.random.default_rng(3).integers(0, 1200, (64, 64)).astype(np.uint16)
DAZZLED = NARROW.copy()
DAZZLED[0, 0] = 65535


@pytest.mark.parametrize(
    "data",
    [tiff(NARROW), png(NARROW), png(DAZZLED), tiff((NARROW / 1e6).astype(np.float32))],
    ids=["TIFF", "PNG", "a dazzled pixel", "floats"],
)
def test_what_would_be_black_is_rejected_with_the_option(data: bytes) -> None:
    """Keeps away: "nothing changed", exit code 0, of two images that turned black."""
    with pytest.raises(RejectedPair, match=r"fill \d\.\d % of the range .*--scale"):
        images.decode(data, "x")
    for scale in ("percentile", "per_band", (0.0, 1.2e-3) if data[0] == 0 else (0.0, 1200.0)):
        values = settings.build(ImageValues, {"scale": scale}, "x", "y")
        if data == tiff((NARROW / 1e6).astype(np.float32)) and isinstance(scale, tuple):
            continue
        assert np.ptp(images.decode(data, "x", values=values)) == 255


def test_a_range_beside_the_values_is_rejected() -> None:
    """Keeps away: a white image, of 0 to 1 given for whole numbers."""
    with pytest.raises(RejectedPair, match=r"fill 0\.0 % of the range from 0 to 1"):
        images.decode(tiff(NARROW + 5), "x", values=ImageValues(scale=(0.0, 1.0)))
    dim = (NARROW // 400).astype(np.uint16)  # the sea, in the range of its series
    images.decode(tiff(dim), "x", values=ImageValues(scale=(0.0, 3000.0)))


def test_negative_values_need_a_scale() -> None:
    """Keeps away: the darker half of an image of -1 to 1, or of decibels, that is all black."""
    normalised = (NARROW - NARROW.mean()) / np.ptp(NARROW)
    with pytest.raises(RejectedPair, match=r"x: [45]\d % of its values are negative, and would be"):
        images.decode(tiff(normalised.astype(np.float32)), "x")
    shown = images.decode(
        tiff(normalised.astype(np.float32)), "x", values=ImageValues(scale=(-1, 1))
    )
    assert np.ptp(shown) > 100
    few = np.where(np.arange(NARROW.size).reshape(NARROW.shape) % 4, NARROW, -9999)
    images.decode(tiff(few.astype(np.float32)), "x", values=ImageValues())


def test_both_images_of_a_pair_have_one_range(tmp_path: Any) -> None:
    """Keeps away: a change of everything, since each image was stretched by itself."""
    before, after = NARROW, NARROW.copy()
    after[:20] += 6000
    paths = [str(tmp_path / name) for name in ("a.tif", "b.tif")]
    for path, values in zip(paths, (before, after), strict=True):
        tifffile.imwrite(path, values)
    for scale in ("percentile", "per_band"):
        one, other = images.read_together(paths, None, ImageValues(scale=scale))  # type: ignore[arg-type]
        assert np.array_equal(one[20:], other[20:])
        assert not np.array_equal(one[:20], other[:20])


def test_images_of_two_types_need_a_scale(tmp_path: Any) -> None:
    """Keeps away: an image of 8 bits that is black beside one of 16."""
    paths = [str(tmp_path / name) for name in ("a.tif", "b.tif")]
    for path, dtype in zip(paths, (np.uint8, np.uint16), strict=True):
        tifffile.imwrite(path, np.arange(24 * 32, dtype=np.uint16).reshape(24, 32).astype(dtype))
    with pytest.raises(RejectedPair, match=r"images of two types \(uint8 and uint16\)"):
        images.read_together(paths, None, ImageValues(bands=(1,)))


def test_percentiles_of_each_band() -> None:
    """Keeps away: the bands of an image in one range, where each is to have its own."""
    low, high = np.percentile(SCENE[..., :3].reshape(-1, 3), [2, 98], axis=0)
    pixels = images.decode(
        FILES["TIFF"], "x", values=ImageValues(bands=(1, 2, 3), scale="per_band")
    )
    for band in range(3):
        assert np.array_equal(
            pixels[..., band], expected(SCENE[..., band].astype(float), low[band], high[band])
        )


@pytest.mark.parametrize("nodata", [-9999.0, np.nan])
def test_places_without_data_are_black_and_not_counted(nodata: float) -> None:
    """Keeps away: a range from -9999 on, in which all that is measured is white."""
    values = np.random.default_rng(4).uniform(10, 20, (32, 32, 1)).astype(np.float32)
    values[:8] = nodata
    data = geotiff(values, nodata=nodata)
    pixels = images.decode(data, "x", values=ImageValues(scale="percentile"))
    assert not pixels[:8].any()
    low, high = np.percentile(values[8:], [2, 98])
    assert np.abs(pixels[8:, :, :1].astype(int) - expected(values[8:], low, high)).max() <= 1


def test_eight_bits_are_read_as_ever() -> None:
    """Keeps away: other bytes of images that everybody has, by the way through tifffile."""
    colours = np.random.default_rng(6).integers(0, 256, (20, 30, 4), np.uint8)
    for data in (
        tiff(colours[..., :3], photometric="rgb"),
        tiff(colours, photometric="rgb", extrasamples=["unassalpha"]),
        geotiff(colours[..., :3], compress="LZW"),
    ):
        assert np.array_equal(images.decode(data, "x"), colours[..., :3])
    swapped = images.decode(png(colours[..., :3]), "x", values=ImageValues(bands=(3, 2, 1)))
    assert np.array_equal(swapped, colours[..., 2::-1])
    assert np.array_equal(
        images.decode(tiff(colours), "x", values=ImageValues(bands=(4,)))[..., 0], colours[..., 3]
    )


def test_bands_that_are_not_there() -> None:
    with pytest.raises(RejectedPair, match="x: has no band 14, but 13"):
        images.decode(FILES["TIFF"], "x", values=ImageValues(bands=(14,)))


def dicom(stored: np.ndarray, **tags: Any) -> bytes:
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = uid.CTImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.Rows, dataset.Columns = stored.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = 8 * stored.itemsize
    dataset.BitsStored, dataset.HighBit = 12, 11
    dataset.PixelRepresentation = int(stored.dtype.kind == "i")
    dataset.PixelData = stored.tobytes()
    for name, value in tags.items():
        setattr(dataset, name, value)
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


CT = np.random.default_rng(7).integers(0, 2500, (48, 40)).astype(np.uint16)


def test_a_dicom_is_shown_in_its_window() -> None:
    """Keeps away: another picture than pydicom's own window gives, and an inverted X-ray."""
    tags = {
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "WindowCenter": [40, 500],
        "WindowWidth": [400, 9],
    }
    data = dicom(CT, **tags)
    dataset = pydicom.dcmread(io.BytesIO(data))
    hounsfield = pydicom.pixels.apply_rescale(dataset.pixel_array, dataset)
    windowed = pydicom.pixels.apply_windowing(hounsfield, dataset)  # -1024 … 3071
    truth = (windowed - windowed.min()) / np.ptp(windowed) * 255
    pixels = images.decode(data, "x")
    assert np.abs(pixels[..., 0] - truth).max() <= 1
    inverted = dicom(CT, **tags, PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(images.decode(inverted, "x"), 255 - pixels)
    bone = images.decode(data, "x", values=ImageValues(scale=(-100.0, 900.0)))
    assert np.array_equal(bone[..., 0], expected(hounsfield, -100, 900))


def test_a_dicom_without_a_window_has_the_range_of_its_bits() -> None:
    """Keeps away: values below 0 that are all black."""
    signed = CT.astype(np.int16) - 1200
    pixels = images.decode(dicom(signed), "x")
    assert np.array_equal(pixels[..., 0], expected(signed.astype(float), -2048, 2047))
    with pytest.raises(RejectedPair, match="--scale"):
        images.decode(dicom(signed // 100), "x")


def test_a_damaged_dicom() -> None:
    """Keeps away: a traceback of pydicom."""
    for data in (dicom(CT)[:400], dicom(CT)[:2000]):
        with pytest.raises(RejectedPair, match=r"^unreadable image: x: "):
            images.decode(data, "x")


def test_files_that_would_fill_the_memory() -> None:
    """Keeps away: a few bytes of a stranger that become terabytes."""
    huge = bytearray(tiff(np.zeros((16, 16, 5), np.float64)))
    with tifffile.TiffFile(io.BytesIO(bytes(huge))) as file:
        tags = file.pages.first.tags
        for tag, value in ((256, 8000), (257, 8000), (277, 60_000)):
            at = tags[tag].valueoffset
            huge[at : at + 4] = (
                value.to_bytes(4, "little")
                if tag != 277
                else (value.to_bytes(2, "little") + bytes(huge[at + 2 : at + 4]))
            )
    with pytest.raises(RejectedPair, match=r"^image too large: x: "):
        images.decode(bytes(huge), "x")
    deflated = dicom(CT).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99\0\0", 1)
    with pytest.raises(RejectedPair, match="is deflated as a whole"):
        images.decode(deflated, "x")


def test_a_compression_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: "requires the 'imagecodecs' package", which no user of ours is to know."""
    monkeypatch.setattr("cc_prep.media.deep.find_spec", lambda _: None)
    with pytest.raises(RejectedPair, match=r"compressed by LZW\. .*\[geo\]"):
        images.decode(FILES["LZW"], "x", values=SENTINEL)
    with pytest.raises(RejectedPair, match=r"\[medical\]"):
        images.decode(dicom(CT), "x")
    grey = geotiff((NARROW * 50)[..., None], compress="LZW")
    assert np.array_equal(images.decode(grey, "x")[..., 0], expected(NARROW * 50, 0, 65535))


@pytest.mark.parametrize(
    "wrong", [{"bands": [1, 2]}, {"bands": [0]}, {"scale": [3, 3]}, {"scale": "minmax"}]
)
def test_settings_that_say_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"^x: (bands|scale)"):
        settings.build(ImageValues, wrong, "x", "y")
    assert settings.build(ImageValues, {}, "x", "y") == AS_STORED
