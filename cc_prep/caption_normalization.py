"""Normalisation of captions, where a manifest asks for it: `captions.normalise`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Literal

Step = Literal["nfc", "ascii_quotes", "spaces", "lowercase", "full_stop"]

_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})
STEPS: dict[Step, Callable[[str], str]] = {
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "ascii_quotes": lambda text: text.translate(_QUOTES),
    "spaces": lambda text: re.sub(r"\s+", " ", text).strip(),
    "lowercase": str.lower,
    "full_stop": lambda text: re.sub(r"\s*[.!]+\s*$", "", text),
}


def normalize(captions: Iterable[str], steps: Iterable[Step]) -> tuple[str, ...]:
    """The captions after all steps in their order; those of which nothing is left are dropped."""
    texts = list(captions)
    for step in steps:
        texts = [STEPS[step](caption) for caption in texts]
    return tuple(caption for caption in texts if caption.strip())
