"""Whether a model of a server sees two images, in their order: asked about two plain colors.

Some servers drop one of two images without a word, and the captions of such a model are guesses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from cc_prep.media import images
from cc_train.baselines.answers import Answer
from cc_train.baselines.questions import Turn

COLORS = ("red", "blue")
SIDE = 224  # px
# The colors of the example are none of COLORS: a model may repeat them.
PROMPT = (
    "Each image is of one color. Name the color of the first image, then the color of the second, "
    'such as "green, yellow". Answer with the two colors alone.'
)
MAX_SHOWN = 60  # characters of an answer in a message
_NAMED = re.compile(rf"\b({'|'.join(COLORS)})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Sight:
    """What a model said of red and blue, and of blue and red."""

    captions: tuple[str, str]

    @property
    def named(self) -> list[list[str]]:
        """The colors of each answer, once each, in their order."""
        return [
            list(dict.fromkeys(name.lower() for name in _NAMED.findall(caption)))
            for caption in self.captions
        ]

    @property
    def is_right(self) -> bool:
        """Whether both images were seen, in their order."""
        return self.named == [list(COLORS), list(reversed(COLORS))]

    @property
    def misses_one(self) -> bool:
        """Whether each answer names one color alone, so that one of the images was not seen."""
        return all(len(names) == 1 for names in self.named)

    def __str__(self) -> str:
        shown = (caption[:MAX_SHOWN] or "nothing" for caption in self.captions)
        return "of red and blue “{}”, and of blue and red “{}”".format(*shown)


def look(ask: Callable[[Sequence[Turn]], Answer]) -> Sight:
    """Asks a model twice. What `ask` raises passes through."""
    red, blue = map(_plain, COLORS)
    answers = [ask([_turn(*pair)]) for pair in ((red, blue), (blue, red))]
    return Sight((answers[0].caption, answers[1].caption))


def _turn(first: bytes, second: bytes) -> Turn:
    return Turn(("The first image:", first, "The second image:", second, PROMPT))


def _plain(color: str) -> bytes:
    return images.encode_image(np.array(Image.new("RGB", (SIDE, SIDE), color)), "png", 0)
