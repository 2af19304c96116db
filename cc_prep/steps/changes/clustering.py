"""Changed pixels → clusters: DBSCAN over small cells, with a box and a centre for each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cc_prep import extras

NOISE = -1  # the label of points in no cluster


@dataclass(frozen=True)
class Cluster:
    """Changed pixels that are close together.

    Attributes:
        pixels: Bool [H, W].
        strength: Their summed difference.
    """

    pixels: np.ndarray
    strength: float

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """x0, y0, x1, y1 in px; x1 and y1 are the first column and row outside."""
        rows, columns = np.nonzero(self.pixels)
        return (
            int(columns.min()),
            int(rows.min()),
            int(columns.max()) + 1,
            int(rows.max()) + 1,
        )

    @cached_property
    def centre(self) -> tuple[float, float]:
        """x and y of the mean of its pixels, in px."""
        rows, columns = np.nonzero(self.pixels)
        return float(columns.mean()), float(rows.mean())

    @cached_property
    def area(self) -> int:
        """The number of its pixels."""
        return int(self.pixels.sum())


def labels(
    points: np.ndarray, eps: float, min_samples: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """The cluster of each point by DBSCAN, int64 [points]; NOISE for points in no cluster.

    Raises UserError without scikit-learn.

    Args:
        points: [points, 2].
        eps: The radius of a neighbourhood, in the points' unit.
        min_samples: The weight that makes the middle of a neighbourhood a core point, itself
            included.
    """
    extras.require("sklearn", "cc-prep changes")
    from sklearn.cluster import DBSCAN

    fitted = DBSCAN(eps=eps, min_samples=min_samples).fit(points, sample_weight=weights)
    result: np.ndarray = fitted.labels_
    return result


def clusters(
    difference: np.ndarray,
    changed: np.ndarray,
    eps: float,
    min_samples: int,
    cell: int,
    *,
    min_area: float = 1,
    most: int | None = None,
) -> list[Cluster]:
    """Clusters of the changed pixels, the largest summed difference first.

    Args:
        difference: float32 [H, W].
        changed: Bool [H, W].
        eps: Px.
        min_samples: Changed pixels.
        cell: Pixels are grouped into squares of this side, weighted by their number of changed
            pixels; this takes half the time of DBSCAN over the pixels, for the same clusters.
        min_area: Clusters of fewer pixels are left out.
        most: How many of the others are returned; None for all.
    """
    height, width = changed.shape
    rows, columns = -(-height // cell), -(-width // cell)
    padded = np.zeros((rows * cell, columns * cell), np.float64)
    padded[:height, :width] = changed
    counts = padded.reshape(rows, cell, columns, cell).sum(axis=(1, 3))
    row, column = np.nonzero(counts)
    if not len(row):
        return []
    points = np.stack([row, column], axis=1) * cell
    grid = np.full((rows, columns), NOISE)
    grid[row, column] = labels(points, eps, min_samples, counts[row, column])
    ranked = sorted(
        (
            # Summed in float64 and in one order: the order of clusters must not hang on rounding.
            (-float(difference.flat[pixels].sum(dtype=np.float64)), _box(pixels, width), pixels)
            for pixels in _separate(grid, changed, cell)
            if len(pixels) >= min_area
        ),
        key=lambda one: one[:2],
    )
    # A mask takes as much memory as the image, so only those clusters that are returned get one.
    return [
        Cluster(_mask(pixels, changed.shape), -weakness) for weakness, _, pixels in ranked[:most]
    ]


def _separate(grid: np.ndarray, changed: np.ndarray, cell: int) -> list[np.ndarray]:
    """The changed pixels of each cluster, as ascending indices into the flattened image.

    Args:
        grid: The cluster of each cell, int64 [rows, columns].
    """
    indices = np.flatnonzero(changed)
    row, column = np.divmod(indices, changed.shape[1])
    numbers = grid[row // cell, column // cell]
    indices, numbers = indices[numbers != NOISE], numbers[numbers != NOISE]
    indices = indices[np.argsort(numbers, kind="stable")]
    return np.split(indices, np.cumsum(np.bincount(numbers))[:-1]) if len(indices) else []


def _box(pixels: np.ndarray, width: int) -> tuple[int, int, int, int]:
    """x0, y0, x1, y1 in px of indices into a flattened image of a width in px."""
    rows, columns = np.divmod(pixels, width)
    return int(columns.min()), int(rows[0]), int(columns.max()) + 1, int(rows[-1]) + 1


def _mask(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask.flat[pixels] = True
    return mask
