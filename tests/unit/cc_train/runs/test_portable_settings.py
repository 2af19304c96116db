"""Settings of exported networks name no folders, and every setting that may hold one is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from cc_train import systems
from cc_train.runs.portable_settings import place_names, portable

# Settings that take any text and are no paths.
TEXTS = {"family", "targets", "text", "entities"}


def test_paths_are_cut_to_their_last_part_at_any_depth() -> None:
    """Keeps away: names of users and projects in what is published; a prompt that is cut."""
    settings = {
        "vocabulary": "/home/me/secret/words.json",
        "vqgan": "runs/secret/vqgan.safetensors",
        "backbone_weights": None,
        "model": {"weights": "~/secret/model/", "backbone_weights": "file:///secret/w.pt"},
        "weights": {"pixel": 1.0},
        "prompt": {"text": "What changed / moved in secret/b?"},
        "list": [{"weights": "C:\\secret\\x.gguf"}, "and/or"],
    }
    assert portable(settings) == {
        "vocabulary": "words.json",
        "vqgan": "vqgan.safetensors",
        "backbone_weights": None,
        "model": {"weights": "model", "backbone_weights": "w.pt"},
        "weights": {"pixel": 1.0},
        "prompt": {"text": "What changed / moved in secret/b?"},
        "list": [{"weights": "x.gguf"}, "and/or"],
    }
    for name in ("vqgan-mini", "s3://bucket/w.pt"):
        assert portable({"vqgan": name}) == {"vqgan": name}


def free_texts(model: type[BaseModel]) -> Iterator[str]:
    """Names of the settings, at any depth, that take any text."""
    for name, field in model.model_fields.items():
        kinds: list[Any] = [field.annotation, *getattr(field.annotation, "__args__", ())]
        if str in kinds:
            yield name
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from free_texts(kind)


def test_a_new_setting_is_a_path_or_not() -> None:
    """Keeps away: a setting for a file whose folder an export would carry."""
    free = {
        name for system in systems.names() for name in free_texts(systems.recipe(system).Settings)
    }
    # The tokenizer is named by what a run says of its shards.
    assert free == place_names() - {"tokenizer"} | TEXTS
