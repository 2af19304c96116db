"""Consensus decoding: of several captions of a pair the one that agrees most with all of them.

The likeliest sentence need not be the one that scores best: two sentences that say nearly the same
share what they are worth. This takes the caption of the largest expected CIDEr, where the captions
of a beam search, with their probabilities, stand for what people might have written (minimum Bayes
risk). CIDEr weighs n-grams by how rare they are among references; here, where there are none, all
n-grams weigh the same.

Source: Kumar and Byrne, "Minimum Bayes-Risk Decoding for Statistical Machine Translation", 2004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cc_prep import unspaced
from cc_prep.errors import UserError
from cc_train.captioner import Caption, CaptionModel, Inputs
from cc_train.evaluation.captions import cider, ptb


class Consensus:
    """A captioner that decodes by consensus: a `CaptionModel`.

    Its captions need a beam search; `Caption.beams` are then in the order of their agreement.
    """

    def __init__(self, captioner: CaptionModel) -> None:
        self.captioner = captioner

    @property
    def inputs(self) -> Inputs:
        return self.captioner.inputs

    @property
    def device(self) -> torch.device:
        return self.captioner.device

    def caption(self, before_after: Tensor, beams: int = 1, *more: Any) -> list[Caption]:
        """Captions of B pairs; see `CaptionModel.caption`.

        Args:
            beams: Captions of a pair among which one is chosen.
            more: What else the captioner reads of each pair.

        Raises:
            UserError: For a captioner without beam search.
        """
        return [agreed(one) for one in self.captioner.caption(before_after, beams, *more)]


def agreed(caption: Caption) -> Caption:
    """The caption with its beams in the order of their agreement, and the text of the first one.

    Raises:
        UserError: For a caption without beams.
    """
    if not caption.beams:
        raise UserError(
            "--decode consensus chooses among several captions, and this captioner gives one",
            "Leave it out",
        )
    texts, scores = zip(*caption.beams, strict=True)
    chances = np.exp(np.array(scores) - max(scores))
    expected = cider.agreement([_tokens(text) for text in texts]) @ (chances / chances.sum())
    ranked = tuple(caption.beams[number] for number in np.argsort(-expected, kind="stable"))
    return replace(caption, text=ranked[0][0], beams=ranked, score=ranked[0][1])


def require_beams(beams: int) -> None:
    """Raises UserError for too few captions to choose among."""
    if beams < 2:
        raise UserError("--decode consensus without --beams", "Give --beams 5, or another number")


def _tokens(caption: str) -> Sequence[str]:
    return unspaced.tokens_of(caption, lambda text: ptb.tokenize(text).split())
