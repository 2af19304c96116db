"""Masks of data sets become class ids: binary ones, those with values, and those of two sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import images, masks
from cc_prep.records import EMPTY_MASK, ImagePair
from tests.job_factory import pair

LEVIR = (((0,), 0), ((128,), 1), ((255,), 2))
COLOURS = (((255, 255, 255), 0), ((128, 0, 0), 2), ((0, 128, 0), 1))


def written(path: Path, values: object, mode: str = "L") -> str:
    Image.fromarray(np.array(values, np.uint8)).convert(mode).save(path)
    return str(path)


def classes_shown(root: Path, record: ImagePair) -> frozenset[int]:
    shown = masks.shown(str(root), record)
    assert shown is not None
    return shown.classes


def squares(*values: int) -> np.ndarray:
    """Vertical bands of 16 × 32 px, one a value."""
    return np.repeat(np.array([values], np.uint8), 16, axis=1).repeat(32, axis=0)


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_each_value_but_zero_is_the_class_change(tmp_path: Path, mode: str) -> None:
    """Keeps away: a mask of class ids 0 and 1 that is read as one in which nothing changed."""
    mask = masks.read(written(tmp_path / "m.png", squares(0, 1, 127, 255), mode))
    assert mask.dtype == np.uint8
    assert np.array_equal(mask, squares(0, 1, 1, 1))


def test_a_jpeg_has_no_values_of_its_own(tmp_path: Path) -> None:
    """Keeps away: the ringing around an edge as a change."""
    mask = masks.read(written(tmp_path / "m.jpg", squares(0, 255)))
    assert np.array_equal(mask, squares(0, 1))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_values_are_classes(tmp_path: Path, mode: str) -> None:
    """Keeps away: roads and buildings as one class."""
    path = written(tmp_path / "m.png", squares(255, 0, 128), mode)
    assert np.array_equal(masks.read(path, LEVIR), squares(2, 0, 1))


def with_palette(path: Path, colours: list[int]) -> str:
    """Indices 0, 1 and 2 in these colours."""
    image = Image.fromarray(squares(0, 1, 2))
    image.putpalette(colours)
    image.save(path)
    return str(path)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_a_palette_is_for_the_eye(tmp_path: Path, ending: str) -> None:
    """Keeps away: a label whose background is drawn in a colour as changed everywhere."""
    path = with_palette(tmp_path / f"m.{ending}", [9, 9, 9, 200, 0, 0, 0, 0, 255])
    assert np.array_equal(masks.read(path), squares(0, 1, 1))
    ids = (((0,), 0), ((1,), 2), ((2,), 1))
    assert np.array_equal(masks.read(path, ids), squares(0, 2, 1))
    colours = (((9, 9, 9), 0), ((200, 0, 0), 1), ((0, 0, 255), 2))
    assert np.array_equal(masks.read(path, colours), squares(0, 1, 2))


def test_the_colours_of_a_gif_count(tmp_path: Path) -> None:
    """Keeps away: 128 as unchanged, since the GIF's writer gave the first grey that occurs 0."""
    path = written(tmp_path / "m.gif", squares(128, 255, 128))
    assert np.array_equal(masks.read(path), squares(1, 1, 1))
    assert np.array_equal(masks.read(path, LEVIR), squares(1, 2, 1))
    path = with_palette(tmp_path / "p.gif", [0, 0, 0, 200, 0, 0, 0, 0, 255])
    assert np.array_equal(masks.read(path), squares(0, 1, 1))


def test_the_content_says_what_a_file_is(tmp_path: Path) -> None:
    """Keeps away: a PNG that is called .jpg as one in which nothing changed, for its 1 is 0 or 1,
    and a JPEG that is called .png whose ringing is a change.
    """
    Image.fromarray(squares(0, 1).astype(np.uint16)).save(tmp_path / "m.jpg", "PNG")
    assert np.array_equal(masks.read(str(tmp_path / "m.jpg")), squares(0, 1))
    Image.fromarray(squares(0, 255)).save(tmp_path / "m.png", "JPEG")
    assert np.array_equal(masks.read(str(tmp_path / "m.png")), squares(0, 1))


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 30}),
        ("WEBP", {"quality": 30}),
        ("WEBP", {"quality": 30, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
        ("TIFF", {"compression": "jpeg", "quality": 30}),
        ("JPEG2000", {"irreversible": True}),
    ],
)
def test_the_ringing_of_lossy_formats_is_no_change(
    tmp_path: Path, form: str, options: dict[str, object]
) -> None:
    """Keeps away: WebP masks with more change than there is, along every edge."""
    mask = np.zeros((60, 70), np.uint8)
    mask[11:43, 13:46] = 1
    path = tmp_path / "m.png"
    Image.fromarray(mask * 255).convert("RGB").save(path, form, **options)
    assert (images.read(str(path)).max(axis=2) > 0).mean() > mask.mean()
    assert np.array_equal(masks.read(str(path)), mask)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("JPEG2000", {}),
        ("JPEG2000", {"no_jp2": True}),
    ],
)
def test_small_values_count_in_lossless_formats(
    tmp_path: Path, form: str, options: dict[str, object]
) -> None:
    """Keeps away: a mask of 0 and 1 in which nothing changed, for its format can be lossy."""
    pixels = Image.fromarray(squares(0, 1, 1, 0)).convert("RGB")
    pixels.save(tmp_path / "m.png", form, **options)
    assert np.array_equal(masks.read(str(tmp_path / "m.png")), squares(0, 1, 1, 0))


