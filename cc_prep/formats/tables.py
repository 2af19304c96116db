"""Parquet tables, read from the bytes of a file that may be damaged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cc_prep.formats.tar import DamagedShard


def rows(data: bytes, schema: pa.Schema | None, place: str) -> list[dict[str, Any]]:
    """The rows of a table, of any schema if None is given.

    Raises DamagedShard, which names `place`, for what is no such table.
    """
    # No threads of pyarrow's: one that lets go of Python's bytes while the interpreter ends aborts
    # the process (seen once in 200 reads). So neither read_table, which prefetches.
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table = table if schema is None else table.cast(schema)
        listed: list[dict[str, Any]] = table.to_pylist()
    except Exception as error:  # damage makes pyarrow raise nearly any type of its own and others
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DamagedShard(f"{place}: {reason}") from None
    return listed
