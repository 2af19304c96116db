"""Sizes of a training: parameters to the last one, activations against what a step really keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from cc_prep.errors import UserError
from cc_train.systems.mllm import estimate as sizes
from cc_train.systems.mllm import loading
from cc_train.systems.mllm.estimate import GIB, Estimate, estimate
from tests import vlm_factory

_QKV = r"self_attn\.(q_proj|k_proj|v_proj)"
BLIP = {
    "vision": (r"vision_model\.encoder\.layers\.\d+\.self_attn\.qkv", 4),
    "bridge": (
        r"qformer\.encoder\.layer\.\d+\.(attention|crossattention)\.attention\.(query|key|value)",
        4,
    ),
    "language": (rf"language_model\.model\.layers\.\d+\.{_QKV}", 8),
}
SMOL = {
    "vision": (rf"model\.vision_model\.encoder\.layers\.\d+\.{_QKV}", 4),
    "bridge": (r"model\.connector\.modality_projection\.proj", 4),
    "language": (rf"model\.text_model\.layers\.\d+\.{_QKV}", 8),
}
QWEN = {
    "vision": (r"model\.visual\.blocks\.\d+\.attn\.qkv", 4),
    "bridge": (r"model\.visual\.merger\.mlp\.[02]", 4),
    "language": (rf"model\.language_model\.layers\.\d+\.{_QKV}", 8),
}


@pytest.fixture(scope="module")
def vicuna() -> Any:
    """InstructBLIP with Vicuna-7B, by its published sizes."""
    vision = {"hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39,
              "num_attention_heads": 16, "image_size": 224, "patch_size": 14}  # fmt: skip
    bridge = {"hidden_size": 768, "num_hidden_layers": 12, "encoder_hidden_size": 1408,
              "cross_attention_frequency": 2, "vocab_size": 30523}  # fmt: skip
    text = {"vocab_size": 32001, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32}  # fmt: skip
    return T.InstructBlipConfig(
        vision_config=T.InstructBlipVisionConfig(**vision),
        qformer_config=T.InstructBlipQFormerConfig(**bridge),
        text_config=T.LlamaConfig(**text),
        num_query_tokens=32,
        image_token_index=32000,
    )


@pytest.fixture(scope="module")
def davir(vicuna: Any) -> Estimate:
    return estimate(vicuna, BLIP, batch_size=16, precision="bfloat16", sequence_length=130)


def test_davirs_model_has_its_known_sizes(davir: Estimate) -> None:
    """Keeps away: a part that is counted twice or not at all, or adapters on other layers.

    7.91 billion parameters and adapters of 0.88, 0.36 and 6.29 million were counted by peft on the
    same network.
    """
    parts = {part.name: part for part in davir.parts}
    assert list(parts) == ["vision", "bridge", "language"]
    assert davir.parameters / 1e9 == pytest.approx(7.91, abs=0.005)
    assert parts["vision"].parameters / 1e6 == pytest.approx(986, abs=0.5)
    assert davir.weights / GIB == pytest.approx(14.7, abs=0.05)
    trainable = {name: round(part.trainable / 1e6, 2) for name, part in parts.items()}
    assert trainable == {"vision": 0.88, "bridge": 0.36, "language": 6.29}
    assert davir.trainable / 1e6 == pytest.approx(7.53, abs=0.005)
    assert davir.gradients == davir.adapters == 4 * davir.trainable
    assert davir.optimizer == 8 * davir.trainable


def test_the_table_says_it(davir: Estimate) -> None:
    lines = davir.table().splitlines()
    assert lines[4].split() == ["all", "7,913.21", "M", "7.53", "M", "0.095", "%", "are", "trained"]
    assert lines[6].split() == ["weights", "14.74", "GiB", "bfloat16"]
    assert "16 pairs of 130 tokens, without checkpointing" in davir.table()


def test_what_fits_where(vicuna: Any, davir: Estimate) -> None:
    """The paper trained on one card of 80 GB; two pairs with checkpointing fit into 24 GB."""
    assert davir.total < 80e9 * 0.9
    small = estimate(vicuna, BLIP, batch_size=2, checkpointing=True, sequence_length=130)
    assert small.total < 24e9 * 0.9
    assert estimate(vicuna, BLIP, batch_size=8, sequence_length=130).total > 24e9


def small_blip() -> tuple[Any, dict[str, Any]]:
    config = T.InstructBlipConfig(
        vision_config=T.InstructBlipVisionConfig(
            hidden_size=192, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
            image_size=112, patch_size=14),
        qformer_config=T.InstructBlipQFormerConfig(
            hidden_size=96, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
            encoder_hidden_size=192, vocab_size=100),
        text_config=T.LlamaConfig(
            vocab_size=100, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
            num_attention_heads=4),
        num_query_tokens=16, image_token_index=99, image_token_id=99,
    )  # fmt: skip
    ids = torch.cat((torch.full((2, 32), 99), torch.randint(4, 90, (2, 48))), 1)
    words = torch.randint(4, 90, (4, 1))
    return config, {"input_ids": ids, "pixel_values": torch.randn(4, 3, 112, 112),
                    "qformer_input_ids": words}  # fmt: skip


def small_smolvlm() -> tuple[Any, dict[str, Any]]:
    config = T.AutoConfig.for_model(
        "smolvlm",
        vision_config={"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4,
                       "num_attention_heads": 4, "image_size": 112, "patch_size": 14},
        text_config={"model_type": "llama", "vocab_size": 100, "hidden_size": 256,
                     "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4,
                     "num_key_value_heads": 4, "pad_token_id": 0},
        scale_factor=2, image_token_id=99, pad_token_id=0,
    )  # fmt: skip
    ids = torch.cat((torch.full((2, 32), 99), torch.randint(4, 90, (2, 48))), 1)
    return config, {"input_ids": ids, "pixel_values": torch.randn(2, 2, 3, 112, 112)}


def small_qwen() -> tuple[Any, dict[str, Any]]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    config = T.AutoConfig.for_model(
        "qwen2_5_vl",
        vision_config={"depth": 4, "hidden_size": 192, "intermediate_size": 512, "num_heads": 4,
                       "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
                       "window_size": 56, "out_hidden_size": 256, "fullatt_block_indexes": [3]},
        text_config={"vocab_size": 100, "hidden_size": 256, "intermediate_size": 688,
                     "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
                     "rope_parameters": rope},
        image_token_id=99, video_token_id=98, vision_start_token_id=97, vision_end_token_id=96,
    )  # fmt: skip
    image = [97, *[99] * 16, 96]
    ids = torch.cat((torch.tensor([image * 2] * 2), torch.randint(4, 90, (2, 44))), 1)
    patches = torch.randn(4 * 64, 3 * 2 * 14 * 14)
    grid = torch.tensor([[1, 8, 8]] * 4)
    return config, {"input_ids": ids, "pixel_values": patches, "image_grid_thw": grid,
                    "mm_token_type_ids": (ids == 99).int()}  # fmt: skip


SMALL = {"blip": (small_blip, BLIP), "smolvlm": (small_smolvlm, SMOL), "qwen": (small_qwen, QWEN)}


def kept_bytes(config: Any, lora: dict[str, tuple[str, int]], inputs: dict[str, Any]) -> int:
    """Bytes that a training step of a real network keeps for its backward pass."""
    import peft

    torch.manual_seed(0)
    model = T.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.train()
    # Without dropout: its mask takes a byte a value on a GPU, and four on a CPU.
    adapters = peft.LoraConfig(
        r=8, lora_dropout=0.0, target_modules="|".join(f"({regex})" for regex, _ in lora.values()),
        rank_pattern=dict(lora.values()),
    )  # fmt: skip
    peft.inject_adapter_in_model(adapters, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    constant = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(),
                *model.buffers(), *inputs.values())}  # fmt: skip
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constant:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    pixels = {name: value.bfloat16() if value.is_floating_point() else value
              for name, value in inputs.items()}  # fmt: skip
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**pixels, labels=inputs["input_ids"]).loss
    loss.backward()
    return sum(sizes.values())


@pytest.mark.parametrize("name", SMALL)
def test_activations_are_about_what_a_step_keeps(name: str) -> None:
    """Keeps away: an estimate that is off by a factor, and a training that runs out of memory."""
    if name == "smolvlm":
        vlm_factory.skip_old_smolvlm()
    make, lora = SMALL[name]
    config, inputs = make()
    real = kept_bytes(config, lora, inputs)
    guess = estimate(
        config, lora, batch_size=2, precision="bfloat16", sequence_length=80, image_size=112
    ).activations
    assert 0.9 < guess / real < 1.25  # dropout's masks are in the guess


def activations(lora: dict[str, tuple[str, int]], **options: Any) -> int:
    return estimate(small_blip()[0], lora, **{"sequence_length": 80, **options}).activations


def test_what_activations_depend_on() -> None:
    """Keeps away: a batch, a precision or checkpointing that changes no figure."""
    whole = activations(BLIP)
    assert activations(BLIP, batch_size=32) == 2 * whole
    assert whole < activations(BLIP, sequence_length=160) < 2 * whole
    assert whole < activations(BLIP, precision="float32") < 2 * whole
    assert activations(BLIP, checkpointing=True) < whole / 2
    assert activations(BLIP, image_size=224) > 2 * whole
    spared = whole - activations(BLIP, caption_length=30)
    assert spared == 16 * (80 - 30) * 100 * (2 + 3 * 4)  # logits of 100 words
    assert activations(BLIP, caption_length=500) == whole


def test_models_of_any_size_are_taken_at_that_of_the_training() -> None:
    """Keeps away: memory for a quarter of the patches that a training has."""
    config = small_qwen()[0]  # 14 px a patch, 2 × 2 patches a place
    default = estimate(config, QWEN, sequence_length=80).activations
    assert default == estimate(config, QWEN, sequence_length=80, image_size=16 * 28).activations
    assert default > estimate(config, QWEN, sequence_length=80, image_size=224).activations


def test_parts_before_the_first_adapter_keep_nothing() -> None:
    """Keeps away: a language model's adapters that seem to need the activations of the eyes."""
    frozen = {part: (regex, 0) for part, (regex, _) in BLIP.items()}
    assert activations(frozen) == 0
    last, last_two = ({**frozen, **{name: BLIP[name] for name in names}} for names in
                      (["language"], ["bridge", "language"]))  # fmt: skip
    assert 0 < activations(last) < activations(last_two) < activations(BLIP)
    small = estimate(small_blip()[0], frozen)
    assert small.trainable == small.adapters == small.optimizer == 0
    assert small.total == small.weights == 2 * small.parameters


