"""`cc-train stage1` and `stage2`: processes killed, divided or reading ahead agree with ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import small_weights
from tests.commands import Done, cc_train
from tests.conftest import BIN, Command
from tests.pages import opened

SMALL = {
    "stage1": ["network.layers=1", "network.width=64", "network.position_std=0.02"],
    "stage2": ["decoder.width=16", "decoder.heads=2", "decoder.hidden=16", "decoder.length=8",
               "decoder.dropout=0", "loop.epochs=null"],
}  # fmt: skip
LOOP = ["loop.batch_size=2", "loop.threads=1", "loop.log_every=1", "loop.checkpoint_every=2",
        "loop.validate_every=4", "loop.learning_rate=1e-3", "loop.warmup=2"]  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def shards(
    tmp_path_factory: pytest.TempPathFactory, weights: Path, synth_root: Path, prep: Command
) -> str:
    """All splits of six scenes, with all frames as images."""
    out = tmp_path_factory.mktemp("stages") / "out"
    given = [*small_weights.settings(weights), "image_size=32", "interpolate.depth=2"]
    more = ["interpolate.method=dissolve", "keyframes.images=all", "shards.pairs_per_shard=3"]
    options = [part for value in (*given, *more) for part in ("--set", value)]
    done = prep("build", "synth", "--root", synth_root, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return f"{out}/shards/*.tar"


@pytest.fixture(scope="module")
def stage1(tmp_path_factory: pytest.TempPathFactory, weights: Path, shards: str) -> Path:
    run = tmp_path_factory.mktemp("stage1") / "run"
    done = train("stage1", weights, shards, run)
    assert done.returncode == 0, done.stderr
    return run


def command(kind: str, weights: Path, shards: str, run: Path, *more: str) -> list[str]:
    given = [*SMALL[kind], *LOOP]
    if kind == "stage1":
        given.append(f"vqgan={weights / 'vqgan-test.safetensors'}")
    options = [part for value in given for part in ("--set", value)]
    return [kind, "--shards", shards, "--out", str(run), *options, "--steps", str(STEPS), *more]


def train(kind: str, weights: Path, shards: str, run: Path, *more: str) -> Done:
    return cc_train(*command(kind, weights, shards, run, *more))


def log(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def model(run: Path) -> bytes:
    return (run / f"checkpoints/{STEPS:06d}/model.safetensors").read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_killed_and_resumed_is_bit_equal(
    tmp_path: Path, weights: Path, shards: str, stage1: Path, kind: str, workers: int
) -> None:
    init = ["--init", str(stage1)] if kind == "stage2" else []
    whole = stage1
    if kind == "stage2":
        whole = tmp_path / "whole"
        done = train(kind, weights, shards, whole, *init)
        assert done.returncode == 0, done.stderr
    run, more = tmp_path / "run", [*init, "--set", f"loop.loader_workers={workers}"]
    given = [str(BIN / "cc-train"), *command(kind, weights, shards, run, *more)]
    job = subprocess.Popen(
        given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not (run / "checkpoints/000002").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait(timeout=60)
    steps = [int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdecimal()]
    assert steps
    assert max(steps) < STEPS, "it was not stopped in time"
    done = train(kind, weights, shards, run, *more)
    assert done.returncode == 0, done.stderr
    assert "going on at step" in done.stderr
    assert log(run) == log(whole)
    if not workers:  # the number of workers stands in the file's metadata
        assert model(run) == model(whole)


@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_two_processes_are_one_with_twice_the_batch(
    tmp_path: Path, weights: Path, shards: str, stage1: Path, kind: str
) -> None:
    """Data-parallel training and accumulation give the loss curve of the whole batch."""
    init = ["--init", str(stage1)] if kind == "stage2" else []
    double = ["--set", "loop.batch_size=4"]
    done = train(kind, weights, shards, tmp_path / "double", *init, *double)
    assert done.returncode == 0, done.stderr
    halves = ["--set", "loop.accumulate=2"]
    done = train(kind, weights, shards, tmp_path / "accumulated", *init, *halves)
    assert done.returncode == 0, done.stderr
    given = command(kind, weights, shards, tmp_path / "parallel", *init, "--set", "loop.device=cpu")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "cc_train", *given],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    whole = log(tmp_path / "double")
    for name in ("accumulated", "parallel"):
        found = log(tmp_path / name)
        assert len(found) == len(whole), "one rank writes the log"
        for line, expected in zip(found, whole, strict=True):
            assert line.pop("part") == expected["part"]
            numbers = {key: value for key, value in expected.items() if key != "part"}
            assert line == pytest.approx(numbers, abs=2e-4, rel=2e-4), name


@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_pixels_and_the_switches(tmp_path: Path, weights: Path, shards: str, kind: str) -> None:
    """Pixels through the VQGAN's encoder, half precision, averages, no stage 1, no queries."""
    more = ["frames=pixels", "loop.precision=bfloat16", "loop.average=0.9"]
    if kind == "stage1":
        more += ["losses.align=0", "losses.compatible=true", "loop.compile=false"]
    else:
        network = json.dumps({"width": 64, "layers": 1, "position_std": 0.02})
        more += [f"network={network}", "queries.k=0", "freeze=true", "loop.optimizer=adamw",
                 f"vqgan={weights / 'vqgan-test.safetensors'}"]  # fmt: skip
    given = [part for value in more for part in ("--set", value)]
    done = train(kind, weights, shards, tmp_path / "run", *given, "--steps", "2")
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert settings["kind"] == kind
    assert ("align" in log(tmp_path / "run")[0]) is False


