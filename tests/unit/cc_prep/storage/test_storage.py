"""A file appears whole or not at all, on a disk and on an object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cc_prep import storage


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path}"


def test_round_trip(folder: str) -> None:
    place = storage.join(folder, "a", "b.json")
    assert not storage.exists(place)
    storage.write_json(place, {"ü": [1, None]})
    assert storage.read_json(place) == {"ü": [1, None]}
    assert storage.list_files(storage.join(folder, "a"), ".json") == ["b.json"]
    assert storage.is_folder(storage.join(folder, "a"))
    assert storage.list_folders(folder) == ["a"]
    assert storage.list_files(folder) == storage.list_folders(storage.join(folder, "a")) == []
    assert storage.size(place) == len(storage.read_bytes(place))
    storage.remove(place)
    storage.remove(place)
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(place)
    assert storage.list_files(storage.join(folder, "nowhere")) == []
    assert storage.list_folders(storage.join(folder, "nowhere")) == []


def test_json_lines_end_at_newlines_alone(folder: str) -> None:
    """Keeps away: a line that is cut in two at a character of its caption."""
    place = storage.join(folder, "a.jsonl")
    text = "\ufeff" + '{"caption": "a\u2028b\x85c"}\r\n\n{"caption": "d"}\n'
    storage.write_bytes(place, text.encode())
    assert storage.read_json_lines(place) == [{"caption": "a\u2028b\x85c"}, {"caption": "d"}]
    storage.write_bytes(place, b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        storage.read_json_lines(place)


def fail_half_way(place: str) -> None:
    with storage.write_whole(place) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_failed_write_leaves_the_old_file(folder: str) -> None:
    """Keeps away: a truncated shard under its final name."""
    place = storage.join(folder, "shard.tar")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(place)
    assert not storage.exists(place)
    storage.write_bytes(place, b"whole")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(place)
    assert storage.read_bytes(place) == b"whole"
    assert storage.list_files(folder) == ["shard.tar"]


def test_a_killed_writers_rest_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".shard.tar.0123456789ab.tmp").write_bytes(b"half")
    (tmp_path / "mine.tmp").write_bytes(b"not ours")
    assert storage.remove_temporaries(str(tmp_path)) == 1
    assert storage.list_files(str(tmp_path)) == ["mine.tmp"]


def test_a_folder_in_the_way_lets_nothing_move(tmp_path: Path) -> None:
    """Keeps away: half an export beside the other half's error."""
    (tmp_path / "b").mkdir()

    def write() -> None:
        with storage.write_folder(tmp_path) as place:
            (place / "a.txt").write_text("a")
            (place / "b").write_text("b")

    with pytest.raises(IsADirectoryError):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_references() -> None:
    assert storage.resolve("/data", "a/b.png") == "/data/a/b.png"
    assert storage.resolve("/data", "/else/b.png") == "/else/b.png"
    assert storage.resolve("s3://bucket/x", "b.png") == "s3://bucket/x/b.png"
    assert storage.resolve("/data", "s3://bucket/b.png") == "s3://bucket/b.png"
    assert storage.join("file:///tmp/x", "y") == "/tmp/x/y"
    assert storage.join("/", "y") == "/y"


def test_free_bytes(tmp_path: Path) -> None:
    assert storage.free_bytes(str(tmp_path / "not" / "there" / "yet")) > 0
    assert storage.free_bytes("memory://x") is None


def test_a_file_that_another_process_removes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a FileNotFoundError where the file goes between the look and the removal."""
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    storage.remove(str(tmp_path / "gone"))


@pytest.mark.parametrize("remote", [True, False])
def test_many_small_files_at_once(tmp_path: Path, remote: bool) -> None:
    folder = "memory://many" if remote else str(tmp_path)
    storage.write_bytes(f"{folder}/a", b"12")
    storage.write_bytes(f"{folder}/b[1]", b"3")
    places = [f"{folder}/{name}" for name in ("b[1]", "none", "a")]
    assert storage.read_many(places) == [b"3", None, b"12"]
    assert storage.read_many(places[1:]) == [None, b"12"]
    assert storage.read_many([]) == []
    assert storage.sizes(folder) == {"a": 2, "b[1]": 1}
    assert storage.sizes(f"{folder}/none") == {}


@pytest.mark.parametrize("remote", [True, False])
def test_one_of_many_creates_a_file(tmp_path: Path, remote: bool) -> None:
    place = ("memory://create" if remote else str(tmp_path)) + "/folder/lock.json"
    assert storage.create_json(place, {"a": 1})
    assert not storage.create_json(place, {"a": 2})
    assert storage.read_json(place) == {"a": 1}
    storage.remove(place)
    assert storage.create_json(place, {"a": 3})
    storage.remove(place)
