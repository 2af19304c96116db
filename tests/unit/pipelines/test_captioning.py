"""Captions of a data set as a job: the rows are those of `cc-train caption`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.errors import StoreRefused
from cc_prep.formats import captions, provenance, rejects
from cc_train import captioning_step
from tests import commands
from tests.conftest import ROOT, Command

SCENES = ROOT / "cc_train/serve/examples"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rendered pairs; one has a broken image, and one has images of two sizes."""
    from PIL import Image

    root = tmp_path_factory.mktemp("pairs")
    for side in ("before", "after"):
        (root / side).mkdir()
        for scene in ("scene1", "scene2"):
            shutil.copy(SCENES / f"{scene}_{side}.jpg", root / side / f"{scene}.jpg")
    (root / "before/broken.jpg").write_text("no image")
    shutil.copy(SCENES / "scene1_after.jpg", root / "after/broken.jpg")
    for side, px in (("before", 64), ("after", 80)):
        Image.new("RGB", (px, px), "grey").save(root / side / "sizes.jpg")
    return root


def test_a_job_gives_the_rows_of_the_trainers_command(
    root: Path, tmp_path: Path, prepare: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a job whose images, sentences or numbers are others than those that a user saw
    of the same captioner, and a broken pair that takes others along."""
    data = ("own", "--root", root, "--set", "layout=folders", "--out", tmp_path)
    done = prepare("caption", *data, "--max-rejects", 1)
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "captions").glob("*.jsonl")
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    monkeypatch.chdir(root)
    names = [f"before/{name}.jpg,after/{name}.jpg" for name in ("scene1", "scene2", "broken")]
    Path("list.csv").write_text("\n".join(["before,after", *names]))
    printed = commands.cc_train("caption", "--pairs", "list.csv", "--json")
    expected = {
        Path(row["before"]).stem: line
        for line in printed.stdout.splitlines()
        if "error" not in (row := json.loads(line))
    }
    own = ("key", "id", "split", "kind")
    found = {row["id"]: {k: v for k, v in row.items() if k not in own} for row in rows}
    assert {id: captions.line(row).decode() for id, row in found.items()} == {
        id: f"{line}\n" for id, line in expected.items()
    }
    assert sorted(expected) == ["scene1", "scene2"]
    reasons = {one.id: one.reason for one in rejects.read(str(tmp_path / "captions"))}
    assert reasons == {"broken": "unreadable image", "sizes": "sizes differ"}
    record = provenance.read(str(tmp_path / "captions")) or {}
    assert list(record["weights"]) == ["captioner-mini"]
    assert prepare("verify", tmp_path).stdout.endswith("captions: OK\n")
    assert '"captioned pairs": 2' in prepare("stats", tmp_path, "--json").stdout


def test_what_is_no_captioner_is_refused_before_any_work(
    root: Path, tmp_path: Path, prepare: Command
) -> None:
    """Keeps away: a job that starts workers for a folder without weights."""
    data = ("own", "--root", root, "--set", "layout=folders", "--out", tmp_path / "out")
    done = prepare("caption", *data, "--captioner", root)
    assert done.returncode == 2
    assert "no checkpoint of a run" in done.stderr
    assert not (tmp_path / "out").exists()


def test_lines_that_are_no_captions_are_named(tmp_path: Path) -> None:
    """Keeps away: a traceback of a file that was cut, or is another's."""
    for text in ('{"key": "a", "caption": 3}', '{"key": "a"', "[]", '{"caption": "x"}'):
        file = tmp_path / "train-000000.jsonl"
        file.write_text(f'{{"key": "b", "caption": "x"}}\n{text}\n')
        rows = captions.read_shard(str(file))
        assert next(rows) == ("b", {"caption": "x"})
        with pytest.raises(captions.DamagedShard, match="line 2"):
            next(rows)


def test_a_store_that_refuses_is_no_fault_of_a_pair(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: all pairs as rejects of two sizes, since a key has expired."""

    def refused(path: str, max_bytes: int = 0) -> bytes:
        raise StoreRefused(f"{path}: the keys have expired", "Give new keys")

    settings = manifest.load("own", ["layout=folders"], root=str(root))
    name = "captioner-mini"
    step = captioning_step.CaptionPairs(settings, captioning_step.digest_of(name), name, "cpu")
    pairs = datasets.pairs(settings, settings.splits[0])[:1]
    monkeypatch.setattr("cc_prep.storage.read_bytes", refused)
    with pytest.raises(StoreRefused, match="expired"):
        step.read(pairs)
