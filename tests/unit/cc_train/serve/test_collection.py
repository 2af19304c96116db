"""The data set that the page writes: both layouts read it, and a pair is whole or not there."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest

from cc_prep import datasets
from cc_prep.errors import UserError
from cc_prep.media import images
from cc_train.serve import collection as collections
from cc_train.serve.collection import LEVIR, LOCK, TABLE, Collection, Row

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
    again.put("one", picture(), picture(), ["other"], "val", "change", replaces="one")
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
    for id, old in (("one", "one"), ("three", None)):
        with pytest.raises(UserError, match=rf"^{id} cannot be stored \(Is a directory\)\. Check"):
            collection.put(id, picture(30), picture(30), ["other"], "train", "change", replaces=old)
    with pytest.raises(UserError, match=r"^two cannot be removed \(Is a directory\)\. Check"):
        collection.remove("two")
    assert (tmp_path / TABLE).read_text() == table
    assert sorted((tmp_path / "images").rglob("*.*")) == files
    assert (tmp_path / "images/train/A/one.png").read_bytes() == before
    assert [row.captions[0] for row in collection.rows()] == [TEXTS[0], "same"]
    (tmp_path / LEVIR).rmdir()
    collection.put("one", picture(), picture(), TEXTS, "train", "change", replaces="one")
    assert (tmp_path / LEVIR).read_text() == levir
    assert (tmp_path / TABLE).read_text() == table


def test_new_images_of_a_pair_have_a_name_of_their_own(tmp_path: Path) -> None:
    """Keeps away: images that are replaced before the row that belongs to them is there."""
    collection = collected(tmp_path)
    rest = ["other"], "train", "change"
    row = collection.put("one", picture(), picture(), *rest, replaces="one")
    assert row.before == "images/train/A/one.png", "the same images stay where they are"
    row = collection.put("one", picture(30), picture(30), *rest, replaces="one")
    assert (row.before, row.after) == ("images/train/A/one-2.png", "images/train/B/one-2.png")
    assert (tmp_path / row.before).read_bytes() == picture(30)
    assert not (tmp_path / "images/train/A/one.png").exists()
    assert Collection(tmp_path).get("one") == row


def test_a_new_pair_replaces_no_other(tmp_path: Path) -> None:
    """Keeps away: captions of somebody that are lost to a second pair of the same name."""
    collection = collected(tmp_path)
    before = collection.rows()
    for replaces in (None, "two"):
        with pytest.raises(UserError, match=r"^another pair is called 'one'\. Give another name"):
            collection.put("one", picture(), picture(), ["x"], "val", "change", replaces=replaces)
    with pytest.raises(UserError, match=r"^no pair is called 'none'\. Reload"):
        collection.put("one", picture(), picture(), ["x"], "val", "change", replaces="none")
    assert collection.rows() == before


def test_an_edit_that_changes_the_id_moves_the_pair(tmp_path: Path) -> None:
    collection = collected(tmp_path)
    collection.put("first", picture(), picture(), ["x"], "train", "change", replaces="one")
    assert [row.id for row in Collection(tmp_path).rows()] == ["first", "two"]
    assert sorted(file.name for file in tmp_path.rglob("*.png")) == ["first.png"] * 2


def _collect(folder: str, name: str, count: int) -> None:
    collection = Collection(Path(folder))
    for number in range(count):
        collection.put(f"{name}{number}", picture(), picture(), ["x"], "train", "change")


def test_processes_keep_each_others_pairs(tmp_path: Path) -> None:
    """Keeps away: a server that writes its own rows over those of another one."""
    first = Collection(tmp_path)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_collect, args=(str(tmp_path), name, 8)) for name in "ab"]
    for other in others:
        other.start()
    for number in range(8):
        first.put(f"c{number}", picture(), picture(), ["x"], "train", "change")
    for other in others:
        other.join()
        assert other.exitcode == 0
    assert {row.id for row in first.rows()} == {f"{n}{i}" for n in "abc" for i in range(8)}
    assert first.get("a3") == Collection(tmp_path).get("a3")
    Collection(tmp_path).remove("a3")
    with pytest.raises(UserError, match="no pair is called 'a3'"):
        first.get("a3")
    assert len(json.loads((tmp_path / LEVIR).read_text())["images"]) == 23


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Keeps away: a lock file of filelock's own, which outlives a process that is killed."""

    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", refused)
    (tmp_path / ".lock").touch()  # copied along with the folder
    assert len(collected(tmp_path).rows()) == 2


