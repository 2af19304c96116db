"""The captioner of photographs: what it says of what is seen and detected."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cc_prep.models.nanodet import Detection
from cc_prep.records import FACT_TYPES
from cc_train.captioner import Change
from cc_train.systems.photos import objects, pictures, sentences
from cc_train.systems.photos.objects import Verdict

LEFT, RIGHT, MIDDLE = (0.05, 0.4, 0.2, 0.7), (0.8, 0.4, 0.95, 0.7), (0.4, 0.4, 0.6, 0.6)


def verdict(
    kind: str, before: tuple[int, int] = (7, 7), after: tuple[int, int] = (7, 7)
) -> Verdict:
    maps = np.full((2, 14, 14), 0.001)
    maps[0][before], maps[1][after] = 0.5, 0.5
    return Verdict(kind, 0.99, maps[0], maps[1])


def said(
    verdict: Verdict,
    before: tuple[Detection, ...] = (),
    after: tuple[Detection, ...] = (),
    difference: float = 50.0,
    color: str = "",
) -> str:
    found = objects.find(verdict, before, after, lambda _: difference, lambda _: color)
    return sentences.text("", found)


def test_the_comparison_is_named_by_what_is_detected_there() -> None:
    person = Detection("person", 0.2, LEFT)
    at_left = verdict("add", after=(7, 1))
    assert said(at_left, after=(person,)) == "a person appeared on the left"
    assert (
        said(verdict("drop", before=(7, 1)), before=(person,)) == "a person disappeared on the left"
    )
    assert said(at_left) == "something appeared on the left"
    elsewhere = Detection("person", 0.2, RIGHT)
    assert said(at_left, after=(elsewhere,)) == "something appeared on the left"
    stays = (Detection("person", 0.3, LEFT),)
    assert said(at_left, before=stays, after=stays) == "something appeared on the left"


def test_what_is_detected_alone_needs_a_score_and_other_pixels() -> None:
    none, car = verdict("none"), Detection("car", 0.6, RIGHT)
    assert said(none, after=(car,)) == "a car appeared on the right"
    assert said(none, after=(car,), difference=3.0) == "nothing changed"
    assert said(none, after=(car._replace(score=0.3),)) == "nothing changed"
    person = Detection("person", 0.5, LEFT)
    assert said(verdict("add", after=(7, 1)), before=(car,), after=(person,)) == (
        "a person appeared on the left. a car disappeared on the right"
    )


def test_what_went_and_came_has_moved() -> None:
    before, after = Detection("person", 0.6, LEFT), Detection("person", 0.5, MIDDLE)
    words = "a person moved from the left to the middle"
    assert said(verdict("none"), (before,), (after,)) == words
    assert said(verdict("move", (7, 1), (7, 7)), (before,), (after,)) == words
    assert said(verdict("move", (7, 1), (7, 7))) == "something moved from the left to the middle"


@pytest.mark.parametrize("kind", ["color", "material"])
def test_a_change_of_looks_is_what_the_detections_say(kind: str) -> None:
    dog, cat = Detection("dog", 0.6, MIDDLE), Detection("cat", 0.7, MIDDLE)
    assert said(verdict(kind), (dog,), (cat,)) == "a dog was replaced by a cat in the middle"
    assert said(verdict(kind), after=(cat,)) == "a cat appeared in the middle"
    assert said(verdict(kind)) == "something changed in the middle"
    assert said(verdict(kind), color="red") == "something became red in the middle"
    assert said(verdict(kind), (dog,), (dog,), color="red") == "a dog became red in the middle"
    assert said(verdict(kind), (dog,), (cat,), color="red").startswith("a dog was replaced")


def test_words_of_several() -> None:
    changes = [Change("appeared", "umbrella", None, box) for box in ((0, 0, 0.2, 0.2), MIDDLE)]
    assert sentences.text("became darker", changes) == (
        "the picture became darker. an umbrella appeared at the top left. "
        "another umbrella appeared in the middle"
    )
    assert set(FACT_TYPES) - {"none", "color", "material"} == set(objects.KINDS)


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    generator = np.random.default_rng(0)
    coarse = generator.integers(40, 160, (26, 26, 3), dtype=np.uint8)
    return coarse.repeat(16, axis=0).repeat(16, axis=1)


def test_the_picture_as_a_whole(picture: np.ndarray) -> None:

    noisy = picture + np.random.default_rng(1).integers(0, 4, picture.shape, dtype=np.uint8)
    assert pictures.compare(picture, noisy).change == ""
    brighter = (picture * 1.5).astype(np.uint8)
    seen = pictures.compare(picture, brighter)
    assert (seen.change, seen.differs.any()) == ("became brighter", False)
    assert pictures.compare(brighter, picture).change == "became darker"
    blurred = cv2.GaussianBlur(picture, (0, 0), 8)
    assert pictures.compare(picture, blurred).change == "became blurred"
    assert pictures.compare(blurred, picture).change == "became sharper"
    grey = picture[..., 1:2].repeat(3, 2)
    assert pictures.compare(picture, grey).change == "became black and white"
    turned = pictures.compare(picture, np.roll(picture, 40, axis=1))
    assert turned.alike < 0.3
    assert turned.change == ""
    assert turned.view is None


def test_what_is_a_part_of_the_other_picture_was_cropped(picture: np.ndarray) -> None:
    """Keeps away: a cropped picture called another view, and a turned camera called a crop."""
    part = cv2.resize(picture[60:360, 100:400], picture.shape[1::-1])
    seen = pictures.compare(picture, part)
    assert seen.change == "was cropped"
    assert seen.alike > 0.8
    before, after = pictures.without_change(picture, part, seen)
    assert np.abs(before.astype(int) - after).mean() < 8
    back = pictures.compare(part, picture)
    assert (back.change, back.alike > 0.8) == ("shows more than before", True)
    wide = np.repeat(picture, 2, axis=1)  # not square
    cut = cv2.resize(wide[60:360, 100:700], wide.shape[1::-1])
    assert pictures.compare(wide, cut).change == "was cropped"
    flat = np.full_like(picture, 90)
    assert pictures.compare(flat, picture).view is None
    noise = np.random.default_rng(1).integers(0, 255, picture.shape, dtype=np.uint8)
    assert pictures.compare(noise, picture).view is None


def test_colors_have_names(picture: np.ndarray) -> None:
    """Keeps away: hues around 0 degrees without a name, and grey called by one."""
    box = (0.25, 0.25, 0.5, 0.5)
    painted = picture.copy()
    for color, rgb in {"red": (200, 20, 30), "green": (30, 160, 40), "blue": (20, 40, 220)}.items():
        painted[104:208, 104:208] = rgb
        assert pictures.compare(picture, painted).new_color(box) == color
    assert pictures.compare(painted, painted).new_color(box) == ""
    painted[104:208, 104:208] = 128
    assert pictures.compare(picture, painted).new_color(box) == ""
