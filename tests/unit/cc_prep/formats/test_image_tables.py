"""Images that lie in a Parquet file: rows without them, and each by its reference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import image_tables
from cc_prep.formats.tar import DamagedShard
from cc_prep.media import images
from tests.hub_tables import encoded, struct, write_parquet


def test_each_image_is_the_one_of_its_row(tmp_path: Path) -> None:
    """Keeps away: the image of a neighbour, at the end of a batch or a group, or in threads."""
    path = tmp_path / "t.parquet"
    rows = [{"a": struct(2 * i), "b": encoded(2 * i + 1), "text": f"{i}"} for i in range(200)]
    write_parquet(path, rows, row_group_size=70)
    read = image_tables.read_rows(str(path), str(path))
    assert [row["text"] for row in read] == [f"{i}" for i in range(200)]
    assert read[12]["a"] == f"{path}#row=000000012,a"
    wanted = [(row["a"], 2 * i) for i, row in enumerate(read)]
    wanted += [(row["b"], 2 * i + 1) for i, row in enumerate(read)]
    wanted = [*wanted[::-7], *wanted]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(images.read_encoded, [name for name, _ in wanted])
        assert all(data == encoded(seed) for data, (_, seed) in zip(found, wanted, strict=True))


def test_lists_of_images_and_paths_in_place_of_bytes(tmp_path: Path) -> None:
    lists = [{"images": [struct(i), struct(i + 1)]} for i in range(3)]
    write_parquet(tmp_path / "lists.parquet", lists)
    rows = image_tables.read_rows(str(tmp_path / "lists.parquet"), str(tmp_path / "lists.parquet"))
    assert images.read_encoded(rows[2]["images"][1]) == encoded(3)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"a": pa.array([{"bytes": None, "path": "x/1.png"}], kind)})
    pq.write_table(table, tmp_path / "paths.parquet")
    assert image_tables.read_rows(str(tmp_path / "paths.parquet"), "p.parquet") == [
        {"a": "x/1.png"}
    ]


def test_what_is_not_there_is_a_reject(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, [{"a": struct(0)}, {"a": None}])
    for name, reason in (
        (f"{path}#row=1,a", Reason.MISSING_IMAGE),
        (f"{path}#row=2,a", Reason.MISSING_IMAGE),
        (f"{path}#row=0,b", Reason.MISSING_IMAGE),
        (f"{path}#row=0,a[1]", Reason.MISSING_IMAGE),
        (f"{tmp_path}/no.parquet#row=0,a", Reason.MISSING_IMAGE),
        (f"{tmp_path}/bad.parquet#row=0,a", Reason.UNREADABLE_IMAGE),
    ):
        (tmp_path / "bad.parquet").write_bytes(path.read_bytes()[:-100])
        with pytest.raises(RejectedPair) as caught:
            images.read_encoded(name)
        assert caught.value.reason is reason, name
    with pytest.raises(RejectedPair) as caught:
        image_tables.read_image(f"{path}#row=0,a", 10)
    assert caught.value.reason is Reason.IMAGE_TOO_LARGE


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    """Keeps away: the images of yesterday under the captions of today."""
    path = tmp_path / "t.parquet"
    for seed in (1, 2):
        write_parquet(path, [{"a": struct(seed)} for _ in range(seed)])
        assert images.read_encoded(f"{path}#row=0,a") == encoded(seed)


def test_damage_ends_no_process_and_no_job(tmp_path: Path) -> None:
    """Keeps away: an exception of pyarrow's for a bit that flipped, in a footer or a page."""
    write_parquet(tmp_path / "t.parquet", [{"a": struct(i), "t": "x"} for i in range(4)])
    data = (tmp_path / "t.parquet").read_bytes()
    refused = 0
    for at in range(4, len(data), 97):
        path = tmp_path / f"{at}.parquet"
        path.write_bytes(data[:at] + bytes([data[at] ^ 36]) + data[at + 1 :])
        try:
            for row in image_tables.read_rows(str(path), str(path)):
                if isinstance(row.get("a"), str):
                    images.read_encoded(row["a"])
        except (DamagedShard, RejectedPair):
            refused += 1
        path.unlink()
    assert refused > 0


def test_images_after_a_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: all further images of a table that are rejected, since one was not read."""
    path = tmp_path / "t.parquet"
    write_parquet(path, [{"a": struct(seed)} for seed in range(3)])
    assert images.read_encoded(f"{path}#row=0,a") == encoded(0)
    opened = image_tables._opened(str(path))
    opened._held.clear()
    [reader] = opened._readers.values()
    reader.next = 0

    def fails() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reader, "read", fails)
    with pytest.raises(OSError, match="Input/output"):
        opened.image(1, "a")
    assert opened.image(1, "a") == encoded(1)
