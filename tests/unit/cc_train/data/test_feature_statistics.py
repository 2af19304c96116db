"""Statistics of the channels of stored features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.storage import sha256
from cc_train.data import feature_statistics, shard_index
from cc_train.data.collate import FeatureSource
from cc_train.data.shard_index import Entry
from cc_train.layers.feature_grid import to_grid
from tests import shard_factory, weight_factory

QUIET = Console(quiet=True)


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    return weight_factory.write_vqgan(tmp_path / "backbone.safetensors")


@pytest.fixture
def entries(tmp_path: Path, backbone: Path) -> list[Entry]:
    pattern, _ = shard_factory.write_tokens(tmp_path / "shards", 3, backbone=backbone)
    return shard_index.read([pattern])


def stored(entries: list[Entry]) -> np.ndarray:
    """Features of all frames of all samples, float64 [N, C, h, w]."""
    features = [feature_statistics.read_features(entry) for entry in entries]
    return np.concatenate([one.values for one in features if one is not None]).astype(np.float64)


def test_they_are_those_of_all_images(entries: list[Entry], backbone: Path) -> None:
    values = stored(entries)
    statistics = feature_statistics.compute(
        entries, FeatureSource("vqgan", sha256(backbone)), QUIET
    )
    least = 1e-4  # so that nothing is divided by zero
    assert np.allclose(statistics.mean, values.mean((0, 2, 3)))
    assert np.allclose(statistics.std, values.std((0, 2, 3)) + least)
    assert np.allclose(statistics.spread, values.mean((2, 3)).std(0) + least)


def test_they_are_of_what_is_made_of_the_features(entries: list[Entry], backbone: Path) -> None:
    folded = to_grid(torch.from_numpy(stored(entries)), (2, 2), "unshuffle")
    statistics = feature_statistics.compute(
        entries,
        FeatureSource("vqgan", sha256(backbone)),
        QUIET,
        lambda part: to_grid(part.float(), (2, 2), "unshuffle"),
    )
    assert torch.allclose(statistics.mean, folded.mean((0, 2, 3)))


def test_damaged_samples_are_left_out(entries: list[Entry], backbone: Path) -> None:
    """Keeps away: a training that cannot begin because of one sample."""
    path = Path(entries[0].shard)
    data = bytearray(path.read_bytes())
    data[entries[0].offset : entries[0].offset + 512] = bytes(512)
    path.write_bytes(data)
    assert feature_statistics.read_features(entries[0]) is None
    first = feature_statistics.first_features(entries)
    assert np.array_equal(first.values, stored(entries)[: shard_factory.FRAMES])
    statistics = feature_statistics.compute(
        entries, FeatureSource("vqgan", sha256(backbone)), QUIET
    )
    assert np.allclose(statistics.mean, stored(entries[1:]).mean((0, 2, 3)))
    for search in (
        feature_statistics.first_features,
        lambda one: feature_statistics.compute(one, None, QUIET),
    ):
        with pytest.raises(UserError, match="not one sample"):
            search(entries[:1])


def test_other_features_and_none_are_refused(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(UserError, match=", not of"):
        feature_statistics.compute(entries, FeatureSource("vqgan", "0" * 64), QUIET)
    pattern, _ = shard_factory.write_tokens(tmp_path / "without", 1)
    with pytest.raises(UserError, match="holds no features"):
        feature_statistics.first_features(shard_index.read([pattern]))