def test_a_lock_that_is_held_or_refused_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = collected(tmp_path)
    monkeypatch.setattr(collections, "LOCK_SECONDS", 0.1)
    with (
        filelock.FileLock(tmp_path / LOCK),
        pytest.raises(UserError, match=r"another program has held \.lock for 0 s\. End it"),
    ):
        collection.remove("one")
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UserError, match=r"\.lock: Is a directory\. Check the folder"):
        collection.remove("one")
    assert len(collection.rows()) == 2


def test_pairs_are_read_while_another_program_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a page without images for as long as a second server holds the lock."""
    collection = collected(tmp_path)
    monkeypatch.setattr(collections, "LOCK_SECONDS", 20.0)
    with filelock.FileLock(tmp_path / LOCK):
        writer = threading.Thread(target=collection.remove, args=("one",))
        writer.start()
        assert len(collection.rows()) == 2
        assert writer.is_alive()
    writer.join()
    assert [row.id for row in collection.rows()] == ["two"]


def test_images_that_the_table_names_are_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a row without images, where the disk fails after the table is written."""
    collection = collected(tmp_path)
    write = collection._write

    def fail_late(rows: Sequence[Row]) -> None:
        write(rows)
        raise OSError(errno.EIO, "late")

    monkeypatch.setattr(collection, "_write", fail_late)
    with pytest.raises(UserError, match=r"^three cannot be stored"):
        collection.put("three", picture(30), picture(30), ["x"], "train", "change")
    assert len(collection.rows()) == 3
    for row in collection.rows():
        assert (tmp_path / row.before).exists()
        assert (tmp_path / row.after).exists()


ROW = {
    "id": "a", "before": "images/train/A/a.png", "after": "images/train/B/a-2.png",
    "captions": ["x"], "split": "train", "kind": "change",
}  # fmt: skip


@pytest.mark.parametrize(
    "rows",
    [
        [{**ROW, "before": "../../etc/passwd"}],
        [{**ROW, "before": "images/train/A/../../../a.png"}],
        [{**ROW, "after": "/etc/passwd"}],
        [{**ROW, "before": "images/train/B/a.png"}],
        [{**ROW, "before": "images/val/A/a.png"}],
        [{**ROW, "before": "images/train/A/b.png"}],
        [{**ROW, "before": "images/train/A/a/b.png"}],
        [{**ROW, "before": 3}],
        [{**ROW, "id": "../a"}],
        [{**ROW, "split": "trial"}],
        [{**ROW, "kind": "none"}],
        [{**ROW, "captions": "text"}],
        [{**ROW, "captions": []}],
        [{**ROW, "captions": [1]}],
        [ROW, ROW],
        [[1]],
        [3],
    ],
)
def test_a_row_that_we_did_not_write_is_refused(tmp_path: Path, rows: list[Any]) -> None:
    """Keeps away: any file of the disk that a table of a stranger makes the server send."""
    table = tmp_path / TABLE
    table.write_text(json.dumps(ROW) + "\n")
    collection = Collection(tmp_path)
    assert collection.get("a").after == ROW["after"]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for look in (lambda: Collection(tmp_path), collection.rows, lambda: collection.get("a")):
        with pytest.raises(UserError, match="not a table of cc-train serve") as error:
            look()
        assert "\n" not in str(error.value)


def test_the_longest_name_is_stored_and_read_again(tmp_path: Path) -> None:
    """Keeps away: a folder that cannot be opened again, for a name with `-2` and an ending."""
    longest = "x" * 100
    collection = Collection(tmp_path)
    collection.put(longest, picture(), picture(), ["x"], "train", "change")
    row = collection.put(
        longest, picture(30), picture(30), ["x"], "train", "change", replaces=longest
    )
    assert Path(row.before).name == f"{longest}-2.png"
    assert Collection(tmp_path).rows() == [row]
    with pytest.raises(UserError, match="is no name"):
        collection.put(f"{longest}x", picture(), picture(), ["x"], "train", "change")


def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / TABLE).mkdir()
    with pytest.raises(UserError, match=r"pairs\.jsonl: is a folder\. Give a file"):
        Collection(tmp_path)
