"""What a dry run says is of the training that the same settings would start."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from cc_prep.errors import UserError
from cc_train.systems.mllm import dry_run
from cc_train.systems.mllm.recipe import Settings
from tests.commands import cc_train
from tests.unit.cc_train.systems.test_mllm_estimate import small_blip, small_qwen


def settings(path: Path, **more: object) -> Settings:
    return Settings.model_validate({"model": {"weights": str(path), **more}})


def test_a_folder_with_a_configuration_alone(tmp_path: Path) -> None:
    """Keeps away: a dry run that needs shards, or weights that are not downloaded yet."""
    small_qwen()[0].save_pretrained(tmp_path)
    done = cc_train(
        "mllm", "--dry-run", "--shards", "none", "--out", tmp_path / "run",
        "--set", f"model.weights={tmp_path}", "--set", "loop.batch_size=3",
        "--set", "lora.bridge=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "estimated: 3 pairs of" in done.stdout
    assert "bfloat16" in done.stdout
    assert not (tmp_path / "run").exists()


def test_settings_count(tmp_path: Path) -> None:
    """Keeps away: a table of other settings than the training's."""
    small_blip()[0].save_pretrained(tmp_path)
    plain = dry_run.dry_run(settings(tmp_path))
    assert "without checkpointing" in plain
    text = dry_run.dry_run(settings(tmp_path, checkpointing="non_reentrant", precision="float32"))
    assert "with checkpointing" in text
    assert "bfloat16" in plain
    assert "bfloat16" not in text


def test_pasted_pictures_take_half_of_the_vision_network(tmp_path: Path) -> None:
    """Keeps away: the memory of two pictures for one of both images."""
    small_blip()[0].save_pretrained(tmp_path)
    sizes = [
        float(line.split()[1])
        for images in ("two", "pasted")
        for line in dry_run.dry_run(settings(tmp_path, images=images)).splitlines()
        if line.startswith("activations")
    ]
    assert sizes[1] < 0.9 * sizes[0]


def test_a_language_model_of_text_says_what_is_not_counted(tmp_path: Path) -> None:
    """Keeps away: a count of what is trained that leaves the connector out and says nothing."""
    transformers.LlamaConfig(
        vocab_size=50, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    ).save_pretrained(tmp_path)  # fmt: skip
    assert dry_run.dry_run(settings(tmp_path)).endswith(dry_run.CONNECTOR)
    small_blip()[0].save_pretrained(tmp_path)
    assert dry_run.CONNECTOR not in dry_run.dry_run(settings(tmp_path))


def test_a_processor_s_own_tokens_are_not_guessed(tmp_path: Path) -> None:
    small_blip()[0].save_pretrained(tmp_path)
    with pytest.raises(UserError, match="auto"):
        dry_run.dry_run(settings(tmp_path, family="auto"))
