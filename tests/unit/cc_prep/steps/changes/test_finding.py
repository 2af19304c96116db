"""From two images to a mask: thresholds on exact composites, the filter, the union, the caps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cc_prep.manifest import Changes
from cc_prep.steps import changes
from cc_prep.steps.changes.clustering import Cluster
from cc_prep.steps.changes.finding import accepted, find_clusters, iou
from cc_prep.steps.changes.segmenters import AsItIs, Fill
from tests.conftest import ROOT
from tests.pair_factory import COMPOSITE_SIDE, composite

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/mllm/regions.json").read_text())


def marked(mask: np.ndarray | None) -> np.ndarray:
    return np.zeros((COMPOSITE_SIDE, COMPOSITE_SIDE), bool) if mask is None else mask


@pytest.mark.parametrize("tolerance", [0, 3])
def test_exact_composites(tolerance: int) -> None:
    """Keeps away: a mask that misses its object, or that noise and JPEG blocks mark."""
    settings = Changes(tolerance=tolerance)
    pairs = [composite(seed) for seed in range(12)]
    masks = [changes.find(one.before, one.after, settings, Fill()).mask for one in pairs]
    ious = [iou(marked(mask), one.mask) for mask, one in zip(masks, pairs, strict=True)]
    assert np.mean(ious) >= 0.83
    still = [composite(seed, changed=False) for seed in range(12)]
    shares = [
        marked(changes.find(one.before, one.after, settings, Fill()).mask).mean() for one in still
    ]
    assert np.mean(shares) < 0.002


def test_blur_is_that_of_the_difference_without_tolerance() -> None:
    """Keeps away: pages and rows of figures that take `blur` for what decides with a tolerance."""
    pair = composite(2)
    changed = {
        (tolerance, blur): find_clusters(
            pair.before, pair.after, Changes(tolerance=tolerance, blur=blur)
        )[0]
        for tolerance in (0, 3)
        for blur in (0.0, 3.0)
    }
    assert np.array_equal(changed[3, 0.0], changed[3, 3.0])
    assert not np.array_equal(changed[0, 0.0], changed[0, 3.0])


def test_tolerance_pays_where_the_camera_moves() -> None:
    """Keeps away: a tolerance that forgives shifts and loses the objects with them."""
    means = {}
    for tolerance in (0, 3):
        settings = Changes(tolerance=tolerance)
        ious = []
        for seed in range(8):
            pair = composite(seed, shift=(2, 1))
            truth = pair.mask | np.roll(pair.mask, (2, 1), axis=(0, 1))
            found_mask = changes.find(pair.before, pair.after, settings, Fill()).mask
            ious.append(iou(marked(found_mask), truth))
        means[tolerance] = np.mean(ious)
    assert means[3] >= 1.3 * means[0]


def region_cluster(rows: slice, columns: slice) -> Cluster:
    pixels = np.zeros((6, 6), bool)
    pixels[rows, columns] = True
    return Cluster(pixels, float(pixels.sum()))


@pytest.mark.parametrize("tau", GOLDEN["iou_filter"]["kept_at_tau"])
def test_golden_filter_and_union(tau: str) -> None:
    """Keeps away: a filter that compares boxes, or a union of clusters in place of masks."""
    golden = GOLDEN["iou_filter"]
    regions = [region_cluster(np.s_[0:3], np.s_[0:3]), region_cluster(np.s_[4:6], np.s_[4:6])]
    segmented = [region_cluster(np.s_[0:3], np.s_[0:4]), region_cluster(np.s_[2:6], np.s_[2:6])]
    masks = np.stack([np.stack([one.pixels for one in segmented])] * 2)
    union, records = accepted(regions, masks, float(tau))
    assert [one.iou_before for one in records] == golden["iou"]
    assert [one.iou_after for one in records] == golden["iou"]
    assert [one.kept for one in records] == golden["kept_at_tau"][tau]
    of_masks = [mask for mask, one in zip(masks[0], records, strict=True) if one.kept]
    fitting = np.logical_or.reduce([*of_masks, np.zeros((6, 6), bool)])
    assert int(fitting.sum()) == golden["union_area_at_tau"][tau]
    # What fits no mask stands for itself.
    instead = [one.pixels for one, row in zip(regions, records, strict=True) if not row.kept]
    assert np.array_equal(union, np.logical_or.reduce([fitting, *instead]))
    assert [one.area for one in records] == [
        int((mask if row.kept else one.pixels).sum())
        for mask, one, row in zip(masks[0], regions, records, strict=True)
    ]


class Discs:
    """Discs that fit in one image alone, and are far away in the other."""

    def __init__(self, fits_in: int) -> None:
        self.fits_in = fits_in

    def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
        assert all(one.pixels[int(one.centre[1]), int(one.centre[0])] for one in clusters)
        masks = np.stack([np.stack([one.pixels for one in clusters])] * len(images))
        masks[1 - self.fits_in] = np.roll(masks[1 - self.fits_in], 80, axis=-1)
        return masks


@pytest.mark.parametrize("fits_in", [0, 1])
def test_a_mask_that_fits_in_one_image_is_enough(fits_in: int) -> None:
    """Keeps away: objects that are gone from after, which only before can show, dropped."""
    pair = composite(7)
    change = changes.find(pair.before, pair.after, Changes(segmenter="sam"), Discs(fits_in))
    [region] = change.regions
    ious = (region.iou_before, region.iou_after)
    assert ious[fits_in] == 1.0
    assert ious[1 - fits_in] == 0.0
    assert region.kept
    assert change.mask is not None
    assert change.mask.sum() == region.area
    assert iou(change.mask, pair.mask) > 0.8


def test_with_no_fitting_mask_the_cluster_stands() -> None:
    """Keeps away: SAM that fails on a pair and thereby calls it unchanged."""

    class Nowhere:
        def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
            return np.zeros((len(images), len(clusters), COMPOSITE_SIDE, COMPOSITE_SIDE), bool)

    pair = composite(7)
    change = changes.find(pair.before, pair.after, Changes(segmenter="sam"), Nowhere())
    filled_change = changes.find(pair.before, pair.after, Changes(), Fill())
    assert [one.kept for one in change.regions] == [False]
    assert change.mask is not None
    assert np.array_equal(change.mask, filled_change.mask)


def test_nothing_is_found_in_the_same_image_twice() -> None:
    """Keeps away: an empty mask written where there should be none."""
    pair = composite(1)
    change = changes.find(pair.before, pair.before, Changes(), Fill())
    assert (change.regions, change.mask, change.capped) == ((), None, False)


def test_a_change_of_light_marks_nothing() -> None:
    """Keeps away: a mask of the whole image, which says of no place that it changed."""
    pair = composite(1)
    darker = (pair.before * 0.5).astype(np.uint8)
    change = changes.find(pair.before, darker, Changes(), Fill())
    assert (change.regions, change.mask, change.capped) == ((), None, True)


def test_the_cap_counts_what_a_segmenter_marks() -> None:
    """Keeps away: a cap that looks at the changed pixels and not at the mask that is stored."""

    class Everything:
        def segment(self, images: Sequence[np.ndarray], clusters: Sequence[Cluster]) -> np.ndarray:
            return np.ones((len(images), len(clusters), COMPOSITE_SIDE, COMPOSITE_SIDE), bool)

    pair = composite(1)
    settings = Changes(segmenter="sam", tau=0.0)
    assert changes.find(pair.before, pair.after, settings, Everything()).capped


def test_top_leaves_the_strongest() -> None:
    """Keeps away: `top: 1` that takes the largest noise in place of the change."""
    pair = composite(2)
    after = pair.after.copy()
    after[:12, :12] = 255 - after[:12, :12]
    both = changes.find(pair.before, after, Changes(), AsItIs())
    first = changes.find(pair.before, after, Changes(top=1), AsItIs())
    assert len(both.regions) == 2
    assert first.regions == both.regions[:1]


def test_small_clusters_are_noise_in_proportion_to_the_image() -> None:
    """Keeps away: dust in a large photograph taken for a change, since 20 px are little there."""
    before = np.full((896, 896, 3), 120, np.uint8)
    after = before.copy()
    after[100:112, 100:112] = 255  # 144 px: more than 20, less than 20 · 16
    assert find_clusters(before, after, Changes(tolerance=0))[1] == []
    small = Changes(tolerance=0, min_area=5)
    assert len(find_clusters(before, after, small)[1]) == 1


def test_a_shadow_is_cut_off_and_a_faint_object_is_not() -> None:
    """Keeps away: masks with the shadow of what was added, and faint changes that are lost."""
    before = np.full((80, 80, 3), 150, np.uint8)
    shadowed = before.copy()
    shadowed[30:50, 30:50] = (250, 40, 40)
    shadowed[50:60, 30:50] = 125
    faint = before.copy()
    faint[30:50, 30:50] = 125
    for after, area in ((shadowed, 400), (faint, 400)):
        change = changes.find(before, after, Changes(blur=0.5), Fill())
        assert change.mask is not None
        assert change.mask.sum() == pytest.approx(area, rel=0.15)
    whole = changes.find(before, shadowed, Changes(blur=0.5, relative=0.0), Fill())
    assert whole.mask is not None
    assert whole.mask.sum() == pytest.approx(600, rel=0.15)
