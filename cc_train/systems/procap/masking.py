"""Which frame tokens of a sample are visible: the masks of stage 1, and the one of stage 2.

Source: ProCap, section 3.3, and its code. All are bool [T, h, w], True where a token is kept.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, model_validator

from cc_prep.settings import Section

TRIES = 10


class Masks(Section):
    """Probabilities of the masks, which sum to 1, and their sizes."""

    random: float = Field(0.7, ge=0, le=1)
    """Each token is kept by itself, with a share drawn from `keep_prob`."""
    full: float = Field(0.1, ge=0, le=1)
    """Everything is masked, so only the caption says what the frames show."""
    box_masked: float = Field(0.1, ge=0, le=1)
    """One box, the same in all frames, is masked."""
    box_visible: float = Field(0.1, ge=0, le=1)
    """Everything but such a box is masked."""
    interior: float = Field(0.0, ge=0, le=1)
    """All frames between before and after are masked, as in stage 2; not in the paper."""
    keep_prob: tuple[float, float] = Field((0.2, 0.2), strict=False)
    """Bounds that the share of shown tokens is drawn between."""
    box_area: tuple[float, float] = Field((0.2, 0.8), strict=False)
    """Bounds that a box's share of the frame is drawn between."""
    aspect: float = Field(2.0, ge=1)
    """The largest ratio of a box's sides."""

    @model_validator(mode="after")
    def _are_chances(self) -> Masks:
        if not math.isclose(sum(self.chances), 1.0, abs_tol=1e-6):
            raise ValueError("the chances of the masks do not sum to 1")
        for name, (low, high) in (("keep_prob", self.keep_prob), ("box_area", self.box_area)):
            if not 0 <= low <= high <= 1:
                raise ValueError(f"{name} is [{low:g}, {high:g}], not two rising shares of 0 to 1")
        return self

    @property
    def chances(self) -> tuple[float, ...]:
        """Probabilities in the order of `NAMES`."""
        return (self.random, self.full, self.box_masked, self.box_visible, self.interior)


NAMES = ("random", "full", "box_masked", "box_visible", "interior")


def draw(
    shape: tuple[int, int, int], masks: Masks, rng: np.random.Generator
) -> tuple[str, np.ndarray]:
    """Draws a mask by the probabilities of `masks`; its name, and the mask, bool [T, h, w]."""
    name = NAMES[int(rng.choice(len(NAMES), p=np.array(masks.chances) / sum(masks.chances)))]
    return name, make(name, shape, masks, rng)


def make(
    name: str, shape: tuple[int, int, int], masks: Masks, rng: np.random.Generator
) -> np.ndarray:
    """The mask of that name for frames of [T, h, w] tokens."""
    visible = np.zeros(shape, bool)
    if name == "random":
        visible = rng.random(shape) < rng.uniform(*masks.keep_prob)
    elif name in ("box_masked", "box_visible"):
        visible[:] = box(shape[1:], masks, rng)
        if name == "box_masked":
            visible = ~visible
    elif name == "interior":
        visible[[0, -1]] = True
    else:
        assert name == "full", name
    return visible


def box(shape: tuple[int, ...], masks: Masks, rng: np.random.Generator) -> np.ndarray:
    """Mask bool [h, w], True in a random box that is smaller than the frame along each side."""
    rows, columns = shape
    height = width = 0
    for _ in range(TRIES):
        area = rng.uniform(*masks.box_area) * rows * columns
        aspect = math.exp(rng.uniform(-math.log(masks.aspect), math.log(masks.aspect)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < rows and width < columns:
            break
    height = min(max(height, 1), max(rows - 1, 1))
    width = min(max(width, 1), max(columns - 1, 1))
    top, left = rng.integers(rows - height + 1), rng.integers(columns - width + 1)
    inside = np.zeros((rows, columns), bool)
    inside[top : top + height, left : left + width] = True
    return inside
