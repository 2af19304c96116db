"""Parquet tables: rows of the schema that was asked for, or damage with pyarrow's own words."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cc_prep.formats import base
from cc_prep.formats.tar import DamagedShard

SCHEMA = pa.schema([("key", pa.string()), ("count", pa.int64())])


def table(**columns: list[object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_rows_are_of_the_schema_or_of_any() -> None:
    """Keeps away: a schema that is not looked at, and one that is asked for where none is."""
    data = table(key=["a"], count=[3])
    assert base.read_rows(data, SCHEMA, "x") == [{"key": "a", "count": 3}]
    other = table(name=["a"])
    assert base.read_rows(other, None, "x") == [{"name": "a"}]
    with pytest.raises(DamagedShard, match=r"^x: "):
        base.read_rows(other, SCHEMA, "x")
    assert base.read_rows(table(key=["a"], count=["7"]), SCHEMA, "x") == [{"key": "a", "count": 7}]


def test_damage_is_told_in_pyarrows_words() -> None:
    """Keeps away: `x: ArrowInvalid`, which tells nobody what to look for."""
    with pytest.raises(DamagedShard, match=r"^x: .*Parquet.*") as caught:
        base.read_rows(b"no such table", SCHEMA, "x")
    assert "\n" not in str(caught.value)


def test_an_error_without_words_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an empty message."""

    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(DamagedShard, match=r"^x: MemoryError$"):
        base.read_rows(b"", SCHEMA, "x")
