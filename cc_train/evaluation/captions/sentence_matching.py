"""How well the sentences of captions match those of references, where nobody knows the facts.

A caption of several changes is a text of sentences, and each reference is the text of one
annotator. Sentences are matched one to one, so that the sum of their similarities is the largest;
of several annotators the one counts with whom they agree best.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cc_train.evaluation.captions import ptb

_END = re.compile(r"(?<!\b[MD]r)(?<!\bMrs)[.;!?]+(?=\s|$)|\n+")


@dataclass(frozen=True)
class SentenceScores:
    """Sums over pairs.

    Attributes:
        matched: Similarities of matched sentences, each 0 to 1.
        predicted, true: Numbers of sentences of the captions and of the references that count.
    """

    matched: float = 0.0
    predicted: int = 0
    true: int = 0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 0 to 1."""
        total = self.predicted + self.true
        return 2 * self.matched / total if total else 1.0

    def __add__(self, other: SentenceScores) -> SentenceScores:
        return SentenceScores(
            self.matched + other.matched,
            self.predicted + other.predicted,
            self.true + other.true,
        )

    def to_json(self) -> dict[str, Any]:
        """The entry `sentences` of scores.json; shares 0 to 1."""
        return {
            "precision": self.matched / self.predicted if self.predicted else 1.0,
            "recall": self.matched / self.true if self.true else 1.0,
            "F1": self.f1,
            "predicted": self.predicted,
            "true": self.true,
        }

    def table(self) -> str:
        """The scores in Markdown."""
        content = self.to_json()
        shares = " | ".join(f"{100 * content[name]:.1f}" for name in ("precision", "recall", "F1"))
        return (
            "| sentences, by ROUGE-L | precision, % | recall, % | F1, % | predicted | true |\n"
            f"{'|---' * 6}|\n| all | {shares} | {self.predicted:,} | {self.true:,} |\n"
        )


def score(
    references: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> SentenceScores:
    """The scores of captions by id.

    Args:
        references: Texts of one or several annotators for each id.
    """
    total = SentenceScores()
    for id, texts in references.items():
        said = sentences(predictions[id])
        total += max((_matched(said, sentences(one)) for one in texts), key=lambda one: one.f1)
    return total


def sentences(text: str) -> list[str]:
    """The sentences of a text that have a word, tokenised."""
    return [tokens for part in _END.split(text) if (tokens := ptb.tokenize(part))]


def _matched(said: Sequence[str], true: Sequence[str]) -> SentenceScores:
    from pycocoevalcap.rouge.rouge import Rouge
    from scipy.optimize import linear_sum_assignment

    if not said or not true:
        return SentenceScores(0.0, len(said), len(true))
    rouge = Rouge()
    alike = np.array([[rouge.calc_score([one], [other]) for other in true] for one in said])
    rows, columns = linear_sum_assignment(alike, maximize=True)
    return SentenceScores(float(alike[rows, columns].sum()), len(said), len(true))
