"""Captions → CLIP's byte-pair ids, by OpenAI's own tokenizer as `clip-anytorch` packages it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import distribution
from typing import Any

import numpy as np

START, END, PAD = 49406, 49407, 0
CONTEXT = 32
LONGEST = 4000  # characters that are read: a word's time grows with the square of its length
PACKAGE, FILE = "clip-anytorch", "clip/simple_tokenizer.py"


def encode(text: str) -> list[int]:
    """Ids of a caption between the start and the end id, as long as it is."""
    return [START, *_tokenizer().encode(text), END]


def batch(texts: Sequence[str], context: int = CONTEXT) -> np.ndarray:
    """Ids of captions, int64 [N, context], padded with 0; long ones are cut and end in END."""
    ids = np.full((len(texts), context), PAD, np.int64)
    for row, text in enumerate(texts):
        tokens = encode(text[:LONGEST])
        if len(tokens) > context:
            tokens = [*tokens[: context - 1], END]
        ids[row, : len(tokens)] = tokens
    return ids


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    """The tokenizer alone: `import clip` takes pkg_resources, which setuptools no longer has."""
    spec = importlib.util.spec_from_file_location(
        "clip_simple_tokenizer", str(distribution(PACKAGE).locate_file(FILE))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SimpleTokenizer()
