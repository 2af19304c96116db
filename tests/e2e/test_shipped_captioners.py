"""Captioners that come with the package are what their cards say, and right about new scenes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from cc_prep import datasets, manifest
from cc_prep.media import images
from cc_prep.storage import sha256
from cc_prep.synth import dataset
from cc_train import Captioner, doubt, loading
from cc_train.data.pair_lists import read_pairs
from cc_train.evaluation.rendered import fact_scores
from cc_train.runs import run_folder
from cc_train.serve.server import make, shipped_examples
from cc_train.sharing import export
from cc_train.sharing.export import Details
from tests import commands
from tests.commands import cc_train
from tests.conftest import render_new_scenes

NAME, CHAIN, COMPOSITES = "captioner-mini", "chain-mini", "composites-mini"
SEVERAL, PROCAP = "captioner-multi", "procap-mini"
SCENES = 12
# Of 24 pairs, or shares. The cards' figures are over 500 and 250 scenes.
LEAST = {
    "told apart": 22, "exact": 20, "confidence": 0.8, "overlap": 0.6, "F1 of changes": 0.7,
}  # fmt: skip
MOST = {"false alarms": 1, "confidence of noise": 0.2}


def scenes(folder: Path) -> Path:
    """A folder with twelve scenes that nobody trained on; made once."""
    root = folder / "scenes"
    if not root.exists():
        render_new_scenes(root)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, new_scenes: Path) -> Path:
    folder = tmp_path_factory.mktemp("shipped")
    (folder / "scenes").symlink_to(new_scenes)
    return folder


def assert_within_bounds(figures: dict[str, float]) -> None:
    for name, figure in figures.items():
        assert LEAST.get(name, -np.inf) <= figure <= MOST.get(name, np.inf), name


def captioned(
    folder: Path, pairs: list[tuple[str, str]], name: str = NAME
) -> list[dict[str, object]]:
    """The rows of `cc-train caption NAME --pairs … --json`."""
    rows = [json.dumps({"before": before, "after": after}) for before, after in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(rows))
    done = cc_train("caption", name, "--pairs", folder / "pairs.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", [NAME, SEVERAL, CHAIN, PROCAP, COMPOSITES])
def test_the_card_belongs_to_the_file(name: str) -> None:
    folder = run_folder.locate(name)
    model = folder / "model.safetensors"
    assert sha256(model) in (folder / "README.md").read_text()
    assert model.stat().st_size < 20e6


def captions_of_new_scenes(folder: Path, name: str = NAME) -> dict[str, float]:
    """How many pairs are told apart and said right, and the mean confidence."""
    root = scenes(folder)
    settings = manifest.load("pairs", root=str(root))
    pairs = [pair for split in settings.splits for pair in datasets.pairs(settings, split)]
    assert len(pairs) == 2 * SCENES
    rows = captioned(folder, [(str(root / p.before), str(root / p.after)) for p in pairs], name)
    verdicts = [
        fact_scores.judge(str(row.get("raw_caption", row["caption"])), pair.facts, pair.captions)
        for row, pair in zip(rows, pairs, strict=True)
        if pair.facts is not None
    ]
    assert len(verdicts) == 2 * SCENES
    return {
        "told apart": sum((v.claimed == "none") == (v.type == "none") for v in verdicts),
        "exact": sum(verdict.exact for verdict in verdicts),
        "confidence": float(np.mean([float(str(row["confidence"])) for row in rows])),
    }


@pytest.mark.parametrize("name", [NAME, PROCAP])
def test_its_captions_of_new_scenes_are_right(folder: Path, name: str) -> None:
    assert_within_bounds(captions_of_new_scenes(folder, name))


def test_procap_imagines_two_frames(folder: Path) -> None:
    """Keeps away: an export that forgot the head of stage 1, or the VQGAN that draws its codes."""
    [*_, path] = sorted((scenes(folder) / "images").iterdir())
    out = folder / "imagined.png"
    done = cc_train("imagine", PROCAP, path, path, "--out", out)
    assert done.returncode == 0, done.stderr
    frames, side, gap = 2 + 4, 112, 4
    picture = images.read(str(out))[::2, ::2]  # small ones are enlarged
    assert picture.shape[:2] == (side, frames * side + (frames - 1) * gap)
    drawn = [picture[:, i * (side + gap) :][:, :side].astype(float) for i in range(frames)]
    # Of an image in which nothing happens, what is imagined looks as the VQGAN draws that image.
    assert np.abs(drawn[2] - drawn[1]).mean() < np.abs(drawn[2] - 128).mean() / 2


def several_of_new_scenes(folder: Path) -> dict[str, float]:
    """F1 of the changes of eight scenes with one to three."""
    root = folder / "several"
    settings = dataset.Settings(seed=774, size=112, wording="plain", max_changes=3)
    commands.render(root, 8, settings)
    read = manifest.load("pairs", root=str(root))
    pairs = [pair for split in read.splits for pair in datasets.pairs(read, split)]
    captions = Captioner.from_pretrained(SEVERAL, device="cpu")(
        [(root / pair.before, root / pair.after) for pair in pairs]
    )
    verdicts = [
        fact_scores.judge(caption.raw or str(caption), pair.facts, pair.captions)
        for caption, pair in zip(captions, pairs, strict=True)
        if pair.facts is not None
    ]
    assert len(verdicts) == 16
    return {"F1 of changes": float(fact_scores.count(verdicts).changes["F1"])}


def test_several_changes_of_new_scenes_are_right(tmp_path: Path) -> None:
    assert_within_bounds(several_of_new_scenes(tmp_path))


def masks_of_new_scenes(folder: Path) -> dict[str, float]:
    """How far masks overlap the true ones, and how many there are where nothing changed."""
    shared = union = false_alarms = 0
    captioner = loading.load(CHAIN)
    for split in ("train", "val", "test"):
        for pair in datasets.open("pairs", root=str(scenes(folder)), split=split):
            before_after = torch.from_numpy(np.stack((pair.before, pair.after)))
            [caption] = captioner.caption(before_after[None])
            assert caption.mask is not None
            assert pair.mask is not None
            shared += int(((caption.mask > 0) & (pair.mask > 0)).sum())
            union += int(((caption.mask > 0) | (pair.mask > 0)).sum())
            false_alarms += bool(caption.mask.any() and not pair.mask.any())
    return {"overlap": shared / union, "false alarms": false_alarms}


def test_masks_of_new_scenes_are_right(folder: Path) -> None:
    assert_within_bounds(masks_of_new_scenes(folder))


def confidence_of_noise(folder: Path, name: str = NAME) -> dict[str, float]:
    paths = [str(folder / name) for name in ("before.png", "after.png")]
    for seed, path in enumerate(paths):
        pixels = np.random.default_rng(seed).integers(0, 256, (112, 112, 3), np.uint8)
        cv2.imwrite(path, pixels)
    [row] = captioned(folder, [(paths[0], paths[1])], name)
    return {"confidence of noise": float(str(row["confidence"]))}


@pytest.mark.parametrize("name", [NAME, PROCAP])
def test_it_knows_that_it_knows_nothing(folder: Path, name: str) -> None:
    """For noise and for photographs its confidence is low, whatever it says."""
    assert_within_bounds(confidence_of_noise(folder, name))
    street = captioned(folder, list(read_pairs(shipped_examples("photos-mini"))), name)
    assert len(street) > 5
    assert all(str(row["caption"]).startswith(doubt.NOT_SURE) for row in street)


def test_a_training_may_start_from_it(tmp_path: Path) -> None:
    """Keeps away: a name that --init looks for as a file."""
    done = cc_train("pair", "--init", NAME, "--shards", "no.tar", "--out", tmp_path / "run")
    assert (done.returncode, done.stderr.startswith("cc-train: no.tar")) == (2, True)


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a user's own run hidden by the one of the package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    done = cc_train("caption", NAME, "a.png", "b.png")
    assert (done.returncode, "checkpoint" in done.stderr) == (2, True)


def test_the_captioner_of_composed_pairs_is_right_on_real_ones() -> None:
    """It saw no pair of a real camera. The scenes of rendered solids are none of its own."""
    captioner = Captioner.from_pretrained(COMPOSITES, device="cpu")
    yard = list(read_pairs(shipped_examples("photos-mini")))[:5]
    captions = captioner([(Path(before), Path(after)) for before, after in yard])
    assert [str(one) for one in captions] == [
        "a person appeared at the top left",
        "a person disappeared on the left",
        "a person moved from the top left to the top right",
        "nothing changed",
        "the picture became darker",
    ]
    assert all((one.confidence or 0) > 0.8 for one in captions)
    solids = captioner([(Path(b), Path(a)) for b, a in read_pairs(shipped_examples())])
    sure = [one for one in solids if (one.confidence or 0) > 0.6 and "nothing" not in str(one)]
    assert not sure


def offered_by(run: object) -> list[tuple[str, str]]:
    """The examples of the page of a captioner."""
    with make(str(run), host="127.0.0.1", port=0, examples=None, pairs=None, collect=None,
              fetch=False, device="cpu") as server:  # fmt: skip
        return list(server.application.lists["examples"])


def test_its_page_offers_composed_pairs(tmp_path: Path) -> None:
    """Keeps away: spheres and cubes, which it has never seen."""
    offered = list(read_pairs(shipped_examples(COMPOSITES)))
    assert offered_by(COMPOSITES) == offered
    # So does the page of what is exported of it, unless the folder has no pairs.
    packed = export.export(COMPOSITES, tmp_path / "own", Details(licence="cc-by-4.0"))[0]
    assert (packed / "licences.csv").exists()
    assert len(offered_by(packed)) == len(offered)
    for image in (packed / "examples").iterdir():
        image.unlink()
    (packed / "examples/notes_before.txt").write_text("later")
    assert offered_by(packed) == list(read_pairs(shipped_examples()))
    captions = Captioner.from_pretrained(COMPOSITES, device="cpu")(
        [(Path(before), Path(after)) for before, after in offered]
    )
    assert str(captions[-1]) == "nothing changed"
    assert not any(str(one).startswith(doubt.NOT_SURE) for one in captions)


def test_all_authors_of_composed_pictures_are_named() -> None:
    rows = list(csv.DictReader((run_folder.locate(COMPOSITES) / "licences.csv").open()))
    assert len(rows) == 1698
    assert all(row["author"] for row in rows)
    free = ("CC0-1.0", "public-domain", "CC-BY-")
    assert all(row["licence"].startswith(free) for row in rows)
