"""Scores: `scores/<split>-000000.parquet`, a row a sequence.

key, captions; bef_inter_sim, inter_aft_sim   logits, float [captions, frames]
bef_inter_visual, inter_aft_visual            similarity of the images alone, [frames], or empty
                                              (imported)
penalty                                       [frames], of the captions, or without words
                                              where there are none
keyframes                                     of the manifest's rule in its deterministic form
scorer, scorer_sha256                         the weights
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from cc_prep.formats import tables
from cc_prep.formats.tables import TableWriter
from cc_prep.formats.tar import DamagedShard, ShardFormat, Written
from cc_prep.records import FrameScores, are_scores

_FRAMES = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("captions", pa.list_(pa.string())),
        ("bef_inter_sim", pa.list_(_FRAMES)),
        ("inter_aft_sim", pa.list_(_FRAMES)),
        ("bef_inter_visual", _FRAMES),
        ("inter_aft_visual", _FRAMES),
        ("penalty", _FRAMES),
        ("keyframes", pa.list_(pa.int32())),
        ("scorer", pa.string()),
        ("scorer_sha256", pa.string()),
    ]
)

Row = dict[str, Any]


def encode(
    scores: FrameScores, penalty: np.ndarray, keyframes: list[int], scorer: str, sha256: str
) -> Row:
    """A row without its key."""
    return {
        "captions": list(scores.captions),
        "bef_inter_sim": scores.bef_inter_sim.tolist(),
        "inter_aft_sim": scores.inter_aft_sim.tolist(),
        "bef_inter_visual": scores.bef_inter_visual.tolist(),
        "inter_aft_visual": scores.inter_aft_visual.tolist(),
        "penalty": penalty.tolist(),
        "keyframes": keyframes,
        "scorer": scorer,
        "scorer_sha256": sha256,
    }


def decode(row: Row) -> FrameScores:
    """The scores of a row.

    Raises:
        DamagedShard: Where its lists don't fit together, or one of them is no finite number.
    """
    try:
        frames = len(row["penalty"])
        shape = (len(row["captions"]), frames)
        of_captions = [
            np.array(row[name], np.float32).reshape(shape)
            for name in ("bef_inter_sim", "inter_aft_sim")
        ]
        of_images = [
            np.array(row[name], np.float32).reshape(frames if row[name] else 0)
            for name in ("bef_inter_visual", "inter_aft_visual")
        ]
    except (ValueError, TypeError):
        raise DamagedShard(f"{row.get('key')}: its scores are not captions × frames") from None
    penalty = np.array(row["penalty"], np.float64)  # squares of scores, which may be larger
    similarities: list[np.ndarray] = [*of_captions, *of_images]
    if not (all(map(are_scores, similarities)) and np.isfinite(penalty).all()):
        raise DamagedShard(f"{row.get('key')}: a score is no finite number")
    return FrameScores(tuple(row["captions"]), *of_captions, *of_images)


@contextmanager
def write_shard(path: str) -> Iterator[tuple[TableWriter, Written]]:
    """A table that appears under its name only when complete."""
    with tables.write_table(path, SCHEMA) as result:
        yield result


def read_shard(path: str) -> Iterator[tuple[str, Row]]:
    """(key, row) in order. Raises FileNotFoundError, and DamagedShard for what is no such table."""
    return tables.read_table(path, SCHEMA)


FORMAT = ShardFormat("cc-scores", "scores", "parquet", write_shard, read_shard)
