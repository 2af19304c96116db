"""Vectors of regions → phrases: by the text tower of the same network, or by training regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cc_prep.formats.entities import Entity


@dataclass(frozen=True)
class RegionVectors:
    """A pair's regions as vectors of unit length, float32 [regions, D] each.

    Attributes:
        scene: The id of the scene of a training pair; None for other pairs.
        phrases: Of a training pair's captions.
    """

    key: str
    scene: str | None
    phrases: tuple[str, ...]
    before: np.ndarray
    after: np.ndarray


class Retriever(Protocol):
    """A function that returns the phrases that fit a pair, best first."""

    def __call__(self, pair: RegionVectors) -> list[Entity]: ...


class ByText:
    """Retrieves the phrases whose vector is nearest to a region's, in before or in after.

    Args:
        texts: float32 [phrases, D] of unit length.
        k: Number of phrases for each region and image.
    """

    def __init__(self, phrases: Sequence[str], texts: np.ndarray, k: int) -> None:
        self.phrases, self.texts, self.k = list(phrases), texts, k

    def __call__(self, pair: RegionVectors) -> list[Entity]:
        images = [image for image in (pair.before, pair.after) if len(image)]
        return union_of_best((row for image in images for row in image @ self.texts.T),
                             self.phrases, self.k)  # fmt: skip


class ByNeighbours:
    """Retrieves the phrases that the most similar training regions vote for.

    The similarity of two regions is the mean of two cosines, in before and in after. The
    `neighbours` most similar regions vote for the phrases of their captions, with weights that fall
    with the distance. A score is a phrase's share of the votes times its rarity, 0 to 1, which is
    its inverse document frequency over training regions: a phrase of many regions says little.
    Pairs of the same scene never vote, but count for the rarity.

    Args:
        known: Training pairs.
        vocabulary: Phrases that can be voted for.
    """

    def __init__(
        self,
        known: Iterable[RegionVectors],
        vocabulary: Iterable[str],
        k: int,
        neighbours: int,
        temperature: float,
    ) -> None:
        self.k, self.neighbours, self.temperature = k, neighbours, temperature
        self.phrases = sorted(vocabulary)
        number = {phrase: i for i, phrase in enumerate(self.phrases)}
        rows, self.votes = list[np.ndarray](), list[list[int]]()
        self.of_scene: dict[str | None, list[int]] = {}
        for pair in known:
            names = sorted({number[phrase] for phrase in pair.phrases if phrase in number})
            if not names:  # it could vote for nothing, and would only take another's place
                continue
            for row in _joined(pair):
                self.of_scene.setdefault(pair.scene, []).append(len(rows))
                rows.append(row)
                self.votes.append(names)
        self.rarity = _rarity(self.votes, len(self.phrases))
        self.vectors = np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def __call__(self, pair: RegionVectors) -> list[Entity]:
        if not len(self.vectors):
            return []
        own = self.of_scene.get(pair.scene, [])
        return union_of_best(
            (self._shares(row, own) for row in _joined(pair)), self.phrases, self.k
        )

    def _shares(self, row: np.ndarray, own: Sequence[int]) -> np.ndarray:
        """Each phrase's score for a region, float64 [phrases]."""
        similarity = (self.vectors @ row).astype(np.float64)
        similarity[list(own)] = -np.inf
        nearest = np.argsort(-similarity, kind="stable")[: self.neighbours]
        nearest = nearest[np.isfinite(similarity[nearest])]
        shares = np.zeros(len(self.phrases))
        if len(nearest):
            weights = np.exp((similarity[nearest] - similarity[nearest[0]]) / self.temperature)
            for i, weight in zip(nearest, weights / weights.sum(), strict=True):
                shares[self.votes[i]] += weight
        return shares * self.rarity


def union_of_best(scores: Iterable[np.ndarray], names: Sequence[str], k: int) -> list[Entity]:
    """The `k` best of each row of scores, all in one list, the best first.

    A phrase of several rows has the best of its scores. Phrases of equal score are in the order of
    `names`. A phrase that scores 0 or less in a row is not among its best.
    """
    best: dict[int, float] = {}
    for row in scores:
        for i in np.argsort(-row, kind="stable")[:k].tolist():
            if row[i] > 0:
                best[i] = max(best.get(i, 0.0), float(row[i]))
    ordered = sorted(best.items(), key=lambda item: (-item[1], item[0]))
    return [Entity(names[i], score) for i, score in ordered]


def _rarity(votes: Sequence[Sequence[int]], phrases: int) -> np.ndarray:
    """Rarity of each phrase, [phrases]: 1 if one region can vote for it, nearly 0 if all can."""
    counts = np.bincount([i for names in votes for i in names], minlength=phrases)
    total = 1 + len(votes)
    rarity: np.ndarray = np.log(total / np.maximum(counts, 1)) / np.log(max(total, 2))
    return rarity


def _joined(pair: RegionVectors) -> np.ndarray:
    """Both images' vectors as one of unit length for each region, float32 [regions, 2 · D]."""
    if not len(pair.before):
        return np.zeros((0, 0), np.float32)
    joined: np.ndarray = np.concatenate([pair.before, pair.after], axis=1) / np.sqrt(2)
    return joined
