"""The weights that come with the package: they are what their cards say, and do something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.steps.score import FrameScorer, penalties
from cc_prep.steps.tokenization import Tokenizer
from cc_prep.synth import dataset
from cc_prep.weights import networks
from cc_train.data.sequence_index import read_index
from tests import commands
from tests.conftest import Command


def sequences(root: Path, folder: Path, prepare: Command) -> str:
    """Sequences of rendered scenes of 112 px."""
    done = prepare(
        "interpolate", "synth", "--root", root, "--out", folder / "out",
        "--set", "image_size=112", "--set", "interpolate.method=crossfade",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return f"{folder}/out/sequences/*.tar"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory, new_scenes: Path, prepare: Command) -> str:
    return sequences(new_scenes, tmp_path_factory.mktemp("scenes"), prepare)


@pytest.mark.parametrize("name", list(weights.SHIPPED))
def test_the_card_belongs_to_the_file(name: str) -> None:
    located = weights.verify(name)
    card = located.path.with_suffix(".md").read_text()
    assert located.sha256 in card
    assert located.path.stat().st_size == weights.SHIPPED[name].bytes
    assert sum(w.bytes for w in weights.SHIPPED.values()) < 30e6


def test_a_damaged_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vqgan-mini.safetensors").write_bytes(b"x")
    monkeypatch.setattr("cc_prep.weights.registry.ASSETS", tmp_path)
    with pytest.raises(UserError, match="damaged"):
        weights.locate("vqgan-mini")
    with pytest.raises(UserError, match="clip4idc-mini are not at"):
        weights.locate("clip4idc-mini")


def test_frames_come_back(scenes: str) -> None:
    tokenizer = Tokenizer(networks.vqgan("vqgan-mini")[0])
    frames = np.stack([s.image("f00.png") for s in read_index([scenes])[:10]])
    tokens = tokenizer(frames)
    rebuilt = tokenizer.reconstruct(tokens)
    error = np.square(frames.astype(float) - rebuilt.astype(float)).mean(axis=(1, 2, 3))
    # A grey image of the mean brightness is at about 15 dB; the card says 26.4 at 224 px.
    assert (10 * np.log10(255**2 / error)).mean() > 20
    assert len(np.unique(tokens)) > 24


def test_captions_find_their_pairs_better_than_chance(scenes: str) -> None:
    network, _ = networks.clip4idc("clip4idc-mini")
    scorer = FrameScorer(network)
    changed = [s for s in read_index([scenes]) if s.meta["kind"] == "change"]
    ends = [np.stack([s.image("f00.png"), s.image("f08.png")]) for s in changed]
    captions = [tuple(s.meta["captions"]) for s in changed]
    fit = np.array([[scorer(e, c).bef_inter_sim[:, 1].mean() for e in ends] for c in captions])
    ranks = (fit > np.diag(fit)[:, None]).sum(1)
    assert ranks.mean() < 3.5, "5.5 by chance"


def test_penalties_are_lowest_near_the_middle(tmp_path: Path, prepare: Command) -> None:
    # Each takes 17 renderings; noise does not hide a change.
    made = dataset.Settings(seed=77, size=112, truth=True, samples=4)
    commands.render(tmp_path / "root", 4, made)
    scenes = sequences(tmp_path / "root", tmp_path, prepare)
    scorer = FrameScorer(networks.clip4idc("clip4idc-mini")[0])
    curves = []
    with torch.inference_mode():
        for sample in read_index([scenes]):
            if sample.meta["kind"] == "change":
                names = ["f00.png", *(f"t{i:02d}.png" for i in range(1, 8)), "f08.png"]
                frames = np.stack([sample.image(name) for name in names])
                scores = scorer(frames, tuple(sample.meta["captions"]))
                curves.append(penalties(*scores.similarities()))
    ranks = np.argsort(np.argsort(curves, axis=1), axis=1).mean(axis=0)
    assert ranks[3:6].mean() < ranks[[0, 1, 7, 8]].mean() - 0.5
