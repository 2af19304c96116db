"""A caption as JSON: the rows of `cc-train caption --json`, `cc-prep caption`, GeoJSON and HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import cv2
import numpy as np

from cc_train.captioner import Caption, Change


def row(caption: Caption, classes: Sequence[str] = ()) -> dict[str, Any]:
    """What is known of a caption, by name; what its captioner does not say is left out.

    Args:
        classes: Names of the classes 1 … K of its mask; empty where they are not known.
    """
    values: dict[str, Any] = {"caption": caption.text}
    if caption.raw is not None:
        values["raw_caption"] = caption.raw
    if caption.confidence is not None:
        values["confidence"] = round(caption.confidence, 4)
    if caption.compared is not None:
        values["compared"] = round(caption.compared, 4)
    if caption.changes is not None:
        values["changes"] = [_change(one) for one in caption.changes]
    elif caption.mask is not None:
        values["boxes"] = boxes(caption.mask, classes)
    if caption.beams:
        values["beams"] = [{"caption": text, "score": score} for text, score in caption.beams]
    return values


def boxes(mask: np.ndarray, classes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The connected places of a mask, class ids uint8 [H, W], the largest first.

    Each has its `class`, by name where that is known; its `box`, left, top, right and bottom as
    shares of the image's width and height; and its `area`, as a share of the image.
    """
    height, width = mask.shape
    found = []
    for number in (int(one) for one in np.unique(mask) if one):
        of_class = (mask == number).astype(np.uint8)
        _, _, statistics, _ = cv2.connectedComponentsWithStats(of_class, connectivity=8)
        for left, top, columns, rows, area in statistics[1:].tolist():  # the first is the rest
            edges = (left / width, top / height, (left + columns) / width, (top + rows) / height)
            found.append(
                {
                    "class": classes[number - 1] if number <= len(classes) else number,
                    "box": [round(edge, 4) for edge in edges],
                    "area": round(area / mask.size, 4),
                }
            )
    return sorted(found, key=lambda one: -one["area"])


def _change(change: Change) -> dict[str, Any]:
    """A change as JSON: what is known of it, boxes as shares of the image's width and height."""
    values = {name: value for name, value in asdict(change).items() if value}
    for end in ("before", "after"):
        if end in values:
            values[end] = [round(edge, 4) for edge in values[end]]
    if "score" in values:
        values["score"] = round(values["score"], 4)
    return values
