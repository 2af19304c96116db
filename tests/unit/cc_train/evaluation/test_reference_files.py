"""Reference files: one caption or several of an id, as a string, a list, or annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import UserError
from cc_train.evaluation.captions import coco


def read(folder: Path, content: Any) -> dict[str, tuple[str, ...]]:
    (folder / "references.json").write_text(json.dumps(content))
    items = coco.read_references(str(folder / "references.json"))
    return {item.id: tuple(item.references) for item in items}


@pytest.mark.parametrize(
    "content",
    [
        {"1": "it moved", "2": ["a", "b"], "3": []},
        {
            "images": [{"id": 1}, {"id": 2}, {"id": 3}],
            "annotations": [
                {"image_id": 1, "caption": "it moved"},
                {"image_id": 2, "caption": "a"},
                {"image_id": 2, "caption": "b"},
            ],
        },
    ],
    ids=["lists", "annotations"],
)
def test_captions_of_each_id(tmp_path: Path, content: Any) -> None:
    """Keeps away: a caption that is taken apart into letters, and a list that is one caption."""
    assert read(tmp_path, content) == {"1": ("it moved",), "2": ("a", "b")}


@pytest.mark.parametrize(
    ("content", "message"),
    [({"1": 3}, "no references"), ([], "no references|not one"), ({"1": []}, "not one reference")],
)
def test_what_is_no_reference_file(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)
