"""What the page shows of a pair: the sentence, beams, confidence, heat, mask, imagined frames."""

from __future__ import annotations

from typing import Any, Protocol

import cv2
import numpy as np

from cc_prep.errors import JobFailed, UserError
from cc_prep.inspect.pages import data_url
from cc_prep.media import images
from cc_train.baselines.captioner import ChatCaptioner
from cc_train.captioner import Attention, Caption
from cc_train.data import image_pairs
from cc_train.pretrained import Captioner
from cc_train.report import attention, strips

MAX_BEAMS = 10
SHOWN_SIDE = 320  # px of a picture with heat
COLOURS = (  # of classes
    (255, 40, 0), (0, 110, 255), (255, 190, 0),
    (150, 60, 220), (0, 150, 90), (150, 90, 40),
)  # fmt: skip
OPACITY = 150  # of 255


class Service(Protocol):
    """What captions the pairs that a page sends."""

    name: str

    def about(self) -> dict[str, Any]:
        """What the page says of it. sends_to: where it sends the images; None if nowhere."""
        ...

    def caption(self, before: np.ndarray, after: np.ndarray, beams: int) -> dict[str, Any]:
        """All that is known of a pair of images uint8 [H, W, 3] RGB, as JSON. Raises UserError."""
        ...


class CaptionService:
    """Captions of the pairs that a page sends. Not for two threads at once.

    Args:
        name: How the page calls the captioner.
    """

    def __init__(self, captioner: Captioner, name: str) -> None:
        self.captioner, self.name = captioner, name

    def about(self) -> dict[str, Any]:
        """What the page says of the captioner."""
        height, width = self.captioner.inputs.size
        size = f"{width}×{height}"
        return {"name": self.name, "size": size, "most_beams": MAX_BEAMS, "sends_to": None}

    def caption(self, before: np.ndarray, after: np.ndarray, beams: int) -> dict[str, Any]:
        """All that is known of a pair, as JSON; what the captioner does not say is None or empty.

        Args:
            before, after: uint8 [H, W, 3] RGB.
            beams: 1 is greedy alone.

        Raises:
            UserError: For images of different sizes, and for a number of beams outside 1 to
                MAX_BEAMS.
        """
        if not 1 <= beams <= MAX_BEAMS:
            raise UserError(f"{beams} beams", f"Give 1 to {MAX_BEAMS}")
        greedy = self.captioner(before, after)
        ranked = self.captioner(before, after, beams=beams).beams if beams > 1 else ()
        pixels = image_pairs.stack([(before, after)], self.captioner.inputs.size)
        frames = strips.imagined(self.captioner.model, pixels)
        return {
            "caption": greedy.text,
            "raw_caption": greedy.raw,
            "confidence": greedy.confidence,
            "beams": [{"caption": text, "score": score} for text, score in ranked],
            "mask": None if greedy.mask is None else _mask(greedy.mask),
            "regions": [] if greedy.mask is None else _regions(greedy.mask),
            "imagined": [] if frames is None else [url(frame) for frame in frames],
            **_heat(greedy, before, after),
        }


class ChatService:
    """Captions by a multi-modal LLM of a server, which says a sentence alone."""

    def __init__(self, captioner: ChatCaptioner) -> None:
        self.captioner, self.name = captioner, captioner.name

    def about(self) -> dict[str, Any]:
        """What the page says of the captioner."""
        endpoint = str(self.captioner.server.endpoint)
        return {"name": self.name, "size": None, "most_beams": 1, "sends_to": endpoint}

    def caption(self, before: np.ndarray, after: np.ndarray, beams: int) -> dict[str, Any]:
        """The sentence about a pair, see `Service`; `beams` is not looked at, as there are none."""
        try:
            caption = self.captioner(before, after)
        except JobFailed as error:
            raise UserError(str(error), "Try again") from None
        nothing: dict[str, Any] = {
            "raw_caption": None, "confidence": None, "mask": None,
            "beams": [], "regions": [], "imagined": [], "words": [], "looked": [],
        }  # fmt: skip
        return {"caption": caption.text, **nothing}


def _heat(caption: Caption, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """`words` of the caption, each with both images under where the captioner looked for it.

    `looked` has the mean over the words.
    """
    looked: Attention | None = caption.attention
    if looked is None or not looked.words:
        return {"words": [], "looked": []}
    sides = [_small(before), _small(after)]

    def under(heat: np.ndarray) -> list[str]:
        return [data_url(attention.over(side, heat), "jpeg") for side in sides]

    pairs = zip(looked.words, looked.maps, strict=True)
    return {
        "words": [{"word": word, "images": under(heat)} for word, heat in pairs],
        "looked": under(looked.maps.mean(0)),
    }


def _small(image: np.ndarray) -> np.ndarray:
    factor = SHOWN_SIDE / max(image.shape[:2])
    if factor >= 1:
        return image
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)


def _mask(mask: np.ndarray) -> str:
    """An overlay for the image: coloured where something changed, else transparent."""
    picture = np.zeros((*mask.shape, 4), np.uint8)
    for class_id in _classes(mask):
        picture[mask == class_id] = (*_colour(class_id), OPACITY)
    encoded = cv2.imencode(".png", cv2.cvtColor(picture, cv2.COLOR_RGBA2BGRA))[1]
    return data_url(encoded.tobytes(), "png")


def _regions(mask: np.ndarray) -> list[dict[str, Any]]:
    """The classes of change in a mask: id, colour in the picture, share of the image, 0 to 1."""
    return [
        {
            "class": class_id,
            "colour": "#{:02x}{:02x}{:02x}".format(*_colour(class_id)),
            "share": float((mask == class_id).mean()),
        }
        for class_id in _classes(mask)
    ]


def _classes(mask: np.ndarray) -> list[int]:
    return [int(class_id) for class_id in np.unique(mask) if class_id != 0]


def _colour(class_id: int) -> tuple[int, int, int]:
    return COLOURS[(class_id - 1) % len(COLOURS)]


def url(image: np.ndarray) -> str:
    """An image uint8 [H, W, 3] RGB as a data URL."""
    return data_url(images.encode_image(image, "png", 0), "png")
