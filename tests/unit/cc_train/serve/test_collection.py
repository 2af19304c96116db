"""The data set that the page writes: both layouts read it, and a pair is whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cc_prep import datasets
from cc_prep.errors import UserError
from cc_prep.media import images
from cc_train.serve.collection import LEVIR, TABLE, Collection

TEXTS = ["A house is built.", "  a new   house "]


def picture(side: int = 20, codec: str = "png") -> bytes:
    pixels = np.full((side, side, 3), side, np.uint8)
    return images.encode_image(pixels, codec, 90)


def collected(folder: Path) -> Collection:
    collection = Collection(folder)
    collection.put("one", picture(), picture(), TEXTS, "train", "change")
    collection.put("two", picture(24, "jpg"), picture(24, "jpg"), ["same"], "test", "no_change")
    return collection


@pytest.mark.parametrize("name", ["own", "levir"])
def test_our_readers_read_it(tmp_path: Path, name: str) -> None:
    """As a table, and as LEVIR-CC is published."""
    collected(tmp_path)
    [one] = datasets.open(name, root=str(tmp_path), split="train")
    [two] = datasets.open(name, root=str(tmp_path), split="test")
    assert (one.record.id, two.record.id) == ("one", "two")
    assert one.captions == ("A house is built.", "a new house")
    assert (one.record.kind, two.record.kind) == ("change", "no_change")
    assert one.before.shape == one.after.shape == (20, 20, 3)
    assert two.before.shape == two.after.shape == (24, 24, 3)


def test_levirs_file_counts_as_the_published_one(tmp_path: Path) -> None:
    collected(tmp_path)
    first, second = json.loads((tmp_path / LEVIR).read_text())["images"]
    assert (first["filename"], first["filepath"], first["changeflag"]) == ("one.png", "train", 1)
    assert (second["imgid"], second["sentids"], second["changeflag"]) == (1, [2], 0)
    assert first["sentences"][0]["tokens"] == ["a", "house", "is", "built"]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    collected(tmp_path)
    again = Collection(tmp_path)
    assert [row.id for row in again.rows()] == ["one", "two"]
    again.put("one", picture(), picture(), ["other"], "val", "change")
    assert not (tmp_path / "images/train/A/one.png").exists()
    assert (tmp_path / "images/val/B/one.png").exists()
    again.remove("two")
    assert not list((tmp_path / "images/test").rglob("*.jpg"))
    [row] = Collection(tmp_path).rows()
    assert (row.id, row.captions, row.split) == ("one", ("other",), "val")
    assert len(json.loads((tmp_path / LEVIR).read_text())["images"]) == 1


def test_images_of_two_formats_become_png(tmp_path: Path) -> None:
    """LEVIR-CC has one file name for both images of a pair."""
    row = Collection(tmp_path).put("a", picture(), picture(codec="jpg"), ["x"], "train", "change")
    assert (row.before, row.after) == ("images/train/A/a.png", "images/train/B/a.png")
    assert (tmp_path / row.after).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"id": "../a"}, "'../a' is no name"),
        ({"captions": [" "]}, "no caption"),
        ({"split": "trial"}, "no split and kind"),
        ({"after": picture(24)}, "the image before is 20×20 px and the image after 24×24"),
        ({"after": b"text"}, "the image after"),
    ],
)
def test_what_is_no_pair_writes_nothing(
    tmp_path: Path, change: dict[str, object], line: str
) -> None:
    pair = {"id": "a", "before": picture(), "after": picture(), "captions": ["x"]}
    with pytest.raises(UserError, match=line):
        Collection(tmp_path).put(**{**pair, "split": "train", "kind": "change", **change})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_table_of_somebody_else_stays(tmp_path: Path) -> None:
    """Keeps away: somebody's own pairs.jsonl that is overwritten."""
    (tmp_path / TABLE).write_text('{"before": "a.png", "after": "b.png"}\n')
    with pytest.raises(UserError, match="not a table of cc-train serve"):
        Collection(tmp_path)


def test_a_pair_that_cannot_be_stored_is_nowhere(tmp_path: Path) -> None:
    """Keeps away: a pair that the user was not told of, but that the next one brings along; and old
    captions at new images.
    """
    collection = collected(tmp_path)
    table, files = (tmp_path / TABLE).read_text(), sorted((tmp_path / "images").rglob("*.*"))
    before = (tmp_path / "images/train/A/one.png").read_bytes()
    levir = (tmp_path / LEVIR).read_text()
    (tmp_path / LEVIR).unlink()
    (tmp_path / LEVIR).mkdir()
    for id in ("one", "three"):
        with pytest.raises(UserError, match=rf"^{id} cannot be stored \(Is a directory\)\. Check"):
            collection.put(id, picture(30), picture(30), ["other"], "train", "change")
    with pytest.raises(UserError, match=r"^two cannot be removed \(Is a directory\)\. Check"):
        collection.remove("two")
    assert (tmp_path / TABLE).read_text() == table
    assert sorted((tmp_path / "images").rglob("*.*")) == files
    assert (tmp_path / "images/train/A/one.png").read_bytes() == before
    assert [row.captions[0] for row in collection.rows()] == [TEXTS[0], "same"]
    (tmp_path / LEVIR).rmdir()
    collection.put("one", picture(), picture(), TEXTS, "train", "change")
    assert (tmp_path / LEVIR).read_text() == levir
    assert (tmp_path / TABLE).read_text() == table


def test_new_images_of_a_pair_have_a_name_of_their_own(tmp_path: Path) -> None:
    """Keeps away: images that are replaced before the row that belongs to them is there."""
    collection = collected(tmp_path)
    row = collection.put("one", picture(), picture(), ["other"], "train", "change")
    assert row.before == "images/train/A/one.png", "the same images stay where they are"
    row = collection.put("one", picture(30), picture(30), ["other"], "train", "change")
    assert (row.before, row.after) == ("images/train/A/one-2.png", "images/train/B/one-2.png")
    assert (tmp_path / row.before).read_bytes() == picture(30)
    assert not (tmp_path / "images/train/A/one.png").exists()
    assert Collection(tmp_path).get("one") == row
