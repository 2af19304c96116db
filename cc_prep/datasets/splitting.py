"""Splits for data that comes without: pairs that look alike stay together.

Two pairs are near duplicates if an image of one is within `distance` bits of an image of the other
by perceptual hash (imagehash's pHash, 64 bits). Near duplicates, and pairs of one group, form a
cluster; whole clusters are dealt out.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import imagehash
import numpy as np
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cc_prep.datasets.every_image import read_every_image
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.media.images import resize
from cc_prep.progress import Progress, no_progress
from cc_prep.records import ImagePair

AT_ONCE = 2**23  # comparisons of hashes in one go: 64 MB, however many images there are
HASH_SIDE = 256  # px; a photograph is made smaller before it is hashed


@dataclass(frozen=True)
class Splitting:
    """Ids by split, and what is to be known of how they came about."""

    splits: dict[str, list[str]]
    about: dict[str, Any]
    faults: list[str] = field(default_factory=list)


def split(
    manifest: Manifest,
    pairs: Sequence[ImagePair],
    shares: Mapping[str, float],
    *,
    seed: int = 0,
    distance: int | None = 4,
    groups: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> Splitting:
    """Deals the pairs out; the same seed gives the same splits.

    Args:
        shares: Of each split, any positive numbers.
        distance: In bits; None looks at no image.
        groups: By id.

    Raises:
        UserError: Without pairs, and where one cluster is larger than the largest split may be.
    """
    if not pairs:
        raise UserError(f"{manifest.root}: no pairs to divide", "Is --root its folder?")
    if len({pair.id for pair in pairs}) < len(pairs):
        raise UserError("two pairs have the same id", "Give each pair its own id")
    total = sum(shares.values())
    allowed = np.ceil(max(shares.values()) / total * len(pairs))
    in_groups = _grouped(pairs, groups or {})
    of_groups = _largest(_clusters(pairs, in_groups))
    if of_groups > allowed:
        raise UserError(
            f"{of_groups} of {len(pairs)} pairs share a group: no split can hold them",
            "Let the groups tell more pairs apart, as --group-by 'site(\\d+)' does by its number",
        )
    hashes, faults = _hashes(manifest, pairs, progress) if distance is not None else ({}, [])
    alike = _alike(pairs, hashes, distance or 0)
    clusters = _clusters(pairs, [*alike, *in_groups])
    largest = _largest(clusters)
    if largest > allowed:
        raise UserError(
            f"{largest} of {len(pairs)} pairs look alike or share a group: no split can hold them",
            "Lower --distance, or say --distance none",
        )
    split_of_pair = _dealt(clusters, {name: share / total for name, share in shares.items()}, seed)
    splits = {
        name: [pair.id for pair, to in zip(pairs, split_of_pair, strict=True) if to == name]
        for name in shares
    }
    about = {
        "seed": seed,
        "shares": {name: round(share / total, 4) for name, share in shares.items()},
        "distance": distance,
        "groups": len(set(groups.values())) if groups else None,
        "pairs": {name: len(ids) for name, ids in splits.items()},
        "clusters": len(set(clusters)),
        "largest cluster": largest,
        "pairs with near duplicates": len({i for edge in alike for i in edge}),
    }
    return Splitting(splits, about, faults)


def _largest(clusters: Sequence[int]) -> int:
    """How many pairs are in the largest cluster."""
    return max(Counter(clusters).values())


def _hashes(
    manifest: Manifest, pairs: Sequence[ImagePair], progress: Progress
) -> tuple[dict[str, int], list[str]]:
    """The hash of every image that can be read, by its reference, and the others' faults."""
    hashes, unreadable = read_every_image(
        manifest,
        [reference for pair in pairs for reference in (pair.before, pair.after)],
        lambda pixels, _: perceptual_hash(pixels),
        HASH_SIDE,
        progress,
    )
    return hashes, [*dict.fromkeys(map(str, unreadable.values()))]


def perceptual_hash(pixels: np.ndarray) -> int:
    """64 bits of an image uint8 [H, W, 3], which nearly the same image has nearly all of."""
    image = Image.fromarray(resize(pixels, HASH_SIDE))
    bits = imagehash.phash(image).hash.reshape(-1)
    return int("".join("01"[bool(bit)] for bit in bits), 2)


def _alike(
    pairs: Sequence[ImagePair], hashes: Mapping[str, int], distance: int
) -> list[tuple[int, int]]:
    """Numbers of pairs that a chain of nearly the same images joins, one after the other."""
    owners = defaultdict[int, set[int]](set)
    for number, pair in enumerate(pairs):
        for reference in (pair.before, pair.after):
            if reference in hashes:
                owners[hashes[reference]].add(number)
    values = np.array(sorted(owners), dtype=np.uint64)
    members = defaultdict[int, set[int]](set)
    for value, label in zip(values.tolist(), near_groups(values, distance).tolist(), strict=True):
        members[label] |= owners[value]
    return [edge for numbers in members.values() for edge in itertools.pairwise(sorted(numbers))]


def near_groups(hashes: np.ndarray, distance: int) -> np.ndarray:
    """The group of each of hashes uint64 [N], int [N], in [0, N).

    A group is joined by chains of hashes of which each differs from the next in at most `distance`
    of their 64 bits. Memory grows with N and `AT_ONCE`, not with the number of near couples.
    """
    labels = np.arange(len(hashes))
    step = max(1, AT_ONCE // max(1, len(hashes)))
    for start in range(0, len(hashes), step):
        rows = hashes[start : start + step, None]
        close = np.bitwise_count(rows ^ hashes[None, start:]) <= distance
        # A fixed camera's images are all alike: what is joined already makes no edge.
        close &= labels[start : start + step, None] != labels[None, start:]
        ones, others = (labels[start + index] for index in np.nonzero(close))
        if len(ones):
            labels = components(len(hashes), ones, others)[labels]
    return labels


def components(count: int, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The component of each of `count` nodes that these edges join."""
    graph = coo_array((np.ones(len(ones), bool), (ones, others)), shape=(count, count))
    found: np.ndarray = connected_components(graph, directed=False)[1]
    return found


def _grouped(pairs: Sequence[ImagePair], groups: Mapping[str, str]) -> list[tuple[int, int]]:
    members = defaultdict[str, list[int]](list)
    for number, pair in enumerate(pairs):
        if pair.id in groups:
            members[groups[pair.id]].append(number)
    return [edge for numbers in members.values() for edge in itertools.pairwise(numbers)]


def _clusters(pairs: Sequence[ImagePair], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The number of each pair's cluster."""
    ones, others = ([edge[end] for edge in edges] for end in (0, 1))
    return components(len(pairs), np.array(ones, int), np.array(others, int)).tolist()


def _dealt(clusters: Sequence[int], shares: Mapping[str, float], seed: int) -> list[str]:
    """The split of each pair: clusters, large ones first, go where most is missing."""
    sizes = Counter(clusters)
    order = [int(c) for c in np.random.default_rng(seed).permutation(len(sizes))]
    order.sort(key=lambda cluster: -sizes[cluster])  # stable: equal sizes stay shuffled
    missing = {name: share * len(clusters) for name, share in shares.items()}
    split_of = {}
    for cluster in order:
        name = max(missing, key=lambda name: missing[name])
        split_of[cluster] = name
        missing[name] -= sizes[cluster]
    return [split_of[cluster] for cluster in clusters]
