"""Phrases as vectors: CLIP's text tower from a local folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cc_prep.steps.entities.regions import embeddings, load_clip, unit
from cc_prep.weights import Located

BATCH = 64  # phrases that the tower takes at a time


def encode(phrases: Sequence[str], folder: Located, template: str, device: str) -> np.ndarray:
    """Vectors float32 [phrases, D], of unit length, of `template` with each phrase in its braces.

    Raises UserError without transformers, or if the folder holds another model.
    """
    import torch

    model, processor = load_clip(folder, device)
    if not phrases:
        return np.zeros((0, model.config.projection_dim), np.float32)
    sentences = [template.replace("{}", phrase) for phrase in phrases]
    rows = []
    with torch.inference_mode():
        for start in range(0, len(sentences), BATCH):
            inputs = processor.tokenizer(
                sentences[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=model.config.text_config.max_position_embeddings,
                return_tensors="pt",
            )
            output = model.get_text_features(
                input_ids=inputs["input_ids"].to(device),
                attention_mask=inputs["attention_mask"].to(device),
            )
            rows.append(embeddings(output))
    return unit(np.concatenate(rows))
