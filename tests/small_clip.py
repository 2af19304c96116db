"""A tiny random CLIP in a folder, as transformers saves one, with a tokenizer made in memory."""

from __future__ import annotations

from pathlib import Path


def save_small_clip(folder: Path) -> Path:
    """Images of 32 px, texts of up to 16 words; always the same tensors."""
    import torch
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
