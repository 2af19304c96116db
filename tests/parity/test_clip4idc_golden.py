"""Our CLIP4IDC gives the public implementation's embeddings and similarities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cc_prep.errors import UserError
from cc_prep.models.clip4idc import CLIP4IDC, Config
from tests.conftest import golden

FOLDERS = [folder for folder in golden("clip4idc") if (folder / "io.npz").exists()]
KEYS = [folder for folder in golden("clip4idc") if (folder / "keys.json").exists()]


def load(folder: Path) -> tuple[CLIP4IDC, dict[str, torch.Tensor], float]:
    meta = json.loads((folder / "meta.json").read_text())
    tensors = load_file(folder / "weights.safetensors")
    network = CLIP4IDC.from_tensors(tensors, meta["config"]["intra_layers"])
    with np.load(folder / "io.npz") as arrays:
        return network, {k: torch.from_numpy(arrays[k]) for k in arrays}, float(meta["tolerance"])


def test_there_are_golden_vectors() -> None:
    assert FOLDERS
    assert KEYS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
@torch.inference_mode()
def test_same_embeddings(folder: Path) -> None:
    network, io, tolerance = load(folder)
    before, after = (network.visual.encode_frames(io["images"][:, i]) for i in (0, 1))
    pairs = network.visual.encode_pairs(before, after)
    text = network.encode_text(io["tokens"])
    assert torch.allclose(pairs, io["visual"], atol=tolerance)
    assert torch.allclose(text, io["text"], atol=tolerance)
    similarity = network.similarity(text, pairs)
    assert torch.allclose(similarity, io["similarity"], atol=tolerance * network.logit_scale.exp())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
@torch.inference_mode()
def test_scores_are_the_plain_way_s(folder: Path) -> None:
    """The intra blocks once a frame give what 2 F whole passes give."""
    network, io, _ = load(folder)
    frames = io["images"].flatten(0, 1)
    text = network.encode_text(io["tokens"])
    likenesses = network.score_tokens(network.visual.encode_frames(frames), text)
    for i, frame in enumerate(frames):
        for ends, scores in zip(((frames[0], frame), (frame, frames[-1])), likenesses, strict=True):
            tokens = [network.visual.encode_frames(image[None]) for image in ends]
            plain = network.similarity(text, network.visual.encode_pairs(*tokens))[:, 0]
            assert torch.allclose(scores[:, i], plain, atol=1e-3)


@pytest.mark.parametrize("folder", KEYS, ids=lambda f: f.name)
def test_every_key_of_the_real_model(folder: Path) -> None:
    shapes = json.loads((folder / "keys.json").read_text())
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        network = CLIP4IDC(Config.of(tensors))
    ours = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    assert ours == shapes


@pytest.mark.parametrize("folder", FOLDERS[:1], ids=lambda f: f.name)
def test_missing_and_surplus_keys_are_named(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    prefixed = {f"clip.{name}": tensor for name, tensor in tensors.items()}
    prefixed["clip.context_length"] = torch.tensor(77)
    CLIP4IDC.from_tensors(prefixed, 3)
    del tensors["visual.bef_embedding"]
    tensors["visual.other"] = torch.zeros(1)
    with pytest.raises(
        UserError, match=r"missing \(visual\.bef_embedding\).*left over \(visual\.other"
    ):
        CLIP4IDC.from_tensors(tensors)
    with pytest.raises(UserError, match=r"no visual\.positional_embedding"):
        CLIP4IDC.from_tensors({"a": torch.zeros(1)})