def test_a_run_captions_and_is_scored(
    tmp_path: Path, weights: Path, shards: str, stage1: Path, synth_root: Path
) -> None:
    run = tmp_path / "run"
    done = train("stage2", weights, shards, run, "--init", str(stage1),
                 "--set", "queries.kind=independent", "--set", "queries.k=3")  # fmt: skip
    assert done.returncode == 0, done.stderr

    done = cc_train("evaluate", run, "--shards", shards)
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (run / "evaluation").iterdir()}
    assert files == {
        "items.jsonl",
        "nsc_results.json",
        "predictions.json",
        "references.json",
        "sc_results.json",
        "scores.json",
        "table.md",
    }
    scores = json.loads((run / "evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] == 12
    assert {"semantic change", "no change"} < scores["groups"].keys()
    assert 0 <= scores["swapped"]["same"] <= 1
    again = cc_train("evaluate", "--predictions", run / "evaluation/predictions.json",
                "--references", run / "evaluation/references.json", "--json")  # fmt: skip
    assert json.loads(again.stdout)["groups"]["total"] == scores["groups"]["total"]
    predicted = json.loads((run / "evaluation/predictions.json").read_text())
    said = {row["image_id"]: row["caption"] for row in predicted}
    # The images themselves give what their stored tokens gave.
    before, after = (
        next(iter(sorted((synth_root / d).iterdir()))) for d in ("images", "sc_images")
    )
    done = cc_train("caption", run, before, after)
    assert done.returncode == 0, done.stderr
    key = next(key for key in said if "000000" in key and not key.endswith("nochange"))
    assert done.stdout.strip() == said[key]
    folder = tmp_path / "pairs"
    for side, image in (("before", before), ("after", after)):
        (folder / side).mkdir(parents=True)
        shutil.copy(image, folder / side / "one.png")
    done = cc_train("caption", run, "--pairs", folder, "--json", "--beams", 2)
    assert len(json.loads(done.stdout)["beams"]) == 2
    done = cc_train("report", run, "--shards", shards)
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text()
    assert page.count("data:image/jpeg") >= 4
    assert "<script" not in page
    there = page.count("<img")
    assert f'data-pictures="{there}/{there}"' in opened(page, tmp_path)
