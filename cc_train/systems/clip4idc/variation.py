"""Data augmentation for CLIP4IDC: changes of a pair after which its caption is still true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from pydantic import Field

from cc_prep.records import NO_CHANGE, Facts
from cc_prep.settings import Section
from cc_train.data.mirroring import exchange_sides
from cc_train.data.sequence_index import Sample
from cc_train.systems.clip4idc import known_facts


class Data(Section):
    """The training data: the ends of each sequence with one of its captions, drawn each time."""

    mirror: bool = False
    """Mirror half of the pairs, and exchange left and right in their captions; English only."""
    reverse: bool = False
    """Reverse half of the pairs that did not change, or that have captions of the reverse order."""
    shift: int = Field(0, ge=0)
    """Move both images together by up to so many px."""
    blur: float = Field(0.0, ge=0)
    """The largest standard deviation of a blur, in px."""
    no_change: float = Field(1.0, ge=0, le=1)
    """The share of the unchanged pairs to train on."""
    held_out: float = Field(0.05, gt=0, lt=1)
    """The share of the pairs that is held out for validation."""
    validation_pairs: int = Field(500, ge=2)
    """The largest number of pairs to validate on."""


@dataclass(frozen=True)
class Variation:
    """A change of both images of a pair after which its caption is still true.

    Attributes:
        dx, dy: Both images are moved by so many px.
        blur: Standard deviation in px.
        mirror: Left and right are exchanged, in the caption too.
        reverse: Before and after are exchanged, which needs a caption of the reversed pair.
    """

    dx: int = 0
    dy: int = 0
    blur: float = 0.0
    mirror: bool = False
    reverse: bool = False

    @classmethod
    def draw(cls, data: Data, rng: np.random.Generator) -> Variation:
        """A random variation within the settings."""
        dx = dy = 0
        if data.shift:
            dx, dy = (int(v) for v in rng.integers(-data.shift, data.shift + 1, 2))
        blur = float(rng.uniform(0, data.blur)) if data.blur else 0.0
        mirror = bool(data.mirror and rng.random() < 0.5)
        reverse = bool(data.reverse and rng.random() < 0.5)
        return cls(dx, dy, blur, mirror, reverse)

    def of_caption(self, caption: str) -> str:
        """The caption of the varied pair.

        Args:
            caption: Of the reversed pair if `reverse` is set.
        """
        return exchange_sides(caption) if self.mirror else caption

    def of_facts(self, sample: Sample, shape: Sequence[int]) -> Facts | None:
        """The facts of the varied pair.

        Args:
            shape: Of its images, [H, W, 3].

        Raises:
            UserError: For facts of another form.
        """
        facts = Facts.of_sample({**sample.meta, "key": sample.key})
        if facts is None:
            return None
        if self.reverse:
            facts = facts.reversed()
        height, width = shape[:2]
        return known_facts.moved(facts, (self.dx / width, self.dy / height), self.mirror)

    def of_pair(self, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both images, uint8 [H, W, 3]."""
        if self.dx or self.dy:
            before, after = (_moved(image, self.dx, self.dy) for image in (before, after))
        if self.blur > 0.1:
            before, after = (cv2.GaussianBlur(x, (0, 0), self.blur) for x in (before, after))
        if self.mirror:
            before, after = before[:, ::-1], after[:, ::-1]
        if self.reverse:
            before, after = after, before
        return np.ascontiguousarray(before), np.ascontiguousarray(after)


def draw(sample: Sample, data: Data, rng: np.random.Generator) -> tuple[Variation, str]:
    """A random variation of a sample within the settings, and a caption of the varied pair.

    Raises:
        UserError: For facts of another form.
    """
    captions: Sequence[str] = sample.meta["captions"]
    caption = str(captions[int(rng.integers(len(captions)))])
    variation = Variation.draw(data, rng)
    if variation.reverse:
        backwards = _captions_backwards(sample)
        if backwards:
            caption = str(backwards[int(rng.integers(len(backwards)))])
        else:
            variation = replace(variation, reverse=False)
    return variation, variation.of_caption(caption)


def captions_of(sample: Sample, data: Data) -> set[str]:
    """All captions that a sample may be trained on.

    Raises:
        UserError: For facts of another form.
    """
    captions = {str(caption) for caption in sample.meta["captions"]}
    if data.reverse:
        captions |= {*map(str, _captions_backwards(sample))}
    return captions | ({*map(exchange_sides, captions)} if data.mirror else set())


def _captions_backwards(sample: Sample) -> Sequence[str]:
    """Sentences about (after, before); none where the sample has none."""
    if sample.meta.get("kind") == NO_CHANGE:
        captions: Sequence[str] = sample.meta["captions"]
        return captions
    facts = Facts.of_sample({**sample.meta, "key": sample.key})
    return () if facts is None else facts.reversed_captions


def _moved(image: np.ndarray, dx: int, dy: int) -> np.ndarray:
    """The image moved by whole px; its border is repeated."""
    shape = np.array([[1, 0, dx], [0, 1, dy]], np.float32)
    size = (image.shape[1], image.shape[0])
    return cv2.warpAffine(image, shape, size, borderMode=cv2.BORDER_REPLICATE)
