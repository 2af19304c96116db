"""Masks of a pair from those of its regions, and their losses against the true masks.

The chance that a pixel changed is a noisy-or: some region with that class covers it.

    M[c] = 1 − Π over regions of (1 − P(region is of class c) · σ(its mask))

It is kept as evidence u = −log(1 − M), which adds up over regions and over the two images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-6  # of evidence, and of a chance


@dataclass(frozen=True)
class Evidence:
    """−log(1 − chance of a change) at every pixel, float32 [P, K, 2, h, w], before and after."""

    values: Tensor

    @property
    def sides(self) -> Tensor:
        """Evidence for the union of both images, for before and for after, [P, K, 3, h, w]."""
        return torch.cat((self.values.sum(2, keepdim=True), self.values), dim=2)

    @property
    def chance(self) -> Tensor:
        """Probability of a change at each place, [P, K, 2, h, w], 0 to 1."""
        return -torch.expm1(-self.values)

    def logits(self, size: tuple[int, int]) -> Tensor:
        """Logits of `sides` at a size (height, width) in px, [P, K, 3, H, W]."""
        coarse = log_odds(self.sides)
        fine = F.interpolate(coarse.flatten(1, 2), size=size, mode="bilinear", align_corners=False)
        return fine.unflatten(1, coarse.shape[1:3])


def evidence(classes: Tensor, masks: Tensor) -> Evidence:
    """The evidence of N regions: logits of classes [P, N, 1 + K] (index 0 is "none") and masks.

    Args:
        masks: Logits [P, N, 2, h, w].
    """
    log_p = classes.float().log_softmax(2)[..., 1:]  # [P, N, K]
    log_q = torch.log(-torch.expm1(log_p.clamp(max=-LEAST)))
    m = masks.float()[:, :, None]  # [P, N, 1, 2, h, w]
    log_p, log_q = log_p[..., None, None, None], log_q[..., None, None, None]
    # log(1 − p σ(m)) = log(q + p σ(−m))
    return Evidence(-torch.logaddexp(log_q, log_p + F.logsigmoid(-m)).sum(1))


def log_odds(u: Tensor) -> Tensor:
    """log(M / (1 − M)) of evidence u."""
    u = u.clamp(min=LEAST)
    return u + torch.log(-torch.expm1(-u))


def classes_of(logits: Tensor) -> Tensor:
    """Class ids uint8 [P, H, W] of logits [P, K, H, W]: the likeliest class if its probability is
    above one half, else 0.
    """
    best, number = logits.max(1)
    return torch.where(best > 0, number + 1, 0).to(torch.uint8)


def cross_entropy(logits: Tensor, masks: Tensor, known: Tensor) -> Tensor:
    """Binary cross-entropy of every class, a mean over pixels and classes, summed over known masks.

    Args:
        logits: [P, K, S, H, W].
        masks: Class ids uint8 [P, S, H, W].
        known: Bool [P, S].
    """
    terms = F.binary_cross_entropy_with_logits(
        logits.float(), targets(masks, logits.shape[1]), reduction="none"
    )
    return (terms.mean((1, 3, 4)) * known).sum()


def dice(logits: Tensor, masks: Tensor, known: Tensor) -> Tensor:
    """1 − soft Dice, summed over the classes that are in a known mask; see `present`."""
    truth, chance = targets(masks, logits.shape[1]), logits.float().sigmoid()
    shared = (truth * chance).sum((3, 4))
    total = truth.sum((3, 4)) + chance.sum((3, 4))
    return ((1 - (2 * shared + 1) / (total + 1)) * present(masks, known, logits.shape[1])).sum()


def present(masks: Tensor, known: Tensor, classes: int) -> Tensor:
    """Whether a class is in a known mask, bool [P, K, S]."""
    return targets(masks, classes).any(4).any(3) & known[:, None]


def targets(masks: Tensor, classes: int) -> Tensor:
    """One-hot targets, float32 [P, K, S, H, W], of class ids [P, S, H, W]."""
    numbers = torch.arange(1, classes + 1, device=masks.device, dtype=masks.dtype)
    return (masks[:, None] == numbers[:, None, None, None]).float()
