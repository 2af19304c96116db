"""Entries of training shards: what they say, what is refused, and when a shard is whole."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import tar, training_shards
from cc_prep.records import Facts
from cc_train.data import sequence_index, shard_index
from cc_train.data.shard_index import Entry
from tests.unit.cc_prep.formats.test_training_shards import PAIR, sample

BLOCK = tarfile.BLOCKSIZE


def write(folder: Path, count: int = 3, **more: object) -> Path:
    """A shard of samples that are alike but for their keys; `more` goes into their JSON."""
    folder.mkdir(exist_ok=True)
    path = folder / "train-000000.tar"
    with training_shards.write_shard(str(path)) as (writer, written):
        for number in range(count):
            members = sample()
            meta = {**json.loads(members["json"]), "image_id": f"{number}.png", **more}
            members["json"] = json.dumps(meta).encode()
            writer.add(f"d-train-{number}-change", members)
    training_shards.write_index(str(folder), {"train-000000": written.index})
    return path


def test_index_and_tar_give_the_same_entries(tmp_path: Path) -> None:
    path = write(tmp_path)
    indexed = shard_index.read([str(path)])
    (tmp_path / training_shards.INDEX).unlink()
    scanned = shard_index.read([str(path)])
    assert [replace(entry, crc32c=None) for entry in indexed] == scanned
    assert None not in [entry.crc32c for entry in indexed]
    assert all(a.offset + a.bytes == b.offset for a, b in itertools.pairwise(indexed))
    assert [entry.image_id for entry in indexed] == ["0.png", "1.png", "2.png"]
    assert indexed[0].captions == PAIR.captions
    assert indexed[0].tokenizer_sha256 == "cd" * 32
    for entry in indexed:
        stored = entry.read()
        assert stored.key == entry.key
        assert entry.meta().items() <= {**stored.meta, "key": entry.key}.items()


def test_metas_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: two requests a sample, which took hours on an object store."""
    entries = shard_index.read([str(write(tmp_path))])
    for name in ("read_range", "open_read", "read_bytes"):
        monkeypatch.setattr(storage, name, lambda *_: pytest.fail("read"))
    metas = shard_index.metas(entries)
    assert [meta["key"] for meta in metas] == [f"d-train-{i}-change" for i in range(3)]
    assert all(meta["captions"] == list(PAIR.captions) for meta in metas)
    assert all(meta["change_type"] == "move" for meta in metas)


def test_shards_without_facts_are_refused(tmp_path: Path) -> None:
    """Keeps away: a training with `facts` that learned captions alone, and said so nowhere."""
    bare = shard_index.read([str(write(tmp_path / "a", facts=None))])
    with pytest.raises(UserError, match=r"none of these data sets says .* or add --set facts=null"):
        shard_index.require_facts(bare)
    rendered = write(tmp_path / "b", dataset="rendered", facts={"type": "none"})
    shard_index.require_facts([*bare, *shard_index.read([str(rendered)])])


