"""What `build` takes from another OUT, and whether it runs a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep import manifest
from cc_prep.formats import training_shards
from pipelines import build
from tests.conftest import Command

PLAIN = [
    *("image_size=64", "interpolate.method=crossfade", "interpolate.depth=0"),
    *("score.weights=none", "keyframes.k=0", "tokenize.weights=none"),
]


def test_found_changes_are_taken_from_an_out_without_sequences(
    tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: found changes that no shards can take in, where others stand in their OUT."""
    settings = [part for value in PLAIN for part in ("--set", value)]
    data = ("synth", "--root", synth_root, "--limit", 2, "--split", "train", *settings)
    done = prepare("changes", *data, "--out", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    done = prepare("build", *data, "--from", tmp_path / "found", "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "new/shards").glob("train-*.tar")
    assert all("regions" in sample.meta for sample in training_shards.read(str(shard)))
    done = prepare("build", *data, "--from", tmp_path / "new", "--out", tmp_path / "other")
    assert done.returncode == 2
    assert "no sequences and no found changes in it" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "makes", "runs"),
    [
        ((), {"interpolate"}, False),
        (("interpolate.method=rife",), {"interpolate"}, True),
        (("interpolate.method=rife",), set(), False),  # of sequences that are there
        ((), {"interpolate", "score"}, True),
        (("tokenize.weights=vqgan",), set(), True),
        (("features.backbone=resnet101",), set(), True),
        (("features.backbone=resnet101", "features.folder=feats"), set(), False),
    ],
)
def test_whether_a_network_runs(overrides: tuple[str, ...], makes: set[str], runs: bool) -> None:
    """Keeps away: shards of images alone that wait for a GPU and then use one core."""
    settings = manifest.load("synth", [*PLAIN, *overrides], None)
    assert build._has_network(settings, frozenset(makes)) is runs
