"""Parquet tables of a known schema, read from the bytes of a file that may be damaged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cc_prep.formats.tar import DamagedShard


def rows(data: bytes, schema: pa.Schema, place: str) -> list[dict[str, Any]]:
    """The rows of a table. Raises DamagedShard, which names `place`, for what is no such table."""
    # Not read_table: its prefetching threads can outlive the interpreter and abort the process.
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
        found: list[dict[str, Any]] = table.cast(schema).to_pylist()
    except Exception as error:  # damage makes pyarrow raise nearly any type of its own and others
        said = str(error).partition("\n")[0] or type(error).__name__
        raise DamagedShard(f"{place}: {said}") from None
    return found