def test_tied_weights_count_once() -> None:
    config, _ = small_smolvlm()
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
    tied = estimate(config, {})
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    assert estimate(config, {}).parameters - tied.parameters == 100 * 256


def test_a_folder_needs_its_config_alone(tmp_path: Path) -> None:
    """Keeps away: a dry run that reads the weights, for which nobody has the memory yet."""
    config, _ = small_qwen()
    config.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert estimate(loading.read_config(tmp_path), QWEN) == estimate(config, QWEN)


def test_a_model_of_text_alone_is_a_language_model() -> None:
    """Keeps away: no dry run for a language model that sees features of another network."""
    config = T.LlamaConfig(vocab_size=50, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                           num_attention_heads=2, tie_word_embeddings=True)  # fmt: skip
    small = estimate(config, {"language": BLIP["language"]})
    [part] = small.parts
    assert (part.name, part.trainable) == ("language", 2 * 3 * 8 * (8 + 8))
    assert part.parameters == 50 * 8 + 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8
    assert small.activations > 0


def test_each_part_by_its_names() -> None:
    names = {
        "model.visual.merger.mlp.0": "bridge",
        "model.visual.blocks.0.attn.qkv": "vision",
        "query_tokens": "bridge",
        "vision_model.post_layernorm.weight": "vision",
        "model.connector.modality_projection.proj": "bridge",
        "model.multi_modal_projector.linear_1": "bridge",
        "model.vision_tower.encoder.layer.0": "vision",
        "model.text_model.norm": "language",
        "lm_head": "language",
        "elsewhere": "other",
    }
    assert {name: sizes.part_of(name) for name in names} == names


def test_mistakes_get_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(UserError, match="no-such-model"):
        loading.read_config(tmp_path)
    with pytest.raises(UserError, match="vit: no language model"):
        estimate(T.ViTConfig(num_hidden_layers=1), {})
    with pytest.raises(UserError, match=r"no layer .* is named as its vision adapters need"):
        estimate(small_qwen()[0], {"vision": (r"eyes\.\d+", 4)})
