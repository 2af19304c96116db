"""A tiny random SAM in a folder, as transformers saves one."""

from __future__ import annotations

from pathlib import Path


def save_small_sam(folder: Path) -> Path:
    """Input of 64 px, two layers; always the same tensors."""
    import torch
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
