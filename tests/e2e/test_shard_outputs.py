"""What scoring and building leave: verified, counted, measured, and looked at in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cc_prep.inspect import verification
from tests import weight_factory
from tests.browser import opened
from tests.conftest import Command

DAMAGES = ("flip", "cut", "remove", "extra")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Sequences, scores and shards of six scenes, and beside them shards alone in `fused`."""
    folder = tmp_path_factory.mktemp("shards")
    options = [p for o in weight_factory.settings(folder) for p in ("--set", o)]
    options += ["--root", str(synth_root), "--set", "image_size=64", "--set", "interpolate.depth=2"]
    for step in ("interpolate", "score-frames", "build"):
        done = prepare(step, "synth", "--out", folder / "out", *options)
        assert done.returncode == 0, done.stderr
    options += ["--set", "keyframes.images=keyframes"]
    done = prepare("build", "synth", "--out", folder / "fused", "--split", "train", *options)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_stats(out: Path, prepare: Command) -> None:
    stats = json.loads(prepare("stats", out, "--json").stdout)
    assert stats["sequences"] == stats["scored"] == stats["training samples"] == 12
    assert list(stats["mean penalty by frame"]) == [str(i) for i in range(5)]
    assert sum(stats["keyframes by frame"].values()) == 24
    assert stats["codes"] == weight_factory.CODES
    assert 1 < stats["codes used"] <= weight_factory.CODES
    assert 1 < stats["perplexity"] <= stats["codes used"]
    assert "codes used" in prepare("stats", out / "shards").stdout


def test_fidelity(out: Path, prepare: Command) -> None:
    done = prepare("stats", out, "--fidelity", "--json")
    assert done.returncode == 0, done.stderr
    fidelity = json.loads(done.stdout)["fidelity"]
    assert fidelity["features"] == "efficientnet-lite0"
    frames = fidelity["interpolated against true frames"]
    rebuilt = fidelity["reconstructions against frames"]
    assert (frames["images"], rebuilt["images"]) == (36, 60)
    # Interpolated frames are near the true ones; what an untrained VQGAN makes of them is not.
    assert frames["FID"] < rebuilt["FID"]
    assert frames["precision"] > rebuilt["precision"]
    refused = prepare("stats", out.parent / "fused", "--fidelity")
    assert refused.returncode == 2
    assert "no sequences" in refused.stderr


def test_report_in_a_real_browser(out: Path, tmp_path: Path, prepare: Command) -> None:
    page = tmp_path / "report.html"
    done = prepare("report", out, "--out", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    dom = opened(text, tmp_path)
    # 12 strips of 5 frames, 5 reconstructions, 3 true ones, a difference and a mask; of four
    # changed pairs both sides of the mask, of the added and the dropped object one.
    assert 'data-pictures="190/190"' in dom
    assert int(re.search(r'data-wide="(\d+)"', dom)[1]) <= 1560
    assert dom.count("<polyline") == 12
    assert len(re.findall(r'<circle class="key"', dom)) == 24
    assert len(re.findall(r'<figure class="[^"]*\bkey\b', dom)) == 24
    assert "codes used" in dom


def test_report_of_shards_alone(out: Path, tmp_path: Path, prepare: Command) -> None:
    page = tmp_path / "report.html"
    done = prepare("report", out.parent / "fused", "--out", page)
    assert done.returncode == 0, done.stderr
    dom = opened(page.read_text(), tmp_path)
    # 8 strips of 4 keyframes, 5 reconstructions and a mask; of changed pairs its sides.
    sides = sum(dom.count(f"<figcaption>{side}<") for side in ("vanished", "appeared"))
    assert sides > 0
    assert f'data-pictures="{80 + sides}/{80 + sides}"' in dom
    assert dom.count("<polyline") == 8


def test_report_without_the_weights_says_so(out: Path, tmp_path: Path, prepare: Command) -> None:
    """Keeps away: reconstructions by another network than the one that made the tokens."""
    shutil.copytree(out.parent / "fused", tmp_path / "out")
    path = tmp_path / "out/shards/provenance.json"
    record = json.loads(path.read_text())
    record["weights"] = dict.fromkeys(record["weights"], "0" * 64)
    path.write_text(json.dumps(record))
    done = prepare("report", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "not the file the tokens were made with" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("folder", "damage"),
    [
        *((folder, how) for folder in ("scores", "shards") for how in DAMAGES),
        ("shards", "no index"),
    ],
)
def test_verify_finds_every_damage(out: Path, tmp_path: Path, folder: str, damage: str) -> None:
    shutil.copytree(out / folder, tmp_path / folder)
    shard = next(iter(sorted((tmp_path / folder).glob("train-*"))))
    data = bytearray(shard.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[: len(data) // 2])
    elif damage == "remove":
        shard.unlink()
    elif damage == "extra":
        shutil.copy(shard, shard.with_name(f"train-000009{shard.suffix}"))
    else:
        (tmp_path / folder / "index.parquet").unlink()
    [(output, kind)] = verification.find(str(tmp_path / folder))
    assert verification.verify(output, kind)


def test_status_names_every_job(out: Path, prepare: Command) -> None:
    output = prepare("status", out).stdout
    assert all(f"{out}/{name}" in output for name in ("sequences", "scores", "shards"))
    assert output.count("planned 12, done 12") == 3


def test_videos_are_scored_by_their_images(
    out: Path, video_root: Path, tmp_path: Path, prepare: Command
) -> None:
    """Pairs without captions: likeness instead, in shards of the same shape."""
    from cc_prep.formats import training_shards

    options = [p for o in weight_factory.settings(out.parent) for p in ("--set", o)]
    options += ["--root", str(video_root), "--set", "image_size=64"]
    done = prepare("build", "video", "--out", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "shards").glob("*.tar")
    for sample in training_shards.read(str(shard)):
        assert sample.meta["captions"] == []
        assert sample.meta["scored_by"] == "likeness"
        assert sample.scores.shape == (2, 1, 9)
        assert len(sample.meta["keyframes"]) == 4
    assert prepare("verify", tmp_path).returncode == 0
    assert prepare("report", tmp_path).returncode == 0