def test_a_lossless_file_may_hold_the_name_of_a_lossy_chunk(tmp_path: Path) -> None:
    """Keeps away: one of ten thousand masks without change, as its bytes spell "VP8 " by chance."""
    path = tmp_path / "m.webp"
    Image.fromarray(squares(0, 1, 1, 0)).convert("RGB").save(path, lossless=True)
    path.write_bytes(path.read_bytes() + b"VP8 ")
    assert np.array_equal(masks.read(str(path)), squares(0, 1, 1, 0))


def test_an_unknown_value_is_no_class(tmp_path: Path) -> None:
    """Keeps away: a smoothed or damaged label whose classes nobody said."""
    path = written(tmp_path / "m.png", squares(255, 0, 77))
    with pytest.raises(RejectedPair, match=r"a pixel \(77\), not of 0; 128; 255") as caught:
        masks.read(path, LEVIR)
    assert caught.value.reason is Reason.UNREADABLE_MASK
    with pytest.raises(RejectedPair, match=r"a pixel \(255\), not of 0; 128"):
        masks.read(path, LEVIR[:2])


def test_the_union_is_made_of_the_sides(tmp_path: Path) -> None:
    """Keeps away: one side as the whole, and a class of before over that of after."""
    written(tmp_path / "b.png", squares(0, 128, 128, 0))
    written(tmp_path / "a.png", squares(0, 0, 255, 255))
    record = replace(pair(0), mask_before="b.png", mask_after="a.png", mask_values=LEVIR)
    union, before, after = masks.of_pair(str(tmp_path), record, 32, 64)
    assert np.array_equal(union, squares(0, 1, 2, 2))
    assert np.array_equal(before, squares(0, 1, 1, 0))
    assert np.array_equal(after, squares(0, 0, 2, 2))


def test_colours_are_classes(tmp_path: Path) -> None:
    """Keeps away: two colours of one class because they share a channel."""
    pixels = squares(0, 1, 2, 0)[..., None] * 0 + np.array(
        [[[255, 255, 255]] * 16 + [[128, 0, 0]] * 16 + [[0, 128, 0]] * 16 + [[255, 255, 255]] * 16],
        np.uint8,
    )
    path = written(tmp_path / "m.png", pixels, "RGB")
    assert np.array_equal(masks.read(path, COLOURS), squares(0, 2, 1, 0))
    with pytest.raises(RejectedPair, match=r"a pixel \(128, 0, 0\), not of 255, 255, 255"):
        masks.read(path, COLOURS[:1])


def test_the_same_cover_on_both_sides_is_no_change(tmp_path: Path) -> None:
    """Keeps away: a map of land cover whose every pixel counts as changed."""
    written(tmp_path / "b.png", squares(0, 128, 128, 255))
    written(tmp_path / "a.png", squares(128, 128, 255, 255))
    record = replace(pair(0), mask_before="b.png", mask_after="a.png", mask_values=LEVIR)
    union, before, after = masks.of_pair(str(tmp_path), replace(record, land_cover=True), 32, 64)
    assert np.array_equal(union, squares(1, 0, 2, 0))
    assert np.array_equal(before, squares(0, 0, 1, 0))
    assert np.array_equal(after, squares(1, 0, 2, 0))


def test_masks_that_are_empty_or_not_known(tmp_path: Path) -> None:
    record = replace(pair(0), mask=EMPTY_MASK)
    union, before, after = masks.of_pair(str(tmp_path), record, 8, 9)
    assert union.shape == (8, 9)
    assert not union.any()
    assert before is after is None
    assert masks.of_pair(str(tmp_path), pair(0), 8, 9) == masks.NO_MASKS


