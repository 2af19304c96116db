"""Untrained networks of the right shape, in files of ours and in folders of transformers.

Small enough for every test that needs some weights, and always the same tensors.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cc_prep.models import clip4idc, vqgan
from cc_prep.records import Preprocessing

CODES = 64
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
WIDE = {**SIZES, "intermediate_size": 48, "patch_size": 16}
# Vision transformers: class and settings of each `model_type`. The positions are of 4 × 4 patches.
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_vision_model": ("CLIPVision", {**WIDE, "image_size": 64}),
    "siglip_vision_model": ("SiglipVision", {**WIDE, "image_size": 64}),
    "siglip2_vision_model": ("Siglip2Vision", {**WIDE, "num_patches": 16}),
    "dinov2": ("Dinov2", {**SIZES, "image_size": 56, "patch_size": 14}),
    "dinov2_with_registers": (
        "Dinov2WithRegisters", {**SIZES, "image_size": 64, "num_register_tokens": 3}
    ),
    "dinov3_vit": ("DINOv3ViT", {**WIDE, "image_size": 64, "num_register_tokens": 2}),
}  # fmt: skip


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


def write_sam(folder: Path) -> Path:
    """A SAM in a folder: input of 64 px, two layers."""
    from transformers import (
        SamConfig,
        SamImageProcessor,
        SamMaskDecoderConfig,
        SamModel,
        SamProcessor,
        SamPromptEncoderConfig,
        SamVisionConfig,
    )

    vision = SamVisionConfig(
        hidden_size=32, output_channels=16, num_hidden_layers=2, num_attention_heads=2,
        image_size=64, patch_size=8, mlp_dim=32, num_pos_feats=8, window_size=4,
        global_attn_indexes=[1],
    )  # fmt: skip
    prompts = SamPromptEncoderConfig(
        hidden_size=16, image_size=64, patch_size=8, mask_input_channels=4
    )
    decoder = SamMaskDecoderConfig(
        hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2,
        iou_head_hidden_dim=16,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = SamConfig(
            vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder
        )
        SamModel(config).eval().save_pretrained(folder)
    images = SamImageProcessor(
        size={"longest_edge": 64}, pad_size={"height": 64, "width": 64},
        mask_size={"longest_edge": 16}, mask_pad_size={"height": 16, "width": 16},
    )  # fmt: skip
    SamProcessor(images).save_pretrained(folder)
    return folder


def write_clip(folder: Path) -> Path:
    """A CLIP in a folder: images of 32 px, texts of up to 16 words, which it splits at blanks."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        PreTrainedTokenizerFast,
    )

    special = ["<pad>", "<unk>", "<start>", "<end>"]
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=special)
    words.train_from_iterator(["a photo of a red cube , a green ball and a blue car"], trainer)
    start, end = (words.token_to_id(name) for name in ("<start>", "<end>"))
    words.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", start), ("<end>", end)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<start>",
        eos_token="<end>",
    )  # fmt: skip
    text = {
        "vocab_size": words.get_vocab_size(), "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
        "bos_token_id": start, "eos_token_id": end, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
        CLIPModel(config).eval().save_pretrained(folder)
    size = {"height": 32, "width": 32}
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def preprocessing(input_size: tuple[int, int] | None = None) -> Preprocessing:
    """That of the folders of `write_backbone`."""
    return Preprocessing(layers=(-1,), input_size=input_size, mean=MEAN, std=STD)


def write_backbone(folder: Path, kind: str) -> Any:
    """A vision transformer of that `model_type` and its image processor; returns the model."""
    import transformers

    name, sizes = BACKBONES[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**sizes)
        network = getattr(transformers, f"{name}Model")(config).eval()
        for parameter in network.parameters():  # positions and registers begin as zeros or ones
            parameter.data += 0.1 * torch.randn_like(parameter)
    network.save_pretrained(folder)
    transformers.BitImageProcessor(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    return network


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


class Payload:
    """A pickle that leaves a file behind where it is executed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)
