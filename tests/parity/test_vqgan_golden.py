"""Our VQGAN gives taming-transformers' features, indices and reconstructions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN, Config
from cc_train import configs
from cc_train.systems.vqgan import recipe
from tests.conftest import golden

FOLDERS = [folder for folder in golden("vqgan") if (folder / "io.npz").exists()]
KEYS = [folder for folder in golden("vqgan") if (folder / "keys.json").exists()]


def test_there_are_golden_vectors() -> None:
    assert FOLDERS
    assert KEYS


@pytest.mark.parametrize("configured", [True, False], ids=["with config", "from keys"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
@torch.inference_mode()
def test_same_features_indices_and_images(folder: Path, configured: bool) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    tolerance = float(meta["tolerance"])
    config = meta["config"]["ddconfig"]
    tensors = load_file(folder / "weights.safetensors")
    network, unused = VQGAN.from_tensors(tensors, config if configured else None)
    assert unused == []
    with np.load(folder / "io.npz") as arrays:
        io = {name: torch.from_numpy(arrays[name]) for name in arrays}
    features = network.features(io["images"])
    assert torch.allclose(features, io["encoder"], atol=tolerance)
    assert torch.allclose(network.quant_conv(features), io["quant_conv"], atol=tolerance)
    indices = network.indices(features)
    assert torch.equal(indices.flatten(1), io["indices"])
    rebuilt = network.decode(network.vectors(indices))
    assert torch.allclose(rebuilt, io["reconstruction"], atol=tolerance)
    assert network.config.factor * indices.shape[-1] == io["images"].shape[-1]


def shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    shape_of = json.loads((folder / "keys.json").read_text())[name]
    return {key: tuple(shape) for key, shape in shape_of.items()}


@pytest.mark.parametrize("folder", KEYS, ids=lambda f: f.name)
@pytest.mark.parametrize("size", [256, 224])
def test_every_key_of_the_real_model(folder: Path, size: int) -> None:
    expected = shapes(folder, f"keys_resolution_{size}")
    with torch.device("meta"):
        network = VQGAN(Config.of(expected))
    assert {n: tuple(t.shape) for n, t in network.state_dict().items()} == expected


@pytest.mark.parametrize("folder", KEYS, ids=lambda f: f.name)
def test_a_recipe_goes_on_with_the_real_model(folder: Path) -> None:
    settings = configs.load(recipe.Settings, "vqgan", "vqgan-f16", [], Console(quiet=True))
    assert settings.network == Config.of(shapes(folder, "keys_resolution_256"))


@pytest.mark.parametrize("folder", KEYS, ids=lambda f: f.name)
def test_the_224_px_quirk_is_named(folder: Path) -> None:
    """Keeps away: a 256 px checkpoint that loses its attention in silence."""
    keys = json.loads((folder / "keys.json").read_text())
    meta = json.loads((folder / "meta.json").read_text())
    loss = dict.fromkeys(keys["loss_keys_to_ignore"], (1,))
    every = {**shapes(folder, "keys_resolution_256"), **loss}
    tensors = {name: torch.zeros(shape) for name, shape in every.items()}
    assert VQGAN.from_tensors(tensors)[1] == []
    _, unused = VQGAN.from_tensors(tensors, meta["config_224"]["ddconfig"])
    assert unused == sorted(keys["only_in_256"])
    assert len(unused) == 50


def test_nearest_is_exact_and_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    network = VQGAN(
        Config(channels=32, multipliers=(1, 1), blocks=1, latent=8, codes=50, code_width=6)
    )
    vectors = torch.randn(3, 6, 9, 7)
    distance = torch.cdist(
        vectors.permute(0, 2, 3, 1).reshape(-1, 6).double(),
        network.quantize.embedding.weight.double(),
    )
    whole = network.quantize.nearest(vectors)
    assert torch.equal(whole.flatten(), distance.argmin(1))
    monkeypatch.setattr("cc_prep.models.vqgan.CODES_AT_ONCE", 10)
    assert torch.equal(network.quantize.nearest(vectors), whole)


@pytest.mark.parametrize("folder", FOLDERS[:1], ids=lambda f: f.name)
def test_foreign_weights(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no encoder\.conv_in\.weight"):
        VQGAN.from_tensors({"a": torch.zeros(1)})
    tensors = load_file(folder / "weights.safetensors")
    with pytest.raises(UserError, match=r"decoder\.conv_out\.bias is \(4,\), not \(3,\)"):
        VQGAN.from_tensors({**tensors, "decoder.conv_out.bias": torch.zeros(4)})
    del tensors["quant_conv.bias"]
    with pytest.raises(UserError, match=r"no quant_conv\.bias"):
        VQGAN.from_tensors(tensors)