def test_nearest_neighbour_makes_no_new_classes(tmp_path: Path) -> None:
    written(tmp_path / "m.png", squares(255, 0, 128, 0))
    record = replace(pair(0), mask="m.png", mask_values=LEVIR)
    union, _, _ = masks.of_pair(str(tmp_path), record, 24, 20)
    assert union.shape == (24, 20)
    assert np.array_equal(np.unique(union, return_counts=True), ([0, 1, 2], [240, 120, 120]))


IDS = (((0,), 0), ((1,), 1), ((2,), 2), ((255,), 3))


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_numbers_of_sixteen_bits_are_not_scaled(tmp_path: Path, ending: str) -> None:
    """Keeps away: a map of labels 1 to K, as programs for maps write it, as one without change."""
    path = str(tmp_path / f"m.{ending}")
    Image.fromarray(squares(0, 1, 2, 255).astype(np.uint16)).save(path)
    assert np.array_equal(masks.read(path), squares(0, 1, 1, 1))
    assert np.array_equal(masks.read(path, IDS), squares(0, 1, 2, 3))


def test_an_eight_bit_mask_saved_with_sixteen_bits(tmp_path: Path) -> None:
    path = str(tmp_path / "m.png")
    Image.fromarray(squares(0, 1, 2, 255).astype(np.uint16) * 257).save(path)
    assert np.array_equal(masks.read(path), squares(0, 1, 1, 1))
    assert np.array_equal(masks.read(path, IDS), squares(0, 1, 2, 3))


@pytest.mark.parametrize("labels", [(0, 1, 2, 255), (0, 1, 1, 0), (0, 0, 0, 0)])
def test_floats_of_labels_are_not_scaled(tmp_path: Path, labels: tuple[int, ...]) -> None:
    """Keeps away: label 1 as 255 in the files that have no larger one."""
    path = str(tmp_path / "m.tif")
    Image.fromarray(squares(*labels).astype(np.float32)).save(path)
    assert np.array_equal(masks.read(path, IDS), squares(*(min(one, 3) for one in labels)))
    assert np.array_equal(masks.read(path), squares(*(min(one, 1) for one in labels)))


def test_floats_between_labels_are_no_classes(tmp_path: Path) -> None:
    """Keeps away: a map of probabilities as one of labels."""
    path = str(tmp_path / "m.tif")
    Image.fromarray(squares(0, 1).astype(np.float32) / 2).save(path)
    with pytest.raises(RejectedPair, match=r"a pixel \(0\.5\), not one of 0 to 255"):
        masks.read(path, IDS)
    assert np.array_equal(masks.read(path), squares(0, 1))


@pytest.mark.parametrize("label", [256, 300])
def test_numbers_beyond_eight_bits_are_no_classes(tmp_path: Path, label: int) -> None:
    """Keeps away: label 300 as the class that a scaled pixel happens to hit, and 256 as none."""
    path = str(tmp_path / "m.png")
    Image.fromarray(squares(0, 1).astype(np.uint16) * label).save(path)
    with pytest.raises(RejectedPair, match=rf"a pixel \({label}\), not one of 0 to 255") as caught:
        masks.read(path, IDS)
    assert caught.value.reason is Reason.UNREADABLE_MASK
    assert np.array_equal(masks.read(path), squares(0, 1))


def test_land_cover_beside_a_union_leaves_the_change_alone(tmp_path: Path) -> None:
    """Keeps away: sides that mark all of an image as vanished, and a union of a quarter of it."""
    written(tmp_path / "b.png", squares(0, 128, 128, 255))
    written(tmp_path / "a.png", squares(128, 128, 255, 255))
    written(tmp_path / "m.png", squares(0, 0, 128, 0))
    record = replace(
        pair(0), mask="m.png", mask_before="b.png", mask_after="a.png", mask_values=LEVIR,
        land_cover=True,
    )  # fmt: skip
    union, before, after = masks.of_pair(str(tmp_path), record, 32, 64)
    assert np.array_equal(union, squares(0, 0, 1, 0))
    assert np.array_equal(before, squares(0, 0, 1, 0))
    assert np.array_equal(after, squares(1, 0, 2, 0))
    assert classes_shown(tmp_path, record) == {1, 2}


def test_one_side_of_land_cover_shows_what_it_has(tmp_path: Path) -> None:
    """Keeps away: a side that is compared with none, and classes of a change that cancel out."""
    written(tmp_path / "b.png", squares(0, 128, 255))
    record = replace(pair(0), mask_values=LEVIR, land_cover=True)
    assert classes_shown(tmp_path, replace(record, mask_before="b.png")) == {1, 2}
    assert classes_shown(tmp_path, replace(record, mask_after="b.png")) == {1, 2}
    both = replace(record, mask_before="b.png", mask_after="b.png")
    assert classes_shown(tmp_path, both) == set()
    assert classes_shown(tmp_path, replace(both, land_cover=False)) == {1, 2}


