"""About how many bytes a pair takes on disk, for the check of free space before a job starts."""

from __future__ import annotations

from cc_prep import storage
from cc_prep.errors import RejectedPair
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.records import ImagePair

# Shares of the raw pixels. Of sequences: measured on CLEVR-like renders and on video frames at
# 224 px, the larger one. Of training shards, at quality 95: 0.10 of renders, 0.12 of videos.
SEQUENCE_SHARE = {"png": 0.75, "jpg": 0.2, "webp": 0.15}
TRAINING_JPG_SHARE = 0.13
# Bytes of features a pixel: channels × 2 bytes over the square of the stride.
FEATURE_SHARE = {"none": 0.0, "efficientnet-lite0": 7.75, "resnet101": 8.0, "vqgan": 2.0}
SCORE_BYTES = 4000  # of a sequence; measured: 1.0 kB in a table of 20 rows, 3.0 kB in one of 2
UNKNOWN_SIDE = 512  # px, where neither the manifest nor an image says how large frames are


def sequence_bytes(frames: int, pixels: int, codec: str) -> int:
    """Of a sequence of `frames` images of so many pixels each."""
    return int(frames * 3 * pixels * SEQUENCE_SHARE[codec])


def interpolated_bytes(manifest: Manifest, pair: ImagePair) -> int:
    """Of the sequence that `interpolate` makes of a pair, whose image may have to be read."""
    frames = 2**manifest.interpolate.depth + 1
    if manifest.interpolate.keep_truth:
        frames += len(pair.truth)
    return sequence_bytes(frames, _pixels(manifest, pair.before), manifest.interpolate.codec)


def training_bytes(manifest: Manifest) -> int:
    """Of a sample of a training shard."""
    frames, rule = 2**manifest.interpolate.depth + 1, manifest.keyframes
    stored_images = {"keyframes": rule.k + 2, "all": frames, "none": 0}[rule.images]
    pixels = (manifest.image_size or UNKNOWN_SIDE) ** 2
    tokens = 2 * frames * pixels // 256
    features = {"ends": 2, "keyframes": rule.k + 2, "all": frames}[manifest.features.frames]
    per_frame = int(FEATURE_SHARE[manifest.features.backbone] * pixels)
    images_of = int(stored_images * 3 * pixels * TRAINING_JPG_SHARE)
    return images_of + tokens + features * per_frame + 8000


def _pixels(manifest: Manifest, reference: str) -> int:
    """Pixels of a frame, read off an image where the manifest fixes no size."""
    if manifest.image_size:
        return manifest.image_size**2
    try:
        return images.read(storage.resolve(manifest.root, reference)).size // 3
    except RejectedPair:
        return UNKNOWN_SIDE**2
