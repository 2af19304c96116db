"""To ProCap's files and back: nothing changes; and files of strangers are looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from cc_prep.formats import scores, sequences, training_shards
from tests import weight_factory
from tests.conftest import Command

OPTIONS = ("--set", "image_size=64", "--set", "interpolate.depth=2", "--workers", 1)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Sequences, scores and ProCap's files of both."""
    folder = tmp_path_factory.mktemp("ours")
    weight_options = [p for o in weight_factory.settings(folder) for p in ("--set", o)]
    for step in ("interpolate", "score-frames"):
        done = prepare(
            step, "synth", "--root", synth_root, "--out", folder / "out", *OPTIONS, *weight_options
        )
        assert done.returncode == 0, done.stderr
    done = prepare("export", "procap", folder / "out", "--out", folder / "procap")
    assert done.returncode == 0, done.stderr
    return folder


def samples(out: Path) -> dict[str, sequences.StoredSequence]:
    return {s.key: s for p in sorted(out.glob("sequences/*.tar")) for s in sequences.read(str(p))}


def rows(out: Path) -> dict[str, scores.Row]:
    tables = (scores.read_shard(str(p)) for p in sorted(out.glob("scores/*-*.parquet")))
    return {key: row for table in tables for key, row in table}


def test_the_files_are_procaps(ours: Path) -> None:
    """Names, keys, axes and nesting as its loaders read them."""
    there = sorted(path.name for path in (ours / "procap").iterdir())
    assert there == ["clevr_similarity_scores.json", "nsc_videos.h5", "sc_videos.h5"]
    similarities = json.loads((ours / "procap/clevr_similarity_scores.json").read_text())
    for sample in samples(ours / "out").values():
        kind = "nsc" if sample.kind == "no_change" else "sc"
        with h5py.File(ours / f"procap/{kind}_videos.h5") as file:
            video = file[f"{sample.id}.png"]
            assert (video.shape, video.dtype) == ((5, 3, 64, 64), np.uint8)
            assert np.array_equal(video[()].transpose(0, 2, 3, 1), sample.frames())
        matrices = similarities[f"{sample.id}.png"][f"{kind}_sim_matrixes"]
        row = rows(ours / "out")[sample.key]
        assert np.array_equal(np.float32(matrices["bef_inter_sim"]), row["bef_inter_sim"])


def test_round_trip(ours: Path, synth_root: Path, tmp_path: Path, prepare: Command) -> None:
    done = prepare(
        "import", "procap", "synth", "--root", synth_root, "--from", ours / "procap",
        "--out", tmp_path, "--set", "image_size=64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = samples(ours / "out"), samples(tmp_path)
    assert before.keys() == after.keys()
    for key, sample in before.items():
        assert np.array_equal(sample.frames(), after[key].frames())
        assert sample.pair() == after[key].pair()
    for key, row in rows(ours / "out").items():
        mine = rows(tmp_path)[key]
        same = ("captions", "bef_inter_sim", "inter_aft_sim", "penalty", "keyframes")
        assert all(row[name] == mine[name] for name in same)
    assert prepare("verify", tmp_path).returncode == 0
    # And on to training shards, with the same contents as ours.
    values = [*weight_factory.settings(ours), "image_size=64"]
    options = [part for value in values for part in ("--set", value)]
    done = prepare("build", "synth", "--root", synth_root, "--out", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    imported = list(training_shards.read(str(tmp_path / "shards/train-000000.tar")))
    assert imported
    assert all(s.meta["interpolator"]["method"] == "imported" for s in imported)


def test_what_is_missing_is_named(
    ours: Path, synth_root: Path, tmp_path: Path, prepare: Command
) -> None:
    """Keeps away: a pair that vanishes because a file of strangers does not hold it."""
    shutil.copytree(ours / "procap", tmp_path / "procap")
    with h5py.File(tmp_path / "procap/sc_videos.h5", "a") as file:
        del file["000001.png"]
        del file["000002.png"]
        file["000002.png"] = np.zeros((2, 2))
    similarities = json.loads((tmp_path / "procap/clevr_similarity_scores.json").read_text())
    similarities["000003.png"]["sc_sim_matrixes"]["inter_aft_sim"].pop()
    (tmp_path / "procap/clevr_similarity_scores.json").write_text(json.dumps(similarities))
    done = prepare(
        "import", "procap", "synth", "--root", synth_root, "--from", tmp_path / "procap",
        "--out", tmp_path / "out", "--set", "image_size=64", "--max-rejects", 0.9,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    from cc_prep.formats import rejects

    frames = {r.id: r for r in rejects.read(str(tmp_path / "out/sequences"))}
    assert frames.keys() == {"000001", "000002"}
    assert "has no 000001.png" in frames["000001"].message
    [score] = rejects.read(str(tmp_path / "out/scores"))
    assert (score.id, score.kind) == ("000003", "change")


@pytest.mark.parametrize("content", [None, b"hello"])
def test_no_such_files(
    synth_root: Path, tmp_path: Path, prepare: Command, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "sc_videos.h5").write_bytes(content)
    done = prepare(
        "import", "procap", "synth", "--root", synth_root, "--from", tmp_path, "--out", tmp_path
    )
    assert done.returncode == 2
    assert "sc_videos.h5" in done.stderr
    assert "Traceback" not in done.stderr
