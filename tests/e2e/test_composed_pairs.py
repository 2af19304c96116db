"""Composed pairs go the way of all data: features, training on their facts, scores, the page."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from cc_prep import storage
from cc_prep.formats import training_shards
from cc_train.data.supervision import FactVocabulary
from cc_train.runs import stored_run
from tests import dataset_factory
from tests.commands import cc_train
from tests.conftest import Command
from tests.dataset_factory import PASTED_CLASSES

BUILD = ("image_size=64", "shards.pairs_per_shard=20", "features.threads=1")
FEATURES = ("features.backbone=efficientnet-lite0-x2+nanodet",)
SMALL = (
    "encoder.width=32", "decoder.width=32", "decoder.hidden=32", "loop.batch_size=2",
    "loop.steps=4", "loop.validate_every=4", "loop.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, prepare: Command) -> Path:
    """Shards of `manifests/composites.yaml`, and a run of four steps."""
    out = tmp_path_factory.mktemp("composed")
    photos, objects = dataset_factory.composites(out / "files")
    done = prepare("composites", out / "pairs", "--backgrounds", photos, "--objects", objects,
                   "--scenes", 20, "--size", 64, "--workers", 2)  # fmt: skip
    assert done.returncode == 0, done.stderr
    changes = [part for change in BUILD for part in ("--set", change)]
    done = prepare("build", "composites", "--root", out / "pairs", "--out", out, *changes)
    assert done.returncode == 0, done.stderr
    changes = [part for change in SMALL for part in ("--set", change)]
    done = cc_train("pair", "--shards", out / "shards/train-*.tar", "--valid",
                    out / "shards/val-*.tar", "--out", out / "run", *changes)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_the_run_learned_facts_of_its_data(out: Path) -> None:
    """Keeps away: a training on composed pairs that learns captions alone, without saying so."""
    run = stored_run.read(out / "run")
    vocabulary = FactVocabulary.from_json(run.settings["facts"])
    assert set(PASTED_CLASSES) <= set(vocabulary.attributes["class"]) <= {*PASTED_CLASSES, "text"}
    assert vocabulary.types[0] == "none"
    assert {"add", "drop", "move"} <= set(vocabulary.types)
    assert "new_class" in (out / "run/log.jsonl").read_text()
    sample = next(iter(training_shards.read(str(next((out / "shards").glob("test-*.tar"))))))
    assert sample.features is not None
    assert sample.features.backbone == "efficientnet-lite0-x2+nanodet"
    assert sample.features.values.shape == (2, 272 + 384, 8, 8)


@pytest.mark.parametrize("captioner", ["run", "photos-mini"])
def test_captions_are_scored_by_their_facts(out: Path, tmp_path: Path, captioner: str) -> None:
    run = out / "run" if captioner == "run" else captioner
    shards = out / "shards/test*.tar"
    done = cc_train("evaluate", run, "--shards", shards, "--out", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores/scores.json").read_text())
    assert {"type", "class", "place", "exact"} <= scores["facts"]["shares"].keys()
    assert scores["facts"]["unchanged pairs"]["pairs"] == 4
    done = cc_train("report", run, "--shards", shards, "--evaluation", tmp_path / "scores",
                    "--out", tmp_path / "report.html")  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "told apart" in page
    rows = storage.read_json_lines(str(tmp_path / "scores/items.jsonl"))
    assert all(row["facts"]["grammar"] == "composites" for row in rows)


def test_a_run_goes_on_with_its_own_facts(
    out: Path, synth_root: Path, tmp_path: Path, prepare: Command
) -> None:
    """Keeps away: own pairs without facts that cannot start from a run, and facts mixed up."""
    changes = [part for change in (*BUILD, *FEATURES) for part in ("--set", change)]
    done = prepare("build", "pairs", "--root", synth_root, "--out", tmp_path, *changes)
    assert done.returncode == 0, done.stderr
    sizes = [part for change in SMALL for part in ("--set", change)]
    arguments = ("--init", out / "run", "--out", tmp_path / "run", "--shards")
    done = cc_train("pair", *sizes, *arguments, tmp_path / "shards/train-*.tar",
                    "--valid", tmp_path / "shards/val-*.tar")  # fmt: skip
    assert done.returncode == 2
    assert "other types of change" in done.stderr
    without = tmp_path / "without"
    without.mkdir()
    for split in ("train", "val"):
        shard = next((out / "shards").glob(f"{split}-*.tar"))
        (without / shard.name).write_bytes(_without_facts(shard.read_bytes()))
    done = cc_train("pair", *sizes, *arguments, without / "train-*.tar",
                    "--valid", without / "val-*.tar")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = [stored_run.read(run / "run").settings["facts"] for run in (out, tmp_path)]
    assert facts[0] == facts[1]


def _without_facts(shard: bytes) -> bytes:
    """A shard whose samples have no facts."""
    written = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(shard)) as source,
        tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name.endswith(".json"):
                data = json.dumps({**json.loads(data), "facts": None}).encode()
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    return written.getvalue()
