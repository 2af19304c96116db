"""`cc-train stage1` and `stage2`: accumulated gradients; captions; the switches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import run_factory
from tests.browser import opened
from tests.commands import cc_train


@pytest.fixture(scope="module")
def stage1(tmp_path_factory: pytest.TempPathFactory, weights: Path, shards: str) -> Path:
    run = tmp_path_factory.mktemp("stage1") / "run"
    done = run_factory.train("stage1", weights, shards, run)
    assert done.returncode == 0, done.stderr
    return run


def test_accumulated_gradients_are_those_of_the_whole_batch(
    tmp_path: Path, weights: Path, shards: str
) -> None:
    """The loss curve of twice the batch; `test_elastic.py` has several processes."""
    runs = {
        "whole": ("loop.batch_size=4",),
        "accumulated": ("loop.grad_accum_steps=2", "max_activation_mb=0"),
    }
    for name, settings in runs.items():
        options = [part for value in settings for part in ("--set", value)]
        done = run_factory.train("stage1", weights, shards, tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
    accumulated, whole = (run_factory.log(tmp_path / name) for name in ("accumulated", "whole"))
    for line, expected in zip(accumulated, whole, strict=True):
        assert line.pop("part") == expected.pop("part")
        assert line == pytest.approx(expected, abs=2e-4, rel=2e-4)


@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_pixels_and_the_switches(tmp_path: Path, weights: Path, shards: str, kind: str) -> None:
    """Pixels through the VQGAN's encoder, half precision, averages, no stage 1, no queries."""
    more = ["frames=pixels", "loop.precision=bfloat16", "loop.ema_decay=0.9"]
    if kind == "stage1":
        more += ["losses.align=0", "losses.reference_quirks=true", "loop.compile=false"]
    else:
        network = json.dumps({"width": 64, "layers": 1, "position_std": 0.02})
        more += [f"network={network}", "queries.k=0", "freeze=true", "loop.optimizer=adamw",
                 f"vqgan={weights / 'vqgan-test.safetensors'}"]  # fmt: skip
    options = [part for value in more for part in ("--set", value)]
    done = run_factory.train(kind, weights, shards, tmp_path / "run", *options, "--steps", "2")
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert settings["system"] == kind
    assert ("align" in run_factory.log(tmp_path / "run")[0]) is False


def test_a_run_captions_and_is_scored(
    tmp_path: Path, weights: Path, shards: str, stage1: Path, synth_root: Path
) -> None:
    run = tmp_path / "run"
    done = run_factory.train("stage2", weights, shards, run, "--init", str(stage1),
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
    captions = {row["image_id"]: row["caption"] for row in predicted}
    # The images themselves give what their stored tokens gave.
    before, after = (
        next(iter(sorted((synth_root / d).iterdir()))) for d in ("images", "sc_images")
    )
    done = cc_train("caption", run, before, after)
    assert done.returncode == 0, done.stderr
    key = next(key for key in captions if "000000" in key and not key.endswith("nochange"))
    assert done.stdout.strip() == captions[key]
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
