"""`rejects.parquet`: the pairs that a job rejected, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa

from cc_prep import storage
from cc_prep.formats import tables

FILE = "rejects.parquet"
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("key", "id", "split", "kind", "shard", "reason", "message")]
)


@dataclass(frozen=True)
class Reject:
    """One rejected pair: which, in which shard it belongs, why. Its texts are `encodable`."""

    key: str
    id: str
    split: str
    kind: str
    shard: str
    reason: str
    message: str


def write(folder: str, rejects: Iterable[Reject]) -> None:
    """Writes the table, sorted by shard and key; the same rows give the same bytes."""
    rows = sorted(map(asdict, rejects), key=lambda row: (row["shard"], row["key"]))
    tables.write_rows(storage.join(folder, FILE), rows, SCHEMA)


def encodable(text: str) -> str:
    """A text with what is no UTF-8, as in the path of a file with such a name, as `\\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode()


def read(folder: str) -> list[Reject]:
    """The rows; none where there is no such file.

    Raises:
        DamagedShard: For a damaged one.
    """
    try:
        data = storage.read_bytes(storage.join(folder, FILE))
    except FileNotFoundError:
        return []
    return [Reject(**row) for row in tables.read_rows(data, SCHEMA, f"{folder}/{FILE}")]
