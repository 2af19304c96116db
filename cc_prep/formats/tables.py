"""Shards that are Parquet tables, and the rows of any such table."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cc_prep import storage
from cc_prep.errors import first_line
from cc_prep.formats import parquet_footer
from cc_prep.formats.parquet_footer import Chunk
from cc_prep.formats.tar import DamagedShard, Written

# Of memory, for the rows of a table as Python's objects: an index of a million samples takes half.
MAX_TABLE_BYTES = 4 << 30
ROW_BYTES, VALUE_BYTES = 200, 64  # of a dict, and of a value in it besides its text
GROUP_ROWS = 1 << 14  # of a group of rows as we write it: small ones are read in large parts


def read_rows(data: bytes, schema: pa.Schema | None, path: str) -> list[dict[str, Any]]:
    """The rows of a Parquet table, of any schema if None is given.

    Raises DamagedShard, which names `path`, for what is no such table, and for one whose rows
    would take more than MAX_TABLE_BYTES of memory.
    """
    try:
        table = bounded(pq.ParquetFile(pa.BufferReader(data)), parquet_footer.groups(data))
        if schema is not None:
            missing = [name for name in schema.names if name not in table.column_names]
            if missing:
                raise ValueError(f"lacks the column {missing[0]}")
            table = table.cast(schema)
        table_rows: list[dict[str, Any]] = table.to_pylist()
    except Exception as error:  # damage makes pyarrow raise nearly any type of its own and others
        raise DamagedShard(f"{path}: {first_line(error)}") from None
    return table_rows


def bounded(
    file: pq.ParquetFile, groups: Sequence[Sequence[Chunk]], columns: Collection[str] | None = None
) -> pa.Table:
    """The table of a file, read in parts.

    A few kilobytes may stand for millions of equal rows. The metadata tell how many there are, but
    not how long their texts are, since a text of a dictionary is stored once.

    No threads of pyarrow's: one that lets go of Python's bytes while the interpreter ends aborts
    the process (seen once in 200 reads). So neither read_table, which prefetches.

    Args:
        groups: What the footer says of the columns.
        columns: The paths of those that are read; None for all.

    Raises:
        ValueError: For one that is too large.
    """
    listed = None if columns is None else [*columns]
    taken = [
        [chunk for chunk in group if columns is None or chunk.path in columns] for group in groups
    ]
    count, values = file.metadata.num_rows, sum(one.values for group in taken for one in group)
    left = MAX_TABLE_BYTES - count * ROW_BYTES - values * VALUE_BYTES
    parts: list[pa.RecordBatch] = []
    for number, group in enumerate(taken):
        # A text is at most as long as all that its group stores: so many rows fit surely.
        size = file.metadata.row_group(number).total_byte_size
        size = min(size, sum(one.bytes for one in group)) if columns is not None else size
        rows = min(GROUP_ROWS, left // max(1, size))
        if rows > 0:
            for batch in file.iter_batches(rows, [number], listed, use_threads=False):
                part = _decoded(batch)
                left -= part.nbytes
                if left <= 0:
                    break
                parts.append(part)
        if rows <= 0 or left <= 0:
            raise ValueError(
                f"its {count:,} rows of {values:,} values would take more than "
                f"{MAX_TABLE_BYTES >> 30} GiB of memory"
            )
    return pa.Table.from_batches(parts) if parts else file.schema_arrow.empty_table()


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with each text as often as it stands in rows, as Python's objects have it.

    A dictionary has it once, whose bytes say nothing of the memory that its rows will take. Raises
    ValueError for one within a list or an object.
    """
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if not pa.types.is_dictionary(kind) and "dictionary<" in str(kind):
            raise ValueError(f"the column {name} has a dictionary within it")
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def write_rows(path: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """Writes a Parquet table, and returns its bytes; the same rows give the same bytes."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer, row_group_size=GROUP_ROWS)
    data = buffer.getvalue()
    storage.write_bytes(path, data)
    return data


class TableWriter:
    """Collects rows; made by `write_table`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._keys: set[str] = set()

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Adds a row; a key may occur only once."""
        assert key not in self._keys, f"{key} twice"
        self._keys.add(key)
        self.rows.append({"key": key, **row})


@contextmanager
def write_table(path: str, schema: pa.Schema) -> Iterator[tuple[TableWriter, Written]]:
    """A shard that is a table; it appears under its name only when complete."""
    writer, written = TableWriter(), Written()
    yield writer, written
    data = write_rows(path, writer.rows, schema)
    written.samples, written.bytes = len(writer.rows), len(data)
    written.sha256 = hashlib.sha256(data).hexdigest()


def read_table(path: str, schema: pa.Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, row) of a shard that is a table, in order.

    Raises FileNotFoundError, and DamagedShard for what is no such table.
    """
    for row in read_rows(storage.read_bytes(path), schema, path):
        yield row.pop("key"), row
