"""Parquet tables with images in them, as `datasets` of Hugging Face writes them.

    image_before    struct<bytes, path>, or the encoded file as it is
    images          list<struct<bytes, path>>
    caption         whatever else a row has

A reference names one of them: `train-00000-of-00002.parquet#row=000000012,image_before`, where rows
count from 0 in their file, and `…,images[1]` is the second one of a list. Rows are read without the
bytes of their images, and images a few at a time, so that a table may be larger than memory.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cc_prep import storage
from cc_prep.errors import FileRefused, JobFailed, Reason, RejectedPair, UserError, first_line
from cc_prep.formats import parquet_footer, tables
from cc_prep.formats.parquet_footer import Chunk
from cc_prep.formats.tar import DamagedShard

ROW = "#row="  # between a table and the number of a row
REFERENCE = re.compile(r"(.+\.parquet)#row=([0-9]{1,12}),(.+)", re.DOTALL)
ELEMENT = re.compile(r"(.+)\[([0-9]{1,6})\]", re.DOTALL)
BYTES = "bytes"  # of the struct of an image
BATCH_BYTES, BATCH_ROWS = 32 << 20, 64  # that are read at once, one image at least
HELD_BYTES = 64 << 20  # of what was read last: threads ask for neighbouring rows
MAX_IMAGES = 1 << 24  # of a column in a group; a few bytes may stand for as many nulls as they like
NO_TABLE = "Fetch it again; it is no whole Parquet file"
NOT_ITS_FAULT = (UserError, JobFailed, MemoryError)  # of a name, a store or this machine


def reference(file: str, row: int, column: str) -> str:
    """The name of the image in a row and column of a table."""
    return f"{file}{ROW}{row:09d},{column}"


def read_rows(path: str, file: str) -> list[dict[str, Any]]:
    """The rows of a table, with a reference in place of each image.

    Where no image of a column has its bytes, its paths are the values.

    Args:
        file: What references call the table.

    Raises:
        DamagedShard: For what is no such table, and for rows that would take too much memory.
    """
    table = _opened(path)
    embedded = {
        name: leaf for name, leaf in table.images.items() if not table.is_without_values(leaf)
    }
    nested = {name for name in embedded if _is_list(table.schema.field(name).type)}
    try:
        with table.lock:
            read = tables.bounded(table.file, table.groups, table.texts)
        rows: list[dict[str, Any]] = (
            read.to_pylist() if read.num_columns else [{} for _ in range(table.starts[-1])]
        )
    except NOT_ITS_FAULT:
        raise
    except Exception as error:  # damage makes pyarrow raise nearly any type of its own and others
        raise DamagedShard(f"{path}: {first_line(error)}") from None
    for number, row in enumerate(rows):
        for name in table.images:
            value = row.get(name)
            if name in nested:
                count = len(value) if isinstance(value, list) else 0
                row[name] = [reference(file, number, f"{name}[{i}]") for i in range(count)]
            elif name in embedded:
                row[name] = reference(file, number, name)
            elif isinstance(value, list):
                row[name] = [_path(one) for one in value]
            else:
                row[name] = _path(value)
    return rows


def read_image(name: str, max_bytes: int) -> bytes:
    """The encoded image that a reference names.

    Raises:
        RejectedPair: Where there is none, or more bytes.
    """
    match = REFERENCE.fullmatch(name)
    assert match is not None
    path, row, column = match[1], int(match[2]), match[3]
    try:
        data = _opened(path).image(row, column)
    except FileNotFoundError:
        raise RejectedPair(Reason.MISSING_IMAGE, name) from None
    except FileRefused as error:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, error.what) from None
    except DamagedShard as error:
        raise RejectedPair(Reason.UNREADABLE_IMAGE, str(error), NO_TABLE) from None
    if data is None:
        detail = f"{name}: the table has no image there"
        raise RejectedPair(Reason.MISSING_IMAGE, detail)
    if len(data) > max_bytes:
        raise RejectedPair(Reason.IMAGE_TOO_LARGE, f"{name}: has more than {max_bytes:,} bytes")
    return data


def _path(value: Any) -> Any:
    return value.get("path") if isinstance(value, dict) else value


class _Table:
    """An open file, with what was read of its images last.

    Attributes:
        images: Of each column of images, the path of its bytes in the file.
        texts: Paths of all that is no image.
        starts: The number of the first row of each group, and of all rows.

    Raises:
        DamagedShard: For what is no Parquet file.
    """

    def __init__(self, path: str) -> None:
        self.path, self.lock = path, threading.Lock()
        stream = storage.open_read(path)
        try:
            self.groups = parquet_footer.groups(parquet_footer.of_file(stream))
            self.file = pq.ParquetFile(stream, pre_buffer=False)
            self.schema = self.file.schema_arrow
            counts = [
                self.file.metadata.row_group(i).num_rows
                for i in range(self.file.metadata.num_row_groups)
            ]
        except NOT_ITS_FAULT:
            raise
        except Exception as error:
            raise DamagedShard(f"{path}: {first_line(error)}") from None
        self.starts = [0, *accumulate(counts)]
        leaves = [chunk.path for chunk in self.groups[0]] if self.groups else []
        self.images = {
            field.name: leaf
            for field in self.schema
            if (leaf := _leaf_of_bytes(field, leaves)) is not None
        }
        self.texts = {leaf for leaf in leaves if leaf not in self.images.values()}
        self._readers: dict[str, _Reader] = {}
        self._held: OrderedDict[tuple[str, int], pa.Array] = OrderedDict()

    def is_without_values(self, leaf: str) -> bool:
        """Whether the file says that nothing is there."""
        chunks = [chunk for group in self.groups for chunk in group if chunk.path == leaf]
        return all(chunk.nulls == chunk.values for chunk in chunks)

    def image(self, row: int, column: str) -> bytes | None:
        """The bytes of an image; None where there is none. Raises DamagedShard."""
        name, place = column, None
        if column not in self.images and (element := ELEMENT.fullmatch(column)) is not None:
            name, place = element[1], int(element[2])
        leaf = self.images.get(name)
        if leaf is None or not 0 <= row < self.starts[-1]:
            return None
        try:
            with self.lock:
                value = self._value(row, leaf)
        except NOT_ITS_FAULT:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's
            raise DamagedShard(f"{self.path}: {first_line(error)}") from None
        if place is not None:
            value = value[place] if isinstance(value, list) and place < len(value) else None
        if isinstance(value, dict):
            value = value.get(BYTES)
        return value if isinstance(value, bytes) else None

    def _value(self, row: int, leaf: str) -> Any:
        for (of, start), held in self._held.items():
            if of == leaf and start <= row < start + len(held):
                self._held.move_to_end((of, start))
                return held[row - start].as_py()
        reader = self._readers.get(leaf)
        if reader is None or not reader.next <= row < reader.end:
            group = next(i for i in range(len(self.groups)) if row < self.starts[i + 1])
            reader = self._readers[leaf] = _Reader(self, group, leaf)
        while True:
            try:
                start, values = reader.read()
            except BaseException:
                del self._readers[leaf]  # it does not know any more where it is
                raise
            self._held[leaf, start] = values
            while len(self._held) > 1 and sum(a.nbytes for a in self._held.values()) > HELD_BYTES:
                self._held.popitem(last=False)
            if row < start + len(values):
                return values[row - start].as_py()


class _Reader:
    """Reads a column of a group of rows from its start, a few rows at a time."""

    def __init__(self, table: _Table, group: int, leaf: str) -> None:
        self.next, self.end = table.starts[group], table.starts[group + 1]
        chunk = next(one for one in table.groups[group] if one.path == leaf)
        if chunk.values > MAX_IMAGES:
            raise ValueError(f"{chunk.values:,} images in a group of rows")
        self._batches: Iterator[pa.RecordBatch] = table.file.iter_batches(
            _rows_at_once(chunk), [group], [leaf], use_threads=False
        )

    def read(self) -> tuple[int, pa.Array]:
        """The number of the first of the next rows, and their values. Raises ValueError."""
        batch = next(self._batches, None)
        if batch is None or not len(batch):
            raise ValueError("a group has fewer rows than its footer says")
        start = self.next
        self.next += len(batch)
        return start, batch.column(0)


def _rows_at_once(chunk: Chunk) -> int:
    """Rows that fit into BATCH_BYTES even if each is as long as all that the chunk stores."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, chunk.bytes)))


def _leaf_of_bytes(field: pa.Field, leaves: list[str]) -> str | None:
    """The path of the bytes of a column of images; None for another column."""
    kind, nested = field.type, field.name
    if _is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind) and kind.get_field_index(BYTES) >= 0:
        kind = kind.field(BYTES).type
        ends = [leaf for leaf in leaves if leaf.startswith(f"{nested}.")]
        found = [leaf for leaf in ends if leaf.endswith(f".{BYTES}")]
    else:
        found = [leaf for leaf in leaves if leaf == nested or leaf.startswith(f"{nested}.")]
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return found[0] if is_binary and found else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _opened(path: str) -> _Table:
    """The table of a path, open. Raises FileNotFoundError, FileRefused and DamagedShard."""
    version: tuple[int, ...] = ()
    if not storage.is_remote(path):
        try:
            about = Path(storage.local_path(path)).stat()
        except OSError as error:
            raise FileNotFoundError(*error.args) from None
        version = (about.st_size, about.st_mtime_ns)
    return _open(path, version)


# A worker reads the rows of a few files in turn.
@lru_cache(maxsize=4)
def _open(path: str, version: tuple[int, ...]) -> _Table:
    return _Table(path)
