"""A file appears whole or not at all, on a disk and on an object store."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
from pathlib import Path

import pytest

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.storage import files


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path}"


def test_round_trip(folder: str) -> None:
    path = storage.join(folder, "a", "b.json")
    assert not storage.exists(path)
    storage.write_json(path, {"ü": [1, None]})
    assert storage.read_json(path) == {"ü": [1, None]}
    assert storage.list_files(storage.join(folder, "a"), ".json") == ["b.json"]
    assert storage.is_folder(storage.join(folder, "a"))
    assert storage.list_folders(folder) == ["a"]
    assert storage.list_files(folder) == storage.list_folders(storage.join(folder, "a")) == []
    assert storage.size(path) == len(storage.read_bytes(path))
    storage.remove(path)
    storage.remove(path)
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(path)
    assert storage.list_files(storage.join(folder, "nowhere")) == []
    assert storage.list_folders(storage.join(folder, "nowhere")) == []


def test_json_lines_end_at_newlines_alone(folder: str) -> None:
    """Keeps away: a line that is cut in two at a character of its caption."""
    path = storage.join(folder, "a.jsonl")
    text = "\ufeff" + '{"caption": "a\u2028b\x85c"}\r\n\n{"caption": "d"}\n'
    storage.write_bytes(path, text.encode())
    assert storage.read_json_lines(path) == [{"caption": "a\u2028b\x85c"}, {"caption": "d"}]
    storage.write_bytes(path, b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        storage.read_json_lines(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{", "Expecting .* at column 2"), ('{"a": 1, "a": 2}', "the key 'a' occurs twice")],
)
def test_the_line_that_is_no_json_is_named(folder: str, line: str, reason: str) -> None:
    """Keeps away: `line 1` of a reader that is given one line at a time."""
    path = storage.join(folder, "a.jsonl")
    storage.write_bytes(path, f"{{}}\n\n{line}\n".encode())
    with pytest.raises(ValueError, match=f"^line 3: {reason}"):
        storage.read_json_lines(path)


def fail_half_way(path: str) -> None:
    with storage.write_whole(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_a_failed_write_leaves_the_old_file(folder: str) -> None:
    """Keeps away: a truncated shard under its final name."""
    path = storage.join(folder, "shard.tar")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(path)
    assert not storage.exists(path)
    storage.write_bytes(path, b"whole")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(path)
    assert storage.read_bytes(path) == b"whole"
    assert storage.list_files(folder) == ["shard.tar"]


def test_a_killed_writers_rest_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".shard.tar.0123456789ab.tmp").write_bytes(b"half")
    (tmp_path / ".0123456789ab.tmp").mkdir()
    (tmp_path / ".0123456789ab.tmp/features.npy").write_bytes(b"half of an export")
    (tmp_path / "mine.tmp").write_bytes(b"not ours")
    (tmp_path / ".cache.tmp").mkdir()
    assert storage.remove_temporaries(str(tmp_path), storage.A_DAY) == 0
    assert storage.remove_temporaries(str(tmp_path)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache.tmp", "mine.tmp"]


def test_a_folder_in_the_way_lets_nothing_move(tmp_path: Path) -> None:
    """Keeps away: half an export beside the other half's error."""
    (tmp_path / "b").mkdir()

    def write() -> None:
        with storage.write_folder(tmp_path) as path:
            (path / "a.txt").write_text("a")
            (path / "b").write_text("b")

    with pytest.raises(IsADirectoryError):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_temporary_that_goes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "No such file" at the end of a job whose last worker has just ended."""
    other = tmp_path / ".b.tar.0123456789ab.tmp"
    other.write_bytes(b"half")
    monkeypatch.setattr(files, "list_files", lambda folder: [".a.tar.0123456789ab.tmp", other.name])
    assert storage.remove_temporaries(str(tmp_path)) == 1
    assert not other.exists()


def test_a_folder_is_written_to_a_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: gigabytes in a new folder `s3:` of the current one, and "in s3://bucket/x"."""
    monkeypatch.chdir(tmp_path)

    def write(folder: str) -> None:
        with storage.write_folder(folder) as path:
            (path / "a.txt").write_text("a")

    with pytest.raises(UserError, match=r"^s3://bucket/x: this output is written to a disk\. Give"):
        write("s3://bucket/x")
    assert not list(tmp_path.iterdir())
    write(f"file://{tmp_path}/x")
    assert (tmp_path / "x/a.txt").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_killed_writer_to_a_store_leaves_no_file_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a full /tmp after some workers were killed, each with a shard under way."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with storage.write_whole("memory://killed/shard.tar") as file:
        file.write(b"whole")
        file.flush()
        assert not list(tmp_path.iterdir())
    assert storage.read_bytes("memory://killed/shard.tar") == b"whole"
    storage.remove("memory://killed/shard.tar")


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
    paths = [f"{folder}/{name}" for name in ("b[1]", "none", "a")]
    assert storage.read_many(paths) == [b"3", None, b"12"]
    assert storage.read_many(paths[1:]) == [None, b"12"]
    assert storage.read_many([]) == []
    assert storage.sizes(folder) == {"a": 2, "b[1]": 1}
    assert storage.sizes(f"{folder}/none") == {}


def test_a_file_that_cannot_be_created_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: an empty lock after a full disk, which nobody can take again."""
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            storage.create_json("lock.json", {"a": 1})
        assert os.listdir() == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert storage.create_json("lock.json", {"a": 1})
    assert not storage.create_json("lock.json", {"a": 2})
    assert storage.read_json("lock.json") == {"a": 1}


@pytest.mark.parametrize("remote", [True, False])
def test_one_of_many_creates_a_file(tmp_path: Path, remote: bool) -> None:
    path = ("memory://create" if remote else str(tmp_path)) + "/folder/lock.json"
    assert storage.create_json(path, {"a": 1})
    assert not storage.create_json(path, {"a": 2})
    assert storage.read_json(path) == {"a": 1}
    storage.remove(path)
    assert storage.create_json(path, {"a": 3})
    storage.remove(path)


def test_a_named_link_stays_a_link(tmp_path: Path) -> None:
    """Keeps away: results behind a link that silently stay old; links of a copy by `cp -rs` that
    lead writes into the folder that was copied.
    """
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk/scores.json", tmp_path / "scores.json"
    link.symlink_to(target)
    for text in (b"first", b"second"):  # the first time the link names nothing yet
        storage.write_bytes(storage.named(str(link)), text)
        assert link.is_symlink()
        assert target.read_bytes() == text
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["scores.json"]
    storage.write_bytes(str(link), b"of a job")
    assert not link.is_symlink()
    assert target.read_bytes() == b"second"
    assert storage.named("memory://a/b") == "memory://a/b"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    """Keeps away: /dev/stdout replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    texts: list[bytes] = []
    reader = threading.Thread(target=lambda: texts.append(pipe.read_bytes()))
    reader.start()
    storage.write_bytes(str(pipe), b"all of it")
    reader.join(10)
    assert texts == [b"all of it"]
    assert pipe.is_fifo()
