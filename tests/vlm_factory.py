"""Tiny random vision-language models, in folders as save_pretrained writes them; no network."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

SENTENCES = (
    "the red cube moved to the left",
    "the small sphere is gone",
    "there is no change",
    "Describe the change between the before image and the after image. Entity: red cube.",
    "Before: After:",
)
SIZE, PATCH = 56, 14
QUERIES = 4
MARKS: dict[str, tuple[str, ...]] = {
    "instructblip": ("<image>",),
    "blip2": ("<image>",),
    "internvl": ("<IMG_CONTEXT>", "<img>", "</img>"),
    "smolvlm": ("<image>", "<fake_token_around_image>", "<global-img>"),
    "qwen2_5_vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    "qwen3_vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    "lm": (),
}
SMOLVLM_NAMES = ("image_token", "fake_image_token", "global_image_token")
TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}IMAGE"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Wide enough that attention isn't uniform: InstructBLIP's own 1e-10 leaves nothing to control.
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIZE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 48,
    "initializer_range": 0.2,
}


def tokenizer(marks: tuple[str, ...] = ()) -> Any:
    """Byte pairs of a few sentences, with Llama's marks and those of a family."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    byte_pairs = Tokenizer(models.BPE())
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<unk>", *marks]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    byte_pairs.train_from_iterator(SENTENCES, trainer)
    byte_pairs.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(marks),
    )


def question_tokenizer() -> Any:
    """Word pieces with BERT's marks, as a Q-Former reads."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    word_pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    word_pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=marks, show_progress=False)
    word_pieces.train_from_iterator(SENTENCES, trainer)
    word_pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=word_pieces, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip


def config(family: str, words: Any, questions: Any, **more: Any) -> Any:
    """The configuration of a tiny model of a family. more: settings of its language model."""
    import transformers as hf

    text = {**TEXT, "vocab_size": len(words), **more}
    image = words.convert_tokens_to_ids(MARKS[family][0]) if MARKS[family] else None
    if family in ("instructblip", "blip2"):
        sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "intermediate_size": 48, "encoder_hidden_size": 32}  # fmt: skip
        tokens = {"num_query_tokens": QUERIES, "image_token_id": image, "image_token_index": image}
        if family == "instructblip":
            return hf.InstructBlipConfig(
                vision_config=hf.InstructBlipVisionConfig(**VISION),
                qformer_config=hf.InstructBlipQFormerConfig(vocab_size=len(questions), **sizes),
                text_config=hf.LlamaConfig(**text),
                **tokens,
            )
        opt = {"vocab_size": len(words), "hidden_size": 48, "word_embed_proj_dim": 48,
               "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "dropout": 0.0,
               "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
        return hf.Blip2Config(
            vision_config=hf.Blip2VisionConfig(**VISION),
            qformer_config=hf.Blip2QFormerConfig(**sizes),
            text_config=hf.OPTConfig(**opt),
            **tokens,
        )
    if family == "internvl":
        eyes = {**VISION, "model_type": "internvl_vision", "image_size": [SIZE, SIZE],
                "patch_size": [PATCH, PATCH]}  # fmt: skip
        return hf.AutoConfig.for_model(
            "internvl", vision_config=eyes, text_config={**text, "model_type": "qwen2"},
            image_token_id=image, image_seq_length=4, downsample_ratio=0.5,
        )  # fmt: skip
    if family == "smolvlm":
        return hf.AutoConfig.for_model(
            "smolvlm", vision_config=VISION, text_config={**text, "model_type": "llama"},
            scale_factor=2, image_token_id=image, pad_token_id=0,
        )  # fmt: skip
    if family == "lm":
        return hf.LlamaConfig(**text)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
    eyes = dict(QWEN_VISION)
    if family == "qwen2_5_vl":
        eyes |= {"window_size": 56, "fullatt_block_indexes": [1]}
    else:
        eyes |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
        text |= {"head_dim": 12}
        rope |= {"mrope_interleaved": True}
    ids = words.convert_tokens_to_ids(list(MARKS[family]))
    return hf.AutoConfig.for_model(
        family, text_config={**text, "rope_parameters": rope}, vision_config=eyes,
        image_token_id=ids[0], vision_start_token_id=ids[1], vision_end_token_id=ids[2],
        video_token_id=ids[3],
    )  # fmt: skip


def skip_old_smolvlm() -> None:
    """Skips a test where transformers cannot run a small SmolVLM, as on Python 3.10."""
    if Version(version("transformers")) < Version("5.21"):
        pytest.skip("SmolVLM's image tokens come in groups before transformers 5.21")


def save(folder: Path, family: str, seed: int = 0, **more: Any) -> Path:
    """The folder of a tiny random model of a family in `folder`; one that is there already stays.

    Other tests read the models in the fixture `folder` too: one that is changed goes elsewhere.
    more: settings of its language model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if family == "smolvlm":
        skip_old_smolvlm()
    path = folder / family
    if path.exists():
        return path
    words, questions = tokenizer(MARKS[family]), question_tokenizer()
    torch.manual_seed(seed)
    make = AutoModelForCausalLM if family == "lm" else AutoModelForImageTextToText
    model = make.from_config(config(family, words, questions, **more))
    if family in ("instructblip", "blip2"):  # zeros would see all places alike
        torch.nn.init.normal_(model.query_tokens, std=0.5)
    model.save_pretrained(path)
    words.save_pretrained(path)
    if family == "instructblip":
        questions.save_pretrained(path / "qformer_tokenizer")
    mean = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (path / "preprocessor_config.json").write_text(json.dumps(mean))
    return path