def test_reversed_captions_are_read_of_the_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a start that reads all features, and every sample of what was not rendered."""
    bare = shard_index.read([str(write(tmp_path / "a", 5, facts=None))])
    facts = Facts("none", reversed_captions=("it is gone", "it left")).to_json()
    path = write(tmp_path / "b", 3, dataset="rendered", facts=facts)
    rendered = shard_index.read([str(path)])
    with path.open("r+b") as file:  # the second is no sample any more
        file.seek(rendered[1].offset + 512)
        file.write(b"x")
    read = []
    read_range = storage.read_range

    def counted_range(path: str, offset: int, size: int) -> bytes:
        read.append((path, offset, size))
        return read_range(path, offset, size)

    monkeypatch.setattr(storage, "open_read", lambda path: pytest.fail("reads ahead in a store"))
    monkeypatch.setattr(storage, "read_range", counted_range)
    gone = [replace(rendered[0], shard=str(tmp_path / "gone.tar"))]
    for most, times in ((2000, 1), (2 * BLOCK, 2)):
        monkeypatch.setattr(shard_index, "JSON_READ", most)
        captions = shard_index.reversed_captions([*bare, *rendered, *gone])
        assert captions == ["it is gone", "it left"] * 2
        whole = [one for one in (bare[0], *rendered) for _ in range(times)]
        shards = sorted(entry.shard for entry in [*whole, gone[0]])
        assert sorted(path for path, _, _ in read) == shards
        assert sum(size for _, _, size in read) <= 2000 * 5
        read.clear()


def test_a_long_json_is_read_in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: facts of many objects that are damage, as they are longer than one request."""
    entries = shard_index.read([str(write(tmp_path))])
    whole = [shard_index._json_of(entry) for entry in entries]
    monkeypatch.setattr(shard_index, "JSON_READ", BLOCK + 88)
    assert [shard_index._json_of(entry) for entry in entries] == whole
    assert [one["image_id"] for one in whole] == ["0.png", "1.png", "2.png"]


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """Keeps away: a captioner that reads tokens of another codebook, and says so nowhere."""
    mine = shard_index.read([str(write(tmp_path / "a"))])
    shard_index.require_tokenizer(mine, "cd" * 32, "t")
    others = write(tmp_path / "b", tokenizer="theirs", tokenizer_sha256="ef" * 32)
    with pytest.raises(UserError) as caught:
        shard_index.require_tokenizer([*mine, *shard_index.read([str(others)])], "cd" * 32, "t")
    message = str(caught.value)
    assert "theirs (SHA-256 efefefefefef…)" in message
    assert "t (SHA-256 cdcdcdcdcdcd…)" in message
    assert str(others) in message
    assert "the same tokenize.weights and tokenize.config" in message
    for sha256 in (None, "ef" * 32):
        with pytest.raises(UserError, match="holds tokens of t "):
            shard_index.require_tokenizer(mine, sha256, "t")
    unsaid = shard_index.read([str(write(tmp_path / "c", tokenizer_sha256=None))])
    with pytest.raises(UserError, match=r"holds tokens of t \(no digest\)"):
        shard_index.require_tokenizer(unsaid, None, "t")


@pytest.mark.parametrize(
    "meta", [{"captions": "one"}, {"tokenizer": 7}, {"frames": -1}, {"height": 2**31}]
)
def test_json_of_other_types(tmp_path: Path, meta: dict[str, object]) -> None:
    path = tmp_path / "train-000000.tar"
    with tar.write_shard(str(path)) as (writer, _):
        members = sample()
        record = {**json.loads(members["json"]), **meta}
        writer.add("k", {**members, "json": json.dumps(record).encode()})
    with pytest.raises(UserError, match=r"train-000000\.tar.*in its \.json is"):
        shard_index.read([str(path)])


