"""Captions → CLIP's byte-pair ids.

The vocabulary and the merges come with `instant-clip-tokenizer`; the cleaning before them is
OpenAI's: ftfy, HTML entities twice, white space, lower case.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ftfy
import numpy as np

START, END, PAD = 49406, 49407, 0
CONTEXT = 32
_SPECIAL = {"<|startoftext|>": START, "<|endoftext|>": END}
_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in _SPECIAL) + ")")


def clean(text: str) -> str:
    """`text` as CLIP sees it."""
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return re.sub(r"\s+", " ", text).strip().lower()


def encode(text: str) -> list[int]:
    """Ids of a caption between the start and the end id, as long as it is."""
    ids = [START]
    for part in _SPLIT.split(clean(text)):
        # Written-out markers are markers, as in OpenAI's tokenizer.
        ids += [_SPECIAL[part]] if part in _SPECIAL else _tokenizer().encode(part)
    return [*ids, END]


def batch(texts: Sequence[str], context: int = CONTEXT) -> np.ndarray:
    """Ids of captions, int64 [N, context], padded with 0; long ones are cut and end in END."""
    ids = np.full((len(texts), context), PAD, np.int64)
    for row, text in enumerate(texts):
        tokens = encode(text)
        if len(tokens) > context:
            tokens = [*tokens[: context - 1], END]
        ids[row, : len(tokens)] = tokens
    return ids


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from instant_clip_tokenizer import Tokenizer

    return Tokenizer()
