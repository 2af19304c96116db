"""Tiny random vision transformers in folders, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cc_prep.records import Preprocessing

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
WIDE = {**SIZES, "intermediate_size": 48, "patch_size": 16}
# Class and settings of each `model_type`. The positions are of 4 × 4 patches.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_vision_model": ("CLIPVision", {**WIDE, "image_size": 64}),
    "siglip_vision_model": ("SiglipVision", {**WIDE, "image_size": 64}),
    "siglip2_vision_model": ("Siglip2Vision", {**WIDE, "num_patches": 16}),
    "dinov2": ("Dinov2", {**SIZES, "image_size": 56, "patch_size": 14}),
    "dinov2_with_registers": (
        "Dinov2WithRegisters", {**SIZES, "image_size": 64, "num_register_tokens": 3}
    ),
    "dinov3_vit": ("DINOv3ViT", {**WIDE, "image_size": 64, "num_register_tokens": 2}),
}  # fmt: skip


def preprocessing(input_size: tuple[int, int] | None = None) -> Preprocessing:
    """That of these folders."""
    return Preprocessing(layers=(-1,), input_size=input_size, mean=MEAN, std=STD)


def save(folder: Path, kind: str) -> Any:
    """Writes a model of that `model_type` and its image processor; returns the model."""
    import torch
    import transformers

    name, sizes = CONFIGS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**sizes)
        network = getattr(transformers, f"{name}Model")(config).eval()
        for parameter in network.parameters():  # positions and registers begin as zeros or ones
            parameter.data += 0.1 * torch.randn_like(parameter)
    network.save_pretrained(folder)
    transformers.BitImageProcessor(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    return network
