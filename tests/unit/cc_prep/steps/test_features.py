"""Stored features are those of the frames asked for, and depend on nothing but the frame."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cc_prep.errors import Reason, RejectedPair
from cc_prep.steps.features import FeatureExtractor
from cc_prep.weights import networks


@pytest.fixture(scope="module")
def extractor() -> FeatureExtractor:
    return FeatureExtractor("efficientnet-lite0", *networks.backbone("efficientnet-lite0"))


def frames(count: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def test_frames_asked_for(extractor: FeatureExtractor) -> None:
    four = frames(4)
    features = extractor(four, [3, 0, 3])
    assert features.frames == (0, 3)
    assert features.values.dtype == np.float16
    assert features.values.shape == (2, 248, 4, 4)
    assert features.backbone == "efficientnet-lite0"
    pixels = torch.tensor(four[3:]).permute(0, 3, 1, 2).float() / 255
    expected = extractor.network(pixels)[0].numpy()
    np.testing.assert_allclose(features.values[1], expected, rtol=2e-3, atol=2e-3)
    located = networks.backbone("efficientnet-lite0")[1]
    whole = FeatureExtractor(extractor.name, extractor.network, located, precision="float32")(
        four, [3]
    )
    assert whole.values.dtype == np.float32
    np.testing.assert_allclose(whole.values[0], expected, rtol=1e-3, atol=1e-3)


def test_a_frame_s_features_do_not_depend_on_its_neighbours(extractor: FeatureExtractor) -> None:
    """Keeps away: float sums that differ with the batch, so that a resumed build differs."""
    four = frames(4)
    together = extractor(four, range(4)).values
    for number in range(4):
        np.testing.assert_array_equal(extractor(four, [number]).values[0], together[number])


def test_sides_that_do_not_fit_are_rejected(extractor: FeatureExtractor) -> None:
    with pytest.raises(RejectedPair) as caught:
        extractor(frames(2, 40), [0])
    assert caught.value.reason is Reason.SIZE_NOT_DIVISIBLE
    assert "divisible by 16" in str(caught.value)


def test_mirrored_images_are_looked_at_as_images() -> None:
    """Keeps away: stored features that are flipped, which differ from those of a flipped image."""
    name = "efficientnet-lite0"
    mirroring = FeatureExtractor(name, *networks.backbone(name), mirrored=True)
    two = frames(2)
    features = mirroring(two, [0, 1])
    flipped = mirroring(np.ascontiguousarray(two[:, :, ::-1]), [0, 1])
    assert features.mirrored is not None
    np.testing.assert_array_equal(features.mirrored, flipped.values)
    assert np.abs(features.mirrored - features.values[..., ::-1]).max() > 0.1


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_image_that_both_pairs_of_a_scene_share_is_computed_once(mirrored: bool) -> None:
    """Keeps away: a quarter of a preparation spent on features that are there, and the features of
    one image in the place of another's."""
    name, images = "efficientnet-lite0", frames(3)
    network, file = networks.backbone(name)
    computed = []
    network.register_forward_hook(lambda *parts: computed.append(len(parts[1][0])))
    extractor = FeatureExtractor(name, network, file, mirrored=mirrored)
    ways = 2 if mirrored else 1
    for chosen, new in (([0, 1], 2), ([0, 2], 1), ([0, 2], 0), ([1, 1], 1), ([0, 2], 2)):
        computed.clear()
        features = extractor(images[chosen], [0, 1])
        assert sum(computed) == new * ways
        fresh = FeatureExtractor(name, network, file, mirrored=mirrored)(images[chosen], [0, 1])
        np.testing.assert_array_equal(features.values, fresh.values)
        assert (features.mirrored is None) == (not mirrored)
        if features.mirrored is not None and fresh.mirrored is not None:
            np.testing.assert_array_equal(features.mirrored, fresh.mirrored)
