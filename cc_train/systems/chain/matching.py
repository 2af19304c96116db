"""The assignment of predicted to true regions, at the lowest cost, pair by pair.

True regions are connected components of the true mask. Source: DETR (Carion et al., 2020).
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from cc_train.systems.chain.masks import log_odds
from cc_train.systems.chain.regions import Regions

MAX_SPECK = 5  # px of a component that is none, as LEVIR-MCI's authors count objects


class Components(NamedTuple):
    """True regions of a batch: their pairs int64 [M], in order, classes int64 [M], from 1 on, and
    masks float32 [M, h, w], the share of a pixel that they cover.
    """

    pair: Tensor
    classes: Tensor
    masks: Tensor


def components(mask: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The `most` largest components of a mask of class ids uint8 [H, W], largest first.

    Returns masks, float32 [M, H, W] of 0 and 1, and classes, int64 [M]. Pixels that touch at a
    corner are connected.
    """
    parts: list[tuple[int, int, np.ndarray]] = []
    for value in np.unique(mask[mask > 0]):
        count, numbers, statistics, _ = cv2.connectedComponentsWithStats(
            (mask == value).astype(np.uint8), connectivity=8
        )
        for number in range(1, count):
            area = int(statistics[number, cv2.CC_STAT_AREA])
            if area > MAX_SPECK:
                parts.append((area, int(value), numbers == number))
    parts = sorted(parts, key=lambda part: -part[0])[:most]
    stacked = [part for _, _, part in parts]
    masks = np.stack(stacked) if stacked else np.zeros((0, *mask.shape))
    return masks.astype(np.float32), np.array([value for _, value, _ in parts], np.int64)


def region_masks(regions: Regions) -> Tensor:
    """Logits of each region in either image, float32 [P, N, h, w]."""
    return log_odds(F.softplus(regions.masks.float()).sum(2))


def assign(regions: Regions, true: Components) -> tuple[Tensor, Tensor]:
    """The numbers of true regions and of the regions assigned to them, int64 [M] each.

    True regions are numbered within the batch, regions within their pair. A pair with more true
    regions than queries keeps as many of them as there are queries.
    """
    with torch.no_grad():
        logits = region_masks(regions)
        chances = regions.classes.float().softmax(2)
        numbers: list[int] = []
        chosen: list[int] = []
        for pair in true.pair.unique().tolist():
            rows = (true.pair == pair).nonzero()[:, 0]
            cost = pair_cost(logits[pair], true.masks[rows]) - chances[pair][:, true.classes[rows]]
            queries, columns = linear_sum_assignment(cost.cpu().numpy())
            numbers += rows.cpu()[torch.from_numpy(columns)].tolist()
            chosen += queries.tolist()
    device = true.pair.device
    return torch.tensor(numbers, device=device).long(), torch.tensor(chosen, device=device).long()


def pair_cost(logits: Tensor, masks: Tensor) -> Tensor:
    """How badly logits [N, h, w] fit masks [M, h, w]: cross-entropy and 1 − Dice, [N, M]."""
    x, y = logits.flatten(1), masks.flatten(1)
    # Σ softplus(x) − x y, of all pairs at once
    entropy = (F.softplus(x).sum(1, keepdim=True) - x @ y.T) / x.shape[1]
    chance = x.sigmoid()
    overlap = (2 * chance @ y.T + 1) / (chance.sum(1, keepdim=True) + y.sum(1) + 1)
    return entropy + 1 - overlap
