"""Untrained networks of the right shape, small enough for every test that needs some weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cc_prep.models import clip4idc, vqgan

CODES = 64


def write_clip4idc(path: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = clip4idc.Config(
        embedding=16,
        resolution=32,
        patch=16,
        vision_width=64,
        vision_layers=3,
        intra_layers=2,
        context=32,
        text_width=64,
        text_layers=1,
    )
    words = {"settings": json.dumps({"network": {"intra_layers": 2}})}
    save_file(clip4idc.CLIP4IDC(config).state_dict(), path, metadata=words)
    return path


def write_vqgan(
    path: Path, seed: int = 0, levels: int = 3, attention: tuple[int, ...] = ()
) -> Path:
    """levels: of sizes; a token stands for a square of 2^(levels − 1) px a side. attention: the
    levels that have it."""
    torch.manual_seed(seed)
    config = vqgan.Config(
        channels=32, multipliers=(1,) * levels, blocks=1, latent=8, codes=CODES, code_width=8,
        attention=attention,
    )  # fmt: skip
    network = vqgan.VQGAN(config)
    network.quantize.embedding.weight.data.normal_()
    save_file(network.state_dict(), path)
    return path


def lose_tensor(folder: Path, part: str) -> str:
    """Takes a tensor whose name has this part out of a folder of transformers; its name."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if part in name)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    return name


def settings(folder: Path) -> list[str]:
    """Overrides that make every job use such weights."""
    scorer, tokenizer = folder / "clip4idc-test.safetensors", folder / "vqgan-test.safetensors"
    if not scorer.exists():
        write_clip4idc(scorer)
        write_vqgan(tokenizer)
    return [f"score.weights={scorer}", f"tokenize.weights={tokenizer}"]


def build_options(folder: Path, root: Path, pairs_per_shard: int) -> list[str]:
    """What `cc-prep build synth` is given for the scenes in `root`, with weights in `folder`."""
    values = [
        *settings(folder),
        f"shards.pairs_per_shard={pairs_per_shard}",
        "image_size=64",
        "interpolate.depth=2",
    ]
    return ["--root", str(root), *(part for g in values for part in ("--set", g))]
