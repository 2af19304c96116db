"""Folders of tiny random vision-language models, as a user has them of real ones.

Config, safetensors, tokenizer and processor are made in memory and saved by transformers itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.small_mllm import skip_old_smolvlm

SENTENCES = ("the red cube moved to the left", "a person is missing in the image after",
             "Describe in one short sentence what changed.")  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOL_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
               "<|im_start|>", "<|im_end|>")  # fmt: skip
QWEN_TOKENS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>",
               "<|im_start|>", "<|im_end|>")  # fmt: skip
TEXT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "initializer_range": 0.3}  # fmt: skip


def smolvlm(folder: Path) -> Path:
    """A SmolVLM: images of 56 px, 4 places each."""
    import transformers as T

    skip_old_smolvlm()
    tokens = _tokenizer(SMOL_TOKENS)
    for name, token in (("image_token", "<image>"), ("global_image_token", "<global-img>"),
                        ("fake_image_token", "<fake_token_around_image>"),
                        ("end_of_utterance_token", "<end_of_utterance>")):  # fmt: skip
        setattr(tokens, name, token)
    size = {"longest_edge": 56}
    images = T.SmolVLMImageProcessor(size=size, max_image_size=size, do_image_splitting=False)
    processor = T.SmolVLMProcessor(
        images, tokens, T.SmolVLMVideoProcessor(), image_seq_len=4,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 56, "patch_size": 14,
              "initializer_range": 0.3}  # fmt: skip
    config = T.AutoConfig.for_model(
        "smolvlm",
        vision_config=vision,
        text_config={**TEXT, "model_type": "llama", "vocab_size": len(tokens)},
        scale_factor=2,
        image_token_id=tokens.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
    )
    return _saved(folder, config, processor)


def qwen(folder: Path) -> Path:
    """A Qwen2.5-VL: images of 56 to 112 px, a place for 28 × 28 px."""
    import transformers as T

    tokens = _tokenizer(QWEN_TOKENS)
    images = T.Qwen2VLImageProcessor(
        patch_size=14, merge_size=2, size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    )
    processor = T.Qwen2_5_VLProcessor(
        images, tokens, T.Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4,
              "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "window_size": 56, "out_hidden_size": 48, "fullatt_block_indexes": [1],
              "initializer_range": 0.3}  # fmt: skip
    number = tokens.convert_tokens_to_ids
    config = T.AutoConfig.for_model(
        "qwen2_5_vl",
        text_config={**TEXT, "vocab_size": len(tokens), "rope_parameters": rope},
        vision_config=vision,
        image_token_id=number("<|image_pad|>"),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number("<|vision_start|>"),
        vision_end_token_id=number("<|vision_end|>"),
    )
    return _saved(folder, config, processor)


def _saved(folder: Path, config: Any, processor: Any) -> Path:
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _tokenizer(special: tuple[str, ...]) -> Any:
    """A byte-level BPE trained on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<pad>", "<s>", "</s>", "<unk>", *special],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", additional_special_tokens=list(special),
    )  # fmt: skip
