"""The whole step: two images → the mask of what changed, and the regions that it is made of."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from cc_prep.formats.changes import FoundChange, Region
from cc_prep.manifest import Changes
from cc_prep.steps.changes import difference
from cc_prep.steps.changes.clustering import Cluster, clusters
from cc_prep.steps.changes.segmenters import Segmenter, filled

# What a cluster's pixels are compared with: so many percent of them differ less.
TYPICAL = 90
# The area in px of an image for which `min_area` holds; larger images take more in proportion.
REFERENCE_AREA = 224 * 224


def find(
    before: np.ndarray, after: np.ndarray, settings: Changes, segmenter: Segmenter
) -> FoundChange:
    """The change between two images, uint8 [H, W, 3] RGB of one size.

    If more than `most_share` of the image would be marked, as after a change of light, nothing is
    marked at all.
    """
    height, width = before.shape[:2]
    changed, candidates = find_clusters(before, after, settings)
    if changed.mean() > settings.most_share:
        return FoundChange(height, width, settings.segmenter, (), None, capped=True)
    if not candidates:
        return FoundChange(height, width, settings.segmenter)
    masks = segmenter.segment((before, after), candidates)
    mask, regions = accepted(candidates, masks, settings.tau)
    if mask.mean() > settings.most_share:
        return FoundChange(height, width, settings.segmenter, (), None, capped=True)
    return FoundChange(height, width, settings.segmenter, tuple(regions), mask)


def find_clusters(
    before: np.ndarray, after: np.ndarray, settings: Changes
) -> tuple[np.ndarray, list[Cluster]]:
    """Changed pixels, bool [H, W], and the clusters of them that are large enough.

    At most `top` clusters are returned, the largest summed difference first.
    """
    plain = difference.plain(before, after, settings.blur)
    if not settings.tolerance:
        levels = plain
    else:
        levels = difference.tolerant(before, after, settings.tolerance)
    changed = levels > settings.delta
    if changed.mean() > settings.most_share:  # of no use, and DBSCAN would take long over it
        return changed, []
    scale = max(1.0, changed.size / REFERENCE_AREA)
    found_clusters = clusters(
        levels,
        changed,
        settings.eps,
        settings.min_samples,
        settings.cell,
        min_area=settings.min_area * scale,
        most=settings.top,
    )
    if settings.tolerance:
        plainly = plain > settings.delta
        found_clusters = [grown(one, plainly, settings.tolerance) for one in found_clusters]
    return changed, [core(one, plain, settings.relative) for one in found_clusters]


def grown(cluster: Cluster, changed: np.ndarray, radius: int) -> Cluster:
    """A cluster with the changed pixels within `radius` px, since the tolerance removed its rim."""
    near = cv2.dilate(cluster.pixels.astype(np.uint8), difference.disc_of(radius)) > 0
    return Cluster(cluster.pixels | (near & changed), cluster.strength)


def core(cluster: Cluster, difference: np.ndarray, relative: float) -> Cluster:
    """A cluster without its pixels of small difference: shadows, reflections, blurred edges.

    Args:
        difference: float32 [H, W].
        relative: A pixel stays if its difference is at least this share of the cluster's 90th
            percentile.
    """
    least = relative * np.percentile(difference[cluster.pixels], TYPICAL)
    return Cluster(cluster.pixels & (difference >= least), cluster.strength)


def accepted(
    candidates: Sequence[Cluster], masks: np.ndarray, tau: float
) -> tuple[np.ndarray, list[Region]]:
    """The union of the masks that fit their clusters, bool [H, W], and a record of each cluster.

    Args:
        masks: Bool [2, clusters, H, W], in before and in after. A mask fits if its intersection
            over union with its cluster is at least `tau`. If neither mask fits, the filled cluster
            is used instead: without any mask the pair would silently count as unchanged.
    """
    union = np.zeros(candidates[0].pixels.shape, bool)
    regions = []
    for number, cluster in enumerate(candidates):
        ious = [iou(mask[number], cluster.pixels) for mask in masks]
        fitting = [mask[number] for mask, value in zip(masks, ious, strict=True) if value >= tau]
        pixels = np.logical_or.reduce(fitting) if fitting else filled(cluster.pixels)
        union |= pixels
        regions.append(
            Region(
                box=cluster.box,
                centre=(round(cluster.centre[0], 2), round(cluster.centre[1], 2)),
                area=int(pixels.sum()),
                strength=round(cluster.strength, 1),
                iou_before=round(ious[0], 4),
                iou_after=round(ious[1], 4),
                kept=bool(fitting),
            )
        )
    return union, regions


def iou(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two masks, bool [H, W]; 1 if both are empty."""
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else 1.0
