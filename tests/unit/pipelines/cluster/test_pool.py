"""How many workers a job gets, and what each takes."""

from __future__ import annotations

import pytest

from cc_prep.errors import UserError
from pipelines.cluster.pool import Pool, Resources, size_pool


@pytest.mark.parametrize(
    ("free", "workers", "device", "share", "expected"),
    [
        (Resources(8, 0), None, "auto", 1.0, Pool(4, 2, 0)),
        (Resources(8, 0), 8, "auto", 1.0, Pool(8, 1, 0)),
        (Resources(8, 2), None, "auto", 1.0, Pool(2, 1, 1.0)),
        (Resources(8, 2), None, "cpu", 1.0, Pool(4, 2, 0)),
        (Resources(8, 2), None, "auto", 0.5, Pool(4, 1, 0.5)),
        (Resources(8, 1), 1, "gpu", 0.3, Pool(1, 1, 0.3)),
        (Resources(8, 0.5), None, "auto", 1.0, Pool(4, 2, 0)),  # the rest is another job's
        (Resources(8, 0.5), None, "auto", 0.5, Pool(1, 1, 0.5)),
    ],
)
def test_pool(
    free: Resources, workers: int | None, device: str, share: float, expected: Pool
) -> None:
    assert size_pool([free], workers, 2, device, share) == expected


@pytest.mark.parametrize(
    ("free", "workers", "device", "share", "message"),
    [
        (Resources(8, 0), None, "gpu", 1.0, "no free GPU"),
        (Resources(8, 0.4), None, "gpu", 0.5, r"less than 0\.5 of a GPU"),
        (Resources(8, 1), 3, "gpu", 0.5, "Use --workers 2 or fewer"),
        (Resources(2, 8), 4, "gpu", 1.0, "Ray has 2 CPUs free, 4 workers would need 4"),
        (Resources(2, 0), 3, "cpu", 1.0, "Use --workers 2 or fewer"),
        (Resources(0, 0), None, "cpu", 1.0, "Ray has 0 CPUs free, 1 worker would need 1"),
    ],
)
def test_too_much(
    free: Resources, workers: int | None, device: str, share: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        size_pool([free], workers, 2, device, share)


@pytest.mark.parametrize(
    ("nodes", "share", "threads", "workers"),
    [
        ([Resources(64, 2)], 0.4, 2, 4),
        ([Resources(64, 4)], 0.6, 2, 4),
        ([Resources(64, 8)], 0.7, 2, 8),
        ([Resources(64, 1)], 0.3, 2, 3),
        ([Resources(64, 3)], 1 / 3, 2, 9),
        ([Resources(64, 4)], 2.0, 2, 2),
        ([Resources(8, 1), Resources(1, 3)], 1.0, 2, 2),
        ([Resources(3, 0)] * 3, 1.0, 2, 3),
        ([Resources(2, 0), Resources(1, 0)], 1.0, 2, 1),
        ([Resources(0, 0), Resources(4, 0)], 1.0, 2, 2),
    ],
)
def test_a_worker_fits_on_one_node_and_its_share_on_one_gpu(
    nodes: list[Resources], share: float, threads: int, workers: int
) -> None:
    """Keeps away: a worker more than fits, which Ray keeps waiting, or buys a node for."""
    assert size_pool(nodes, None, threads, "auto", share).workers == workers


def test_workers_that_are_asked_for_fit_with_fewer_cores_each() -> None:
    assert size_pool([Resources(3, 0)] * 3, 9, 2, "auto") == Pool(9, 1, 0)
    assert size_pool([Resources(4, 0)] * 2, 4, 2, "auto") == Pool(4, 2, 0)


def test_a_cluster_that_starts_nodes_when_asked() -> None:
    """Keeps away: a cluster scaled to zero that is refused, though it would have grown."""
    head = [Resources(0, 0)]
    assert size_pool(head, 8, 2, "gpu", grows=True) == Pool(8, 1, 1.0)
    assert size_pool(head, 8, 2, "auto", grows=True) == Pool(8, 2, 0)
    # Keeps away: new nodes with fewer cores than the workers' threads.
    assert size_pool([Resources(8, 0)], 16, 4, "auto", grows=True) == Pool(16, 4, 0)
    assert size_pool([Resources(8, 0)], 4, 4, "auto", grows=True) == Pool(4, 2, 0), "they fit"
    with pytest.raises(UserError, match="say how many with --workers"):
        size_pool(head, None, 2, "auto", grows=True)
    with pytest.raises(UserError, match="no free GPU"):
        size_pool(head, 8, 2, "gpu")
