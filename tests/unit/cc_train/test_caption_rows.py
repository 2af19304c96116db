"""What is said of a caption in JSON."""

from __future__ import annotations

import numpy as np

from cc_train.caption_rows import boxes, row
from cc_train.captioner import Caption, Change


def test_a_box_for_each_place_of_each_class() -> None:
    """Keeps away: boxes that join two places or two classes, and edges that leave a pixel out."""
    mask = np.zeros((10, 20), np.uint8)
    mask[0:2, 0:4], mask[2, 4] = 1, 1  # which touch at a corner
    mask[8:10, 19] = 1
    mask[5:10, 10:15] = 2
    assert boxes(mask, ("house",)) == [
        {"class": 2, "box": [0.5, 0.5, 0.75, 1.0], "area": 0.125},
        {"class": "house", "box": [0.0, 0.0, 0.25, 0.3], "area": 0.045},
        {"class": "house", "box": [0.95, 0.8, 1.0, 1.0], "area": 0.01},
    ]
    assert boxes(np.zeros((4, 4), np.uint8)) == []


def test_changes_have_their_own_boxes() -> None:
    """Keeps away: two lists of boxes of one thing, those of what differs beside the object's."""
    change = Change("appeared", "person", None, (0.1, 0.2, 0.3, 0.4), score=0.51239)
    caption = Caption("a person appeared", mask=np.ones((4, 4), np.uint8), changes=(change,))
    assert row(caption) == {
        "caption": "a person appeared",
        "changes": [{"kind": "appeared", "label": "person", "after": [0.1, 0.2, 0.3, 0.4],
                     "score": 0.5124}],
    }  # fmt: skip
