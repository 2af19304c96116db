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

    pixels: bool [H, W]. strength: their summed difference.
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

    points: [points, 2]. eps: the radius of a neighbourhood, in the points' unit. min_samples: the
    weight that makes the middle of a neighbourhood a core point, itself included. Raises UserError
    without scikit-learn.
    """
    extras.require("sklearn", "cc-prep changes")
    from sklearn.cluster import DBSCAN

    fitted = DBSCAN(eps=eps, min_samples=min_samples).fit(points, sample_weight=weights)
    result: np.ndarray = fitted.labels_
    return result


def clusters(
    difference: np.ndarray, changed: np.ndarray, eps: float, min_samples: int, cell: int
) -> list[Cluster]:
    """Clusters of the changed pixels, the largest summed difference first.

    difference: float32 [H, W]. changed: bool [H, W]. eps: px. min_samples: changed pixels. cell:
    pixels are grouped into squares of this side, weighted by their number of changed pixels; this
    takes half the time of DBSCAN over the pixels, for the same clusters.
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
    label = labels(points, eps, min_samples, counts[row, column])
    grid = np.full((rows, columns), NOISE)
    grid[row, column] = label
    of_pixels = np.kron(grid, np.ones((cell, cell), int))[:height, :width]
    of_pixels[~changed] = NOISE
    separate = [of_pixels == number for number in range(label.max() + 1)]
    # Summed in float64 and in one order: the order of clusters must not hang on rounding.
    ranked = [
        Cluster(pixels, float(difference[pixels].sum(dtype=np.float64))) for pixels in separate
    ]
    return sorted(ranked, key=lambda cluster: (-cluster.strength, cluster.box))
