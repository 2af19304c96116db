"""Entities: `entities/<split>-000000.parquet`, a row a pair, and `entities/vocabulary.parquet`.

key               the pair's
phrases, scores   noun phrases that probably name what changed, the best first
source            the retriever

The vocabulary has the columns phrase and count: the noun phrases of the training captions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from cc_prep import storage
from cc_prep.formats import tables
from cc_prep.formats.tar import DamagedShard, ShardFormat

VOCABULARY = "vocabulary.parquet"
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("phrases", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("source", pa.string()),
    ]
)
VOCABULARY_SCHEMA = pa.schema([("phrase", pa.string()), ("count", pa.int64())])


@dataclass(frozen=True)
class Entity:
    """A noun phrase and how well it fits; what a score means depends on the retriever."""

    phrase: str
    score: float


def encode(entities: Sequence[Entity], source: str) -> dict[str, Any]:
    """A row without its key."""
    return {
        "phrases": [entity.phrase for entity in entities],
        "scores": [entity.score for entity in entities],
        "source": source,
    }


def decode(row: Mapping[str, Any]) -> list[Entity]:
    """The entities of a row, the best first.

    Raises:
        DamagedShard: Where its lists do not fit.
    """
    phrases, scores = row["phrases"], row["scores"]
    if phrases is None or scores is None or len(phrases) != len(scores):
        raise DamagedShard(f"{row.get('key')}: its phrases and scores do not fit together")
    if None in phrases or not all(score is not None and math.isfinite(score) for score in scores):
        raise DamagedShard(f"{row.get('key')}: a phrase or a score is missing")
    if list(scores) != sorted(scores, reverse=True):
        raise DamagedShard(f"{row.get('key')}: the best entity is not first")
    # The shortest number that is this float32: 0.7 and not 0.699999988079071.
    return [
        Entity(phrase, float(f"{score:.6g}")) for phrase, score in zip(phrases, scores, strict=True)
    ]


# A path → a writer with `add(key, row)`; a path → (key, row) in order.
write_shard = partial(tables.write_table, schema=SCHEMA)
read_shard = partial(tables.read_table, schema=SCHEMA)


def write_vocabulary(folder: str, counts: Mapping[str, int]) -> None:
    """Writes the vocabulary, the most frequent phrase first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [{"phrase": phrase, "count": count} for phrase, count in ordered]
    tables.write_rows(storage.join(folder, VOCABULARY), rows, VOCABULARY_SCHEMA)


def read_vocabulary(folder: str) -> dict[str, int]:
    """Phrases and their counts. Raises FileNotFoundError, and DamagedShard."""
    path = storage.join(folder, VOCABULARY)
    rows = tables.read_rows(storage.read_bytes(path), VOCABULARY_SCHEMA, path)
    return {row["phrase"]: row["count"] for row in rows}


FORMAT = ShardFormat("cc-entities", "entities", "parquet", write_shard, read_shard)
