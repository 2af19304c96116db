"""Losses that make regions and captions agree: three terms, each of which can be left out.

pointing: the words of a changed pair attend to the changed area. contrast: a pair's mask fits its
own sentence better than those of others. agreement: mask and sentence agree on whether anything
changed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_train.distributed import Ranks
from cc_train.systems.chain.masks import LEAST, Evidence
from cc_train.systems.chain.regions import UP, RegionInputs

TEMPERATURE = 0.1


class Consistency(nn.Module):
    """The networks of the terms; captioning does not need them.

    Args:
        width: Of the differences.
        text: Of the states of words.
    """

    def __init__(self, width: int, text: int, shared: int = 64) -> None:
        super().__init__()
        self.of_mask, self.of_text = nn.Linear(width, shared), nn.Linear(text, shared)
        self.nothing = nn.Parameter(torch.randn(width))
        self.changed = nn.Linear(text, 1)

    def embedded(
        self, inputs: RegionInputs, masks: Evidence, states: Tensor, is_word: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Unit vectors [P, shared] of what the mask covers, and of the sentence.

        An empty mask yields a learned vector.

        Args:
            states: [P, L, text], used where is_word, bool [P, L], is true.
        """
        chance = masks.chance.amax((1, 2))[:, None]  # [P, 1, h, w]
        weights = F.avg_pool2d(chance, UP).flatten(1)[..., None]  # [P, places, 1]
        gathered = (weights * inputs.places).sum(1) + self.nothing
        under = gathered / (weights.sum(1) + 1)
        sentence = (states * is_word[..., None]).sum(1) / is_word.sum(1, keepdim=True).clamp(min=1)
        return F.normalize(self.of_mask(under), dim=1), F.normalize(self.of_text(sentence), dim=1)


def pointing(looked: Tensor, mask: Tensor, words: Tensor, grid: tuple[int, int]) -> Tensor:
    """−log of the share of attention inside the mask, summed over pairs that have words.

    Args:
        looked: Attention of each position to the places, [P, L, rows · columns].
        mask: Class ids uint8 [P, H, W], none empty.
        words: Whether a position is a word, bool [P, L].
    """
    inside = F.adaptive_max_pool2d((mask[:, None] > 0).float(), grid).flatten(1)
    mean = (looked * words[..., None]).sum(1)
    share = (mean * inside).sum(1) / mean.sum(1).clamp(min=LEAST)
    return -share.clamp(min=LEAST).log().sum()


def contrast(under: Tensor, sentence: Tensor, ids: Tensor, changed: Tensor, ranks: Ranks) -> Tensor:
    """Cross-entropy of each mask's own sentence among those of all ranks, and the reverse.

    Args:
        under, sentence: Unit vectors [P, E].
        ids: Of the sentences, int64 [P, L].
        changed: Bool [P]. Sentences that are true of a pair are no negatives for it: those with the
            same words, and for an unchanged pair the sentences of all other unchanged pairs.
    """
    under, sentence = ranks.gather(under.float()), ranks.gather(sentence.float())
    ids = ranks.gather(ids.float())  # the backward pass wants floating point; ids are far below 2²⁴
    still = ranks.gather(1.0 - changed.float()) > 0
    if not len(under):
        return under.sum()
    same = (ids[:, None] == ids).all(2) | (still[:, None] & still)
    same &= ~torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    # Products in bfloat16 would round what the temperature makes large.
    with torch.autocast(under.device.type, enabled=False):
        scores = (under @ sentence.T / TEMPERATURE).masked_fill(same, float("-inf"))
    own = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def agreement(sentence: Tensor, unchanged: Tensor) -> Tensor:
    """Each side's binary cross-entropy with the other's chance of a change, summed over pairs.

    Args:
        sentence: Logits of a change by the sentence, [P].
        unchanged: log-probability of no region, [P].
    """
    log_q = unchanged.float().clamp(max=-LEAST)
    log_p = torch.log(-torch.expm1(log_q))
    seen = -torch.expm1(log_q)
    to_seen = F.binary_cross_entropy_with_logits(sentence.float(), seen.detach(), reduction="sum")
    chance = sentence.float().sigmoid().detach()
    to_sentence = -(chance * log_p + (1 - chance) * log_q).sum()
    return (to_seen + to_sentence) / 2
