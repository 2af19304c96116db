"""The job that interpolates, and methods that have weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cc_prep import datasets, manifest, weights
from cc_prep.errors import UserError
from cc_prep.manifest import Interpolate, Manifest
from cc_prep.models.vfiformer import network
from cc_prep.steps import interpolation
from pipelines import job_weights
from pipelines.steps import base
from pipelines.steps.interpolate import Interpolate as Step


class Grey:
    """A network of one number: every frame between the ends has that grey."""

    def __init__(self, weights: Mapping[str, Any], settings: Interpolate, device: str) -> None:
        expected = {"level": torch.zeros(1)}
        tensors = interpolation.fitting(weights, expected, "grey", "Give grey.safetensors")
        self.level = int(tensors["level"])

    def sequence(self, before: np.ndarray, after: np.ndarray, depth: int) -> np.ndarray:
        middle = [np.full_like(before, self.level)] * (2**depth - 1)
        return np.stack([before, *middle, after], axis=1)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """A manifest that asks for the grey network, with its weights in a file."""
    monkeypatch.setitem(interpolation.NETWORKS, "grey", Grey)
    save_file({"level": torch.full((1,), 9.0)}, tmp_path / "grey.safetensors")
    loaded = manifest.load("synth", [], str(tmp_path))
    settings = {"method": "grey", "weights": str(tmp_path / "grey.safetensors"), "depth": 1}
    section = loaded.interpolate.model_copy(update=settings)
    return loaded.model_copy(update={"interpolate": section})


def test_a_new_network_s_weights_are_found_and_loaded(
    dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a second network for which the jobs have to be edited, because they ask for the
    name `rife`."""
    threads: list[int] = []
    monkeypatch.setattr(base, "use_threads", lambda count, tf32: threads.append(count))
    digests = job_weights.of_interpolator(dataset)
    assert [name.partition("@")[0] for name in digests] == ["grey.safetensors"]
    step = Step(dataset, digests, "cpu")
    assert step.meta["weights"] in digests
    ends = np.zeros((1, 2, 2, 3), np.uint8)
    assert step.interpolator.sequence(ends, ends, 1)[0, :, 0, 0, 0].tolist() == [0, 9, 0]
    assert threads == [dataset.interpolate.threads]
    step.compute([], [])
    assert len(threads) == 2, "before each batch too"


def test_weights_of_another_network_are_refused(dataset: Manifest, tmp_path: Path) -> None:
    save_file({"other": torch.zeros(1)}, tmp_path / "grey.safetensors")
    with pytest.raises(UserError, match="these are no grey weights: no level in them"):
        job_weights.of_interpolator(dataset)


def test_a_method_without_weights_needs_none() -> None:
    loaded = manifest.load("synth", ["interpolate.method=dis"], "data")
    assert job_weights.of_interpolator(loaded) == {}


def test_named_weights_of_another_network_are_refused_before_they_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: RIFE's weights, which are the default, in a network that has no such tensors."""
    monkeypatch.setattr(weights, "locate", lambda name: pytest.fail(f"{name} was fetched"))
    loaded = manifest.load("synth", ["interpolate.method=vfiformer-small"], "data")
    with pytest.raises(UserError, match=r"small takes no weights named rife-v4\.0"):
        job_weights.of_interpolator(loaded)


def test_vfiformer_in_its_job(
    tmp_path: Path, synth_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: frames of a pair that depend on which pairs its worker had before."""
    sizes = {"width": 8, "flow_widths": (8, 8, 8), "contexts": (4, 6, 8, 10)}
    config = replace(network.VARIANTS["vfiformer"], **sizes)
    monkeypatch.setitem(network.VARIANTS, "vfiformer", config)
    torch.manual_seed(0)
    tensors = network.VFIformer(config).state_dict()
    torch.save({f"module.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "net.pth")
    settings = ("method=vfiformer", f"weights={tmp_path / 'net.pth'}", "depth=1", "threads=1")
    loaded = manifest.load("synth", [f"interpolate.{value}" for value in settings], str(synth_root))
    loaded = loaded.model_copy(update={"image_size": 48})
    pairs = list(datasets.pairs(loaded, "train"))[:3]
    digests = job_weights.of_interpolator(loaded)
    in_one = Step(loaded, digests, "cpu")
    assert in_one.pairs_per_batch == 1
    samples = [in_one([pair])[0] for pair in pairs]
    assert [Step(loaded, digests, "cpu")([pair])[0] for pair in pairs] == samples
    assert in_one.meta == {
        "method": "vfiformer", "depth": 1, "weights": next(iter(digests))
    }  # fmt: skip
