"""Parquet tables: rows of the schema that was asked for, or damage with pyarrow's own words."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep.formats import tables
from cc_prep.formats.tar import DamagedShard

SCHEMA = pa.schema([("key", pa.string()), ("count", pa.int64())])


def table(**columns: list[object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_rows_are_of_the_schema_or_of_any() -> None:
    """Keeps away: a schema that is not looked at, and one that is asked for where none is."""
    data = table(key=["a"], count=[3])
    assert tables.read_rows(data, SCHEMA, "x") == [{"key": "a", "count": 3}]
    other = table(name=["a"])
    assert tables.read_rows(other, None, "x") == [{"name": "a"}]
    with pytest.raises(DamagedShard, match=r"^x: "):
        tables.read_rows(other, SCHEMA, "x")
    assert tables.read_rows(table(key=["a"], count=["7"]), SCHEMA, "x") == [
        {"key": "a", "count": 7}
    ]


def test_many_equal_rows_are_refused_before_they_are_read() -> None:
    """Keeps away: a stranger's table of some kilobytes that takes 8 GB of memory."""
    rows = tables.MAX_TABLE_BYTES // (tables.ROW_BYTES + tables.VALUE_BYTES) + 1
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": pa.nulls(rows, pa.int8())}), buffer)
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(DamagedShard, match=r"^x: its [\d,]{10} rows of .* more than 4 GiB"):
        tables.read_rows(buffer.getvalue(), None, "x")


def test_long_equal_texts_are_refused_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a text that is stored once and takes its length in each of its rows."""
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 10_000_000)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"t": ["x" * 100_000] * 200}), buffer, compression="zstd")
    assert len(buffer.getvalue()) < 10_000
    with pytest.raises(DamagedShard, match="x: its 200 rows of 200 values would take"):
        tables.read_rows(buffer.getvalue(), None, "x")
    few = io.BytesIO()
    pq.write_table(pa.table({"t": ["x" * 100_000] * 50}), few, compression="zstd")
    assert len(tables.read_rows(few.getvalue(), None, "x")) == 50
    assert len(tables.read_rows(table(t=["x" * 6_000_000]), None, "x")) == 1
    with pytest.raises(DamagedShard, match="x: its 1 rows of 1 values would take"):
        tables.read_rows(table(t=["x" * 11_000_000]), None, "x")
    assert tables.read_rows(table(t=pa.array([], pa.string())), None, "x") == []


def test_a_dictionary_counts_as_often_as_it_stands_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: 47 kB of a category column that become gigabytes of Python's texts."""
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 10_000_000)
    texts = pa.array(["x" * 100_000, "y"])
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), texts)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"t": long}), buffer)
    with pytest.raises(DamagedShard, match="x: its 200 rows of 200 values would take"):
        tables.read_rows(buffer.getvalue(), None, "x")
    short = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int32()), texts)
    few = io.BytesIO()
    pq.write_table(pa.table({"t": short}), few)
    assert tables.read_rows(few.getvalue(), None, "x") == [{"t": "y"}] * 2
    nested = io.BytesIO()
    offsets = pa.array([0, 1, 2], pa.int32())
    pq.write_table(pa.table({"t": pa.ListArray.from_arrays(offsets, short)}), nested)
    with pytest.raises(DamagedShard, match="x: the column t has a dictionary within it"):
        tables.read_rows(nested.getvalue(), None, "x")


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(DamagedShard, match=r"^x: lacks the column count$"):
        tables.read_rows(table(key=["a"]), SCHEMA, "x")


def test_damage_is_told_in_pyarrows_words() -> None:
    """Keeps away: `x: ArrowInvalid`, which tells nobody what to look for."""
    with pytest.raises(DamagedShard, match=r"^x: .*Parquet.*") as caught:
        tables.read_rows(b"no such table", SCHEMA, "x")
    assert "\n" not in str(caught.value)


def test_an_error_without_words_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an empty message."""

    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(DamagedShard, match=r"^x: MemoryError$"):
        tables.read_rows(b"", SCHEMA, "x")
