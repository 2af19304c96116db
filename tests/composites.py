"""Photograph-like pairs with an exact mask: objects pasted on a textured ground, then disturbed."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

SIDE = 224


@dataclass(frozen=True)
class Composite:
    """before, after: uint8 [H, W, 3] RGB. mask: bool [H, W], the pasted object."""

    before: np.ndarray
    after: np.ndarray
    mask: np.ndarray


def composite(seed: int, changed: bool = True, shift: tuple[int, int] = (0, 0)) -> Composite:
    """A pair as a fixed camera sees it: noise of 3 levels, JPEG 90, brightness off by up to 3 %.

    changed: whether an object was added. shift: px by which the second image is moved.
    """
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(60, 190, (9, 9, 3)).astype(np.float32)
    fine = rng.normal(0, 12, (56, 56, 3)).astype(np.float32)
    parts = [cv2.resize(x, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for x in (coarse, fine)]
    ground = parts[0] + parts[1]
    for _ in range(40):  # edges, at which a moved camera shows
        start, end = (tuple(int(x) for x in rng.integers(0, SIDE, 2)) for _ in range(2))
        colour = tuple(float(x) for x in rng.uniform(40, 215, 3))
        cv2.line(ground, start, end, colour, int(rng.integers(1, 6)))
    mask = np.zeros((SIDE, SIDE), np.uint8)
    centre = tuple(int(x) for x in rng.integers(50, SIDE - 50, 2))
    axes = tuple(int(x) for x in rng.integers(12, 32, 2))
    cv2.ellipse(mask, centre, axes, float(rng.uniform(0, 180)), 0, 360, 1, -1)
    inside = mask > 0
    with_object = ground.copy()
    # An object that can be seen: of another colour than the ground behind it.
    colour = (ground[inside].mean(axis=0) + 128) % 256
    with_object[inside] = colour + rng.normal(0, 4, (int(inside.sum()), 3))
    after = np.roll(with_object if changed else ground, shift, axis=(0, 1))
    return Composite(_seen(ground, rng), _seen(after, rng), inside if changed else inside & False)


def _seen(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    brighter = image * rng.uniform(0.97, 1.03) + rng.normal(0, 3, image.shape)
    pixels = np.rint(brighter).clip(0, 255).astype(np.uint8)
    data = cv2.imencode(".jpg", pixels[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 90))[1]
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1])
