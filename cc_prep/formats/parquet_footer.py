"""What a Parquet file's footer says of its columns, read without pyarrow.

pyarrow's own `row_group(i).column(j).num_values` ends the process (`std::terminate`) where a
column's metadata contradict themselves, which one flipped bit can do. So the footer, a struct in
Thrift's compact protocol, is read here: no more of it than counts and sizes.
Source: thrift-compact-protocol.md of Apache Thrift; parquet.thrift of Apache Parquet.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

MAX_DEPTH = 16  # Parquet's own structs are nested less deeply
MAX_BYTES = 2**28  # of a footer; the largest of the field's tables has under a megabyte
# The fields' numbers.
ROW_GROUPS, COLUMNS, COLUMN_METADATA, PATH, NUM_VALUES, SIZE = 4, 1, 3, 3, 5, 6
STATISTICS, NULL_COUNT = 12, 3


@dataclass(frozen=True)
class Chunk:
    """The values of a column in a group of rows.

    Attributes:
        path: Names from the column of the table to what is nested in it, joined by dots.
        values: How many; of lists each element counts.
        bytes: Of all values, uncompressed.
        nulls: How many values are null; None where the file does not say.
    """

    path: str
    values: int
    bytes: int
    nulls: int | None


def count_values(data: bytes) -> int:
    """The values of all columns of a Parquet file; of lists each element counts.

    Raises:
        ValueError: For bytes that are no such file.
    """
    return sum(chunk.values for group in groups(data) for chunk in group)


def of_file(file: BinaryIO) -> bytes:
    """The end of a Parquet file with all of its footer. Raises ValueError."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = struct.unpack("<I", end[:4])[0] + 8 if len(end) == 8 else 0
    if end[4:] != b"PAR1" or length > min(size, MAX_BYTES):
        raise ValueError("no footer of Parquet at its end")
    file.seek(size - length)
    return file.read(length)


def groups(data: bytes) -> list[list[Chunk]]:
    """The columns of each group of rows of a Parquet file, of which the end may be given.

    Raises:
        ValueError: For bytes that are no such file.
    """
    end = len(data) - 8
    (length,) = struct.unpack("<I", data[-8:-4]) if end >= 0 else (0,)
    if data[-4:] != b"PAR1" or length > end:
        raise ValueError("no footer of Parquet at its end")
    footer = _Reader(data[end - length : end]).struct()
    try:
        chunks = [
            [_chunk(column[COLUMN_METADATA]) for column in group[COLUMNS]]
            for group in footer[ROW_GROUPS]
        ]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("the footer does not say how many values there are") from None
    if any(chunk.values < 0 for group in chunks for chunk in group):
        raise ValueError("a column with fewer than no values")
    return chunks


def _chunk(metadata: dict[int, Any]) -> Chunk:
    path = b".".join(metadata[PATH]).decode("utf-8", "replace")
    nulls = metadata.get(STATISTICS, {}).get(NULL_COUNT)
    return Chunk(path, metadata[NUM_VALUES], metadata[SIZE], nulls)


class _Reader:
    """Values of Thrift's compact protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError("the footer ends early")
        self.at += count
        return taken

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a number of the footer is too long")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """A struct's values by the numbers of their fields."""
        fields: dict[int, Any] = {}
        number = 0
        while kind := (head := self.take(1)[0]) & 0x0F:
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            # The type of a boolean field is its value: 1 is true, 2 is false.
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("the footer is nested too deeply")
        match kind:
            case 1 | 2 | 3:  # booleans of a list; bytes
                return self.take(1)[0]
            case 4 | 5 | 6:
                return self.zigzag()
            case 7:
                return self.take(8)
            case 8:
                return self.take(self.varint())
            case 9 | 10:
                head = self.take(1)[0]
                count = head >> 4 if head >> 4 < 15 else self.varint()
                if count > len(self.data) - self.at:  # each takes a byte at least
                    raise ValueError("a list of the footer is longer than the footer")
                return [self.value(head & 0x0F, depth + 1) for _ in range(count)]
            case 11:
                count = self.varint()
                kinds = self.take(1)[0] if count else 0
                if count > len(self.data) - self.at:
                    raise ValueError("a map of the footer is longer than the footer")
                for _ in range(count):  # nothing that is counted lies in one
                    self.value(kinds >> 4, depth + 1)
                    self.value(kinds & 0x0F, depth + 1)
                return None
            case 12:
                return self.struct(depth)
            case 13:
                return self.take(16)
            case _:
                raise ValueError(f"the footer has a value of the unknown type {kind}")
