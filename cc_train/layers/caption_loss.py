"""Cross-entropy of captions with label smoothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cc_train.text import IGNORED


def caption_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Summed loss of logits [B, L, V] and labels int64 [B, L], `IGNORED` where there is no word.

    KL divergence to a target of 1 − label_smoothing on the word, the rest spread evenly over the
    other V − 1. Source: ProCap's code.
    """
    is_word = labels != IGNORED
    if torch.compiler.is_compiling():  # a count of words that the data decides breaks the graph
        terms = _terms(logits, torch.where(is_word, labels, 0), label_smoothing)
        return torch.where(is_word, terms, 0.0).sum()
    return _terms(logits[is_word], labels[is_word], label_smoothing).sum()


def _terms(logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """The losses [...] of logits [..., V] and words int64 [...]."""
    log_probs = logits.float().log_softmax(-1)
    others = logits.shape[-1] - 1
    picked = log_probs.gather(-1, target[..., None])[..., 0]
    rest = log_probs.sum(-1) - picked
    cross = (1 - label_smoothing) * picked + label_smoothing / others * rest
    entropy = _plogp(1 - label_smoothing) + others * _plogp(label_smoothing / others)
    return entropy - cross


def _plogp(p: float) -> float:
    return p * math.log(p) if p > 0 else 0.0
