"""Captions of a captioner: `captions/<split>-000000.jsonl`, a line of JSON for each pair.

key, id, split, kind           the pair's
before, after                  its images, as the data set names them
caption, confidence, changes   as `cc-train caption --json` prints them of these images
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cc_prep import storage, strict_json
from cc_prep.errors import first_line
from cc_prep.formats.tables import TableWriter
from cc_prep.formats.tar import DamagedShard, ShardFormat, Written

Row = dict[str, Any]


def line(row: Mapping[str, Any]) -> bytes:
    """A row as it is written, with its newline."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


@contextmanager
def write_shard(path: str) -> Iterator[tuple[TableWriter, Written]]:
    """A file that appears under its name only when complete."""
    writer, written = TableWriter(), Written()
    yield writer, written
    data = b"".join(map(line, writer.rows))
    storage.write_bytes(path, data)
    written.samples, written.bytes = len(writer.rows), len(data)
    written.sha256 = hashlib.sha256(data).hexdigest()


def read_shard(path: str) -> Iterator[tuple[str, Row]]:
    """(key, row without it) in order.

    Raises FileNotFoundError, and DamagedShard for what are no such lines.
    """
    for number, text in enumerate(storage.read_bytes(path).splitlines(), 1):
        try:
            row = strict_json.loads(text.decode("utf-8", "surrogatepass"))
            key = row.pop("key")
            if not isinstance(key, str) or not isinstance(row.get("caption"), str):
                raise ValueError("no key or no caption")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DamagedShard(f"{path}: line {number}: {first_line(error)}") from None
        yield key, row


FORMAT = ShardFormat("cc-captions", "captions", "jsonl", write_shard, read_shard)