def test_an_older_index(tmp_path: Path) -> None:
    """Keeps away: a table without captions taken for samples that have none."""
    path = write(tmp_path)
    rows = [{"key": "a", "shard": "train-000000", "offset": 0, "bytes": 9, "crc32c": 0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / training_shards.INDEX)
    with pytest.raises(UserError, match=r"index\.parquet"):
        shard_index.read([str(path)])
    empty = pa.Table.from_pylist([{"key": "a"}], training_shards.INDEX_SCHEMA)
    pq.write_table(empty, tmp_path / training_shards.INDEX)
    with pytest.raises(UserError, match="empty rows"):
        shard_index.read([str(path)])


@pytest.mark.parametrize("content", [b"[1]", b"{", b"", b"[" * 10**5, b'"text"'])
def test_a_json_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    with tar.write_shard(str(tmp_path / "a.tar")) as (writer, _):
        writer.add("k-0", {"json": content, "f00.jpg": b"x" * 700})
    with pytest.raises(UserError, match=r"a\.tar"):
        shard_index.read([str(tmp_path / "a.tar")])


def test_declared_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a header of a stranger that makes the index ask for gigabytes."""
    with tar.write_shard(str(tmp_path / "a.tar")) as (writer, _):
        writer.add("k-0", {"json": b'{"a": 1}'})
    monkeypatch.setattr(tar, "MAX_JSON_BYTES", 8)
    assert len(shard_index.read([str(tmp_path / "a.tar")])) == 1
    monkeypatch.setattr(tar, "MAX_JSON_BYTES", 7)
    with pytest.raises(UserError, match="declares 8 bytes"):
        shard_index.read([str(tmp_path / "a.tar")])


@pytest.mark.parametrize("missing", [1, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("index", [True, False])
def test_a_shard_without_its_whole_end(tmp_path: Path, missing: int, index: bool) -> None:
    """Keeps away: a copy that stopped in a shard's last bytes and is taken for whole."""
    path = tmp_path / "train-000000.tar"
    with training_shards.write_shard(str(path)) as (writer, written):
        writer.add("k-0", {"json": b"{}", "f00.jpg": b"x" * 700})
    if index:
        training_shards.write_index(str(tmp_path), {"train-000000": written.index})
    end = BLOCK * (2 + 1 + 2 + 2)
    path.write_bytes(path.read_bytes()[:end])
    assert len(shard_index.read([str(path)])) == 1
    path.write_bytes(path.read_bytes()[: end - missing])
    with pytest.raises(UserError, match="is cut short"):
        shard_index.read([str(path)])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.f00.jpg", "a.json"], "comes before its .json"),
        (["a.json", "b.json", "a.f00.jpg"], "the key occurs twice"),
        (["a.json", "a.json"], "the key occurs twice"),
    ],
)
def test_what_breaks_the_convention(tmp_path: Path, names: list[str], message: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as opened:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 2
            opened.addfile(info, io.BytesIO(b"{}"))
    with pytest.raises(UserError, match=message):
        shard_index.read([str(tmp_path / "a.tar")])


@pytest.mark.parametrize(
    ("header", "message"),
    [(b"K-1.json", "the header of a member is damaged"), (bytes(BLOCK), "goes on behind its end")],
)
@pytest.mark.parametrize("read", [shard_index.read, sequence_index.read_index])
def test_a_scan_does_not_end_at_a_damaged_header(
    tmp_path: Path, header: bytes, message: str, read: Callable[[list[str]], object]
) -> None:
    """Keeps away: a shard whose samples behind a flipped bit, or a hole, are not there."""
    path = tmp_path / "a.tar"
    with tar.write_shard(str(path)) as (writer, written):
        for number in range(3):
            writer.add(f"k-{number}", {"json": b"{}", "f00.jpg": b"x" * 700})
    data = bytearray(path.read_bytes())
    hole = written.spans["k-1"][0]
    data[hole : hole + len(header)] = header
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.tar: {message}"):
        read([str(path)])


def test_facts_of_two_data_sets_of_one_name(tmp_path: Path) -> None:
    """Keeps away: the facts of rendered pairs that photographs of the same name take with them."""
    none = {"type": "none", "before": None, "after": None}
    photographs = shard_index.read([str(write(tmp_path / "a", dataset="pairs", facts=None))])
    rendered = shard_index.read([str(write(tmp_path / "b", dataset="pairs", facts=none))])
    assert shard_index.facts([*photographs, *rendered]) == [None] * 3 + [none] * 3
    shard_index.require_facts([*photographs, *rendered])


@pytest.mark.parametrize(("key", "scene"), [("set-7-change", "set-7"), ("alone", "alone")])
def test_a_scene_is_the_key_without_the_kind(key: str, scene: str) -> None:
    assert Entry(key, "a.tar", 0, 0).scene == scene


def test_facts_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: every sample of a large data set read, though none of it was rendered."""
    none = {"type": "none", "before": None, "after": None}
    rendered = shard_index.read([str(write(tmp_path / "a", facts=none))])
    assert shard_index.facts(rendered) == [none] * 3
    path = write(tmp_path / "b", dataset="photographs", facts=None)
    others = shard_index.read([str(path)])
    reads = []
    read_at = training_shards.read_at
    monkeypatch.setattr(
        training_shards, "read_at", lambda *args: reads.append(args) or read_at(*args)
    )
    assert shard_index.facts([*others, *rendered]) == [None] * 3 + [none] * 3
    assert len(reads) == 4
    monkeypatch.undo()
    path.unlink()
    with pytest.raises(UserError, match=r"train-000000\.tar"):
        shard_index.facts(others)
