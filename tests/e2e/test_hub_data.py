"""Data as they are published now, by the commands of docs/data.md: raw files to training shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import rejects, training_shards
from cc_prep.media import images
from tests import hub_tables
from tests.conftest import Command

SMALL = [
    part
    for setting in ("image_size=32", "features.backbone=none", "keyframes.images=all")
    for part in ("--set", setting)
]


@pytest.mark.parametrize(
    ("make", "train"),
    [
        (hub_tables.diffspot, 8),
        (hub_tables.mantis, 6),
        (hub_tables.imagefolder, 4),
        (hub_tables.conversations, 6),
        (hub_tables.c3_bench, 4),
        (hub_tables.karpathy, 2),
        (hub_tables.forest_change, 2),
        (hub_tables.fotbcd, 3),
    ],
)
def test_from_raw_files_to_shards(
    tmp_path: Path,
    prepare: Command,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    train: int,
) -> None:
    """Keeps away: data that `init` recognises and that a job then rejects."""
    make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    done = prepare("init", "mine", "--root", "data")
    assert done.returncode == 0, done.stderr
    seen = prepare("inspect", "mine")
    faults = [line for line in seen.stdout.splitlines() if line.startswith("fault")]
    assert (faults, seen.returncode) == ([], 0), seen.stdout
    built = prepare("build", "mine", "--out", "out", *SMALL)
    assert built.returncode == 0, built.stderr
    assert rejects.read("out/shards") == []
    samples = [
        sample
        for shard in sorted(Path("out/shards").glob("train-*.tar"))
        for sample in training_shards.read(str(shard))
    ]
    assert len(samples) == train
    if make is hub_tables.diffspot:
        _check_pixels(samples)
    if make in (hub_tables.forest_change, hub_tables.fotbcd):
        assert any(sample.mask().any() for sample in samples)
    report = prepare("report", "out")
    assert report.returncode == 0, report.stderr


def _check_pixels(samples: list[training_shards.TrainingSample]) -> None:
    """Each pair has the images of its row, which lie in the order of the table."""
    for number, sample in enumerate(samples):
        assert sample.meta["before"].endswith(f"#row={number % 5:09d},image_before")
        expected = images.decode(hub_tables.encoded(2 * number), "x")
        assert np.abs(sample.image(0).astype(int) - expected).mean() < 5
