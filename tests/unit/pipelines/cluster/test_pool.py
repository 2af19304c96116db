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
        (Resources(2, 8), 4, "gpu", 1.0, "Ray has 2 free"),
        (Resources(2, 0), 3, "cpu", 1.0, "Use --workers 2 or fewer"),
    ],
)
def test_too_much(
    free: Resources, workers: int | None, device: str, share: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        size_pool([free], workers, 2, device, share)
