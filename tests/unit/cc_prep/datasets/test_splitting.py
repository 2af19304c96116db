"""Groups of nearly the same images, by their hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep import manifest
from cc_prep.datasets import splitting
from cc_prep.errors import UserError


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40, unique=True), st.integers(0, 64)
)
def test_near_hashes_are_all_found(values: list[int], distance: int) -> None:
    ordered = sorted(values)
    labels = splitting.near_groups(np.array(ordered, np.uint64), distance)
    # By hand: clusters are merged as long as a value of one is near a value of another.
    clusters = [{value} for value in ordered]
    for a in ordered:
        near = [c for c in clusters if any((a ^ b).bit_count() <= distance for b in c)]
        clusters = [c for c in clusters if c not in near] + [set().union(*near)]
    expected = {frozenset(cluster) for cluster in clusters}
    of_labels = {
        frozenset(v for v, other in zip(ordered, labels, strict=True) if other == label)
        for label in labels
    }
    assert of_labels == expected


def test_nothing_is_not_divided() -> None:
    """Keeps away: `ValueError: max() arg is an empty sequence` for empty folders."""
    settings = manifest.load("own", root="nowhere")
    with pytest.raises(UserError, match="nowhere: no pairs to divide"):
        splitting.split(settings, [], {"train": 1.0})


def test_images_of_a_fixed_camera_are_no_burden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a Python object for each of some hundred million couples of like images."""
    monkeypatch.setattr(splitting, "AT_ONCE", 2**17)
    edges = []
    real = splitting.components

    def counted(count: int, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        edges.append(len(ones))
        return real(count, ones, others)

    monkeypatch.setattr(splitting, "components", counted)
    flips = np.random.default_rng(0).integers(0, 64, (3000, 2))
    bits = np.uint64(1) << flips.astype(np.uint64)
    hashes = np.unique(np.uint64(0x123456789ABCDEF0) ^ bits[:, 0] ^ bits[:, 1])
    assert len(hashes) > 1000
    assert len(set(splitting.near_groups(hashes, 4).tolist())) == 1
    assert edges[0] <= 2**17
    assert sum(edges[1:]) <= len(hashes), "what is joined already is no edge again"