def test_a_union_is_not_compared_with_a_side_of_land_cover(tmp_path: Path) -> None:
    """Keeps away: a class that is not counted where the union and the only side agree."""
    written(tmp_path / "m.png", squares(0, 0, 128, 0))
    record = replace(
        pair(0), mask="m.png", mask_before="m.png", mask_after=EMPTY_MASK, mask_values=LEVIR,
        land_cover=True,
    )  # fmt: skip
    assert classes_shown(tmp_path, record) == {1}


def test_a_mask_of_another_shape_fits_no_image(tmp_path: Path) -> None:
    """Keeps away: a mask of a part of an image, or of the turned one, stretched over it."""
    written(tmp_path / "m.png", squares(0, 255))  # 32 × 32
    record = replace(pair(0), mask="m.png", mask_after="m.png", mask_before=EMPTY_MASK)
    fitting: list[tuple[masks.Size, masks.Size]] = [
        ((32, 32), (32, 32)),
        ((128, 128), (32, 32)),  # a quarter of the image's size
        ((95, 97), (64, 64)),  # rounded
        ((30, 90), (32, 32)),  # made for the frames, in which all images are squares
    ]
    for image, frames in fitting:
        sizes = masks.ImageSizes(image, image)
        union, _, _ = masks.of_pair(str(tmp_path), record, *frames, sizes=sizes)
        assert union is not None
        assert union.shape == frames
        assert masks.shown(str(tmp_path), record, frames, sizes) is not None
    for sizes, image_text in (
        (masks.ImageSizes((32, 48), (32, 32)), "48×32"),
        (masks.ImageSizes((32, 32), (31, 33)), "33×31"),
        (masks.ImageSizes(None, (64, 60)), "60×64"),
    ):
        message = rf"m\.png: 32×32 px, and its image has {image_text}\."
        for read in (
            lambda sizes=sizes: masks.of_pair(str(tmp_path), record, 24, 24, sizes=sizes),
            lambda sizes=sizes: masks.shown(str(tmp_path), record, None, sizes),
        ):
            with pytest.raises(RejectedPair, match=message) as caught:
                read()
            assert caught.value.reason is Reason.MASK_DOES_NOT_FIT
    assert masks.of_pair(str(tmp_path), record, 24, 20).union is not None  # of unknown images


def test_greys_between_black_and_white_are_noted(tmp_path: Path) -> None:
    """Keeps away: a mask that was a JPEG, or was resized smoothly, that grows by a fifth."""
    mask = np.zeros((64, 64), np.uint8)
    mask[22:42, 22:42] = 255
    smooth = Image.fromarray(mask).resize((48, 48), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "smooth.png")
    written(tmp_path / "jpeg.jpg", mask)
    Image.open(tmp_path / "jpeg.jpg").save(tmp_path / "jpeg.png")
    written(tmp_path / "mask.png", mask)
    written(tmp_path / "labels.png", squares(0, 1, 2, 3))
    for name, has_greys in (
        ("smooth.png", True), ("jpeg.png", True), ("jpeg.jpg", False), ("mask.png", False),
        ("labels.png", False),
    ):  # fmt: skip
        shown = masks.shown(str(tmp_path), replace(pair(0), mask=name))
        assert shown is not None
        assert shown.with_greys == ((name,) if has_greys else ())


def test_a_shape_in_the_transparency_is_refused(tmp_path: Path) -> None:
    """Keeps away: a white picture, of which alpha shows a part, that marks everything as changed;
    and a black one that marks nothing."""
    shape = Image.fromarray(squares(0, 255))
    for name, colour in (("white.png", 255), ("black.png", 0)):
        image = Image.new("RGBA", shape.size, (colour, colour, colour))
        image.putalpha(shape)
        image.save(tmp_path / name)
        with pytest.raises(RejectedPair, match="its shape is in its transparency") as caught:
            masks.read(str(tmp_path / name))
        assert caught.value.reason is Reason.UNREADABLE_MASK
    for name, alpha in (("opaque.png", squares(255, 255)), ("same.png", squares(0, 255))):
        image = shape.convert("RGBA")
        image.putalpha(Image.fromarray(alpha))
        image.save(tmp_path / name)
        assert np.array_equal(masks.read(str(tmp_path / name)), squares(0, 1))
