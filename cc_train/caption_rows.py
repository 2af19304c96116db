"""A caption as JSON: the rows of `cc-train caption --json`, and of `cc-prep caption`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cc_train.captioner import Caption, Change


def row_of(caption: Caption) -> dict[str, Any]:
    """What is known of a caption, numbers with four digits after the point."""
    row: dict[str, Any] = {"caption": caption.text}
    if caption.confidence is not None:
        row["confidence"] = round(caption.confidence, 4)
    if caption.changes is not None:
        row["changes"] = [_change(one) for one in caption.changes]
    if caption.beams:
        row["beams"] = [{"caption": text, "score": score} for text, score in caption.beams]
    return row


def _change(change: Change) -> dict[str, Any]:
    """A change as JSON: what is known of it, boxes as shares of the image's width and height."""
    row = {name: value for name, value in asdict(change).items() if value}
    for end in ("before", "after"):
        if end in row:
            row[end] = [round(edge, 4) for edge in row[end]]
    if "score" in row:
        row["score"] = round(row["score"], 4)
    return row