def captioner(folder: Path, family: str, seed: int = 0, **settings: Any) -> Any:
    """A captioner of a tiny model in evaluation.

    seed: of what is trained. settings: sections of `recipe.Settings`.
    """
    from cc_train.systems.mllm import loading, recipe

    loading.require()
    model = {"weights": str(save(folder, family)), **settings.pop("model", {})}
    if family.startswith("qwen"):
        model.setdefault("image_size", SIZE)
    brief = {"max_new_tokens": 12, "repetition_penalty": 1.0}
    values = {"model": model, "generation": brief, **settings}
    chosen = recipe.Settings.model_validate(values)
    base = loading.read(Path(model["weights"]), chosen.model.family)
    torch.manual_seed(seed)
    return recipe.make(chosen, base, {}, None).eval()


def pairs(
    count: int = 2, seed: int = 0, size: int = SIZE, width: int | None = None
) -> torch.Tensor:
    """Noise in the place of images, uint8 [B, 2, H, W, 3]; square where no width is given."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 2, size, width or size, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def batch(one: Any, captions: list[str], entities: list[list[str]], **more: Any) -> dict[str, Any]:
    """A batch of a captioner, of noise."""
    from cc_train.systems.mllm import prompts

    tokenizer = one.prompt_tokenizer
    questions = [tokenizer.question(names) for names in entities]
    return {
        "before_after": pairs(len(captions), 0, *one.inputs.size),
        **prompts.training_batch(
            questions, [tokenizer.caption(text) for text in captions], tokenizer.pad
        ),
        **tokenizer.bridge(entities, one.shape.images),
        **more,
    }


def add_processor(path: Path, longest: int = SIZE) -> Path:
    """The folder that `save` made of a SmolVLM or a Qwen2.5-VL, now with a processor in it.

    longest: its images have at most so many px a side.
    """
    import transformers as hf

    words = tokenizer(MARKS[path.name])
    if path.name == "smolvlm":
        for name, token in zip(SMOLVLM_NAMES, MARKS[path.name], strict=True):
            setattr(words, name, token)
        words.end_of_utterance_token = "</s>"
        size = {"longest_edge": longest}
        processor: Any = hf.SmolVLMProcessor(
            hf.SmolVLMImageProcessor(size=size, max_image_size=size, do_image_splitting=False),
            words, hf.SmolVLMVideoProcessor(), image_seq_len=4,
            chat_template=TEMPLATE.replace("IMAGE", "<image>"),
        )  # fmt: skip
    else:
        size = {"shortest_edge": SIZE * SIZE, "longest_edge": longest * longest}
        processor = hf.Qwen2_5_VLProcessor(
            hf.Qwen2VLImageProcessor(
                patch_size=PATCH, merge_size=2, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3
            ),
            words, hf.Qwen2VLVideoProcessor(),
            chat_template=TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
        )  # fmt: skip
    processor.save_pretrained(path)
    return path


def save_chat(folder: Path, family: str) -> Path:
    """The folder of a model with a processor, whose answers to different images differ."""
    return add_processor(save(folder, family, initializer_range=0.5))
