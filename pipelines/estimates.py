"""Estimates of a job before it starts: bytes on disk, and memory of a worker."""

from __future__ import annotations

from collections.abc import Iterable

from cc_prep import storage
from cc_prep.errors import RejectedPair
from cc_prep.manifest import JOIN, TRUTH, Manifest
from cc_prep.media import images
from cc_prep.records import ImagePair

# Shares of the raw pixels. Of sequences: measured on CLEVR-like renders and on video frames at
# 224 px, the larger one. Of training shards, at quality 95: 0.10 of renders, 0.12 of videos.
SEQUENCE_SHARE = {"png": 0.75, "jpg": 0.2, "webp": 0.15}
TRAINING_JPG_SHARE = 0.13
# Bytes of features a pixel: channels × 2 bytes over the square of the stride.
FEATURE_SHARE = {
    "none": 0.0,
    "efficientnet-lite0": 7.75,
    "efficientnet-lite0-x2": 8.5,
    "nanodet": 12.0,
    "resnet101": 8.0,
    "vqgan": 2.0,
}
SCORE_BYTES = 4000  # of a sequence; measured: 1.0 kB in a table of 20 rows, 3.0 kB in one of 2
UNKNOWN_SIDE = 512  # px, where neither the manifest nor an image says how large frames are
# Peak memory of a worker for each pixel of the images, whose sides are padded to multiples of 64:
# measured in a process with the network alone, with images of 64, 128 and 256 px. That of RIFE
# hardly grows with them.
PIXEL_BYTES = {"vfiformer": 21e3, "vfiformer-small": 14.5e3}
MULTIPLE = 64
WORKER_BYTES = 0.8e9  # with such a network and no images


def sequence_bytes(frames: int, pixels: int, codec: str) -> int:
    """Estimated bytes of a stored sequence of `frames` images of `pixels` pixels each."""
    return int(frames * 3 * pixels * SEQUENCE_SHARE[codec])


def interpolated_bytes(manifest: Manifest, pair: ImagePair) -> int:
    """Estimated bytes of the sequence of a pair; may read an image to learn its size."""
    frames = 2**manifest.interpolate.depth + 1
    if manifest.interpolate.keep_truth and manifest.interpolate.method != TRUTH:
        frames += len(pair.truth)
    return sequence_bytes(frames, _pixels(manifest, pair.before), manifest.interpolate.codec)


def interpolation_memory(manifest: Manifest, pair: ImagePair) -> str | None:
    """A worker's peak memory in words; None unless it is known to grow with the images' size."""
    bytes_a_pixel = PIXEL_BYTES.get(manifest.interpolate.method)
    if bytes_a_pixel is None:
        return None
    size = _size(manifest, pair.before)
    gigabytes = (WORKER_BYTES + bytes_a_pixel * _padded_pixels(size, MULTIPLE)) / 1e9
    height, width = size
    return (
        f"about {gigabytes:.1f} GB a worker with {manifest.interpolate.method} at "
        f"{width}×{height} px; the same however large the data is"
    )


def training_bytes(manifest: Manifest, pair: ImagePair | None) -> int:
    """Estimated bytes of a sample of a training shard; may read an image of a pair for its size."""
    frames, rule = 2**manifest.interpolate.depth + 1, manifest.keyframes
    stored_images = {"keyframes": rule.k + 2, "all": frames, "none": 0}[rule.images]
    unknown = (manifest.image_size or UNKNOWN_SIDE) ** 2
    pixels = unknown if pair is None else _pixels(manifest, pair.before)
    tokens = 2 * frames * pixels // 256
    features = {"ends": 2, "keyframes": rule.k + 2, "all": frames}[manifest.features.frames]
    wide = 2 if manifest.features.precision == "float32" else 1
    wide *= 2 if manifest.features.mirrored else 1
    per_frame = int(wide * _feature_share(manifest, pixels) * pixels)
    images_of = int(stored_images * 3 * pixels * TRAINING_JPG_SHARE)
    return images_of + tokens + features * per_frame + 8000


def _feature_share(manifest: Manifest, pixels: int) -> float:
    """Bytes of features in float16 for each of so many pixels of a frame."""
    settings = manifest.features
    parts = settings.backbone.split(JOIN)
    if all(part in FEATURE_SHARE for part in parts):
        return sum(FEATURE_SHARE[part] for part in parts)
    from cc_prep.models import library_backbones  # which brings torch

    assert settings.weights is not None
    shape = library_backbones.shape(settings.backbone, settings.weights, settings.layers)
    channels, stride = shape
    height, width = settings.size or (1, pixels)
    return 2 * channels * height * width / stride**2 / pixels


def _pixels(manifest: Manifest, reference: str) -> int:
    """Pixels of a frame that is stored."""
    side = manifest.image_size
    height, width = _size(manifest, reference) if side is None else (side, side)
    return height * width


def _size(manifest: Manifest, reference: str) -> tuple[int, int]:
    """Height and width of a frame that is interpolated, read from an image if the manifest fixes
    none."""
    side = manifest.image_size
    if side is None or manifest.image.resize == "after":
        try:
            path = storage.resolve(manifest.root, reference)
            height, width, _ = images.read(path, None, manifest.image).shape
        except RejectedPair:
            side = side or UNKNOWN_SIDE
        else:
            return height, width
    return side, side


def _padded_pixels(size: Iterable[int], multiple: int) -> int:
    height, width = (-(-side // multiple) * multiple for side in size)
    return height * width
