"""Tables of regions and entities: what was written comes back, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cc_prep.formats import entities, region_features
from cc_prep.formats.entities import Entity
from cc_prep.formats.region_features import RegionRow
from cc_prep.formats.tar import DamagedShard


def row(regions: int) -> RegionRow:
    before, after = np.random.default_rng(0).normal(size=(2, regions, 5)).astype(np.float32)
    return RegionRow("a-train-1-change", "1", "train", "change", ("red cube",), before, after)


@pytest.mark.parametrize("regions", [0, 1, 3])
def test_vectors_there_and_back(tmp_path: Path, regions: int) -> None:
    """Keeps away: vectors rounded on the way, and pairs without a region that cannot be read."""
    original = row(regions)
    path = str(tmp_path / "train-000000.parquet")
    with region_features.write_shard(path) as (writer, written):
        writer.add(original.key, original.encode())
    assert written.samples == 1
    [back] = region_features.read(path)
    assert (back.key, back.id, back.split, back.kind) == (
        "a-train-1-change",
        "1",
        "train",
        "change",
    )
    assert back.phrases == ("red cube",)
    assert np.array_equal(back.before, original.before if regions else np.zeros((0, 0)))
    assert len(back.after) == regions


@pytest.mark.parametrize(
    "values",
    [
        {"before": [[1.0, 2.0], [3.0]]},
        {"before": None},
        {"after": [[1.0, 2.0]]},
        {"after": [[float("nan")] * 5] * 2},
        {"id": None},
        {"phrases": None},
    ],
)
def test_vectors_that_do_not_fit(values: dict[str, Any]) -> None:
    """Keeps away: a damaged row that ends a worker and takes its shard along."""
    with pytest.raises(DamagedShard, match=r"^a: "):
        region_features.decode("a", {**row(2).encode(), **values})


def test_entities_there_and_back(tmp_path: Path) -> None:
    """Keeps away: 0.699999988079071 in the place of 0.7 in every JSON."""
    listed = [Entity("red cube", 0.7), Entity("ball", 0.25)]
    path = str(tmp_path / "train-000000.parquet")
    with entities.write_shard(path) as (writer, _):
        writer.add("a", entities.encode(listed, "clip"))
        writer.add("b", entities.encode([], "clip"))
    rows = dict(entities.read_shard(path))
    assert entities.decode(rows["a"]) == listed
    assert entities.decode(rows["b"]) == []
    assert rows["a"]["source"] == "clip"


@pytest.mark.parametrize(
    "values",
    [{"scores": [0.5]}, {"phrases": None}, {"scores": [0.5, float("inf")]}, {"scores": [0.1, 0.5]},
     {"phrases": ["a", None]}],
)  # fmt: skip
def test_entities_that_do_not_fit(values: dict[str, Any]) -> None:
    """Keeps away: a prompt with the worst entity in it, since the order was another."""
    valid = {"key": "a", "phrases": ["x", "y"], "scores": [0.5, 0.1], "source": "clip"}
    with pytest.raises(DamagedShard, match=r"^a: "):
        entities.decode({**valid, **values})


def test_the_vocabulary_is_ordered_by_count(tmp_path: Path) -> None:
    """Keeps away: a file whose bytes depend on the order in which captions came."""
    entities.write_vocabulary(str(tmp_path), {"b": 2, "c": 5, "a": 2})
    first = (tmp_path / entities.VOCABULARY).read_bytes()
    assert list(entities.read_vocabulary(str(tmp_path)).items()) == [("c", 5), ("a", 2), ("b", 2)]
    entities.write_vocabulary(str(tmp_path), {"a": 2, "b": 2, "c": 5})
    assert (tmp_path / entities.VOCABULARY).read_bytes() == first
