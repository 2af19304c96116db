"""What a job asks of a pair, as far as it can be seen before any network runs.

The steps of the jobs and `cc-prep inspect` call the same functions with the same settings, so that
no pair is rejected for what `inspect` could have seen and did not say. Sizes are (height, width) in
px.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cc_prep.errors import Reason, RejectedPair
from cc_prep.manifest import NONE, TRUTH, Keyframes, Manifest
from cc_prep.records import MAX_CAPTION_LENGTH, ImagePair

Size = tuple[int, int]
MAX_SIDES = {"jpg": 65_500, "webp": 16_383}  # px of the formats that cannot hold every image


class Multiple(NamedTuple):
    """What both sides of a frame must be multiples of, in px, and what asks for it."""

    px: int
    what: str

    @classmethod
    def of_tokens(cls, factor: int) -> Multiple:
        return cls(factor, "the size of a token")

    @classmethod
    def of_features(cls, multiple: int) -> Multiple:
        return cls(multiple, "as the backbone needs it")


def check_captions(captions: Sequence[str]) -> None:
    """Raises RejectedPair if one has more characters than a shard takes."""
    longest = max(map(len, captions), default=0)
    if longest > MAX_CAPTION_LENGTH:
        raise RejectedPair(
            Reason.CAPTION_TOO_LONG,
            f"{longest:,} characters, at most {MAX_CAPTION_LENGTH:,}",
            "Shorten it: a caption is a sentence",
        )


def check_sizes(before: Size, after: Size, truth: Iterable[Size] = ()) -> None:
    """Raises RejectedPair if the images of a pair, or the true frames between them, differ."""
    if before != after:
        raise RejectedPair(
            Reason.SIZES_DIFFER,
            f"{shown(before)} and {shown(after)} px",
            "Set image_size to resize both, or pairs.resize to resize the larger one",
        )
    others = [size for size in truth if size != before]
    if others:
        raise RejectedPair(
            Reason.SIZES_DIFFER,
            f"{shown(before)} px, and a true frame has {shown(others[0])} px",
            "Set image_size to resize all",
        )


def check_divisible(size: Size, multiple: Multiple) -> None:
    """Raises RejectedPair if a side is no multiple of what a network needs."""
    if any(side % multiple.px for side in size):
        raise RejectedPair(
            Reason.SIZE_NOT_DIVISIBLE,
            f"{shown(size)} px: not divisible by {multiple.px} px, {multiple.what}",
            "Set image_size",
        )


def check_codec(size: Size, codec: str) -> None:
    """Raises RejectedPair if a frame is too large for the format that it is stored in."""
    max_side = MAX_SIDES.get(codec)
    if max_side is not None and max(size) > max_side:
        raise RejectedPair(
            Reason.IMAGE_TOO_LARGE,
            f"{shown(size)} px: {codec} holds {max_side:,} px a side at most",
            "Set image_size",
        )


def check_keyframes(size: Size, settings: Keyframes) -> None:
    """Raises RejectedPair if a training shard stores images of frames and these are too large."""
    if settings.images != "none":
        check_codec(size, "jpg")


def multiples(manifest: Manifest) -> list[Multiple]:
    """What tokens and features ask of the size of frames.

    Raises:
        UserError: Where that depends on weights that are not on this machine.
    """
    from cc_prep.models import backbones  # which brings torch
    from cc_prep.weights import networks

    asked = []
    if manifest.tokenize.weights != NONE:
        network, _, _ = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
        asked.append(Multiple.of_tokens(network.config.factor))
    settings = manifest.features
    if settings.backbone != NONE and settings.folder is None:
        known = backbones.BACKBONES.get(settings.backbone)
        multiple = None if known is None else known.multiple
        if multiple is None:
            backbone, _ = networks.features_backbone(settings)
            multiple = backbones.multiple(settings.backbone, backbone)
        asked.append(Multiple.of_features(multiple))
    return asked


def true_frames(pair: ImagePair, depth: int) -> dict[int, str]:
    """The true frames that a sequence of this depth has room for: images by number of frame."""
    last = 2**depth
    return {round(t * last): image for t, image in pair.truth if (t * last).is_integer()}


def reads_truth(manifest: Manifest) -> bool:
    """Whether a job reads the true frames of a data set."""
    settings = manifest.interpolate
    return settings.keep_truth or settings.method == TRUTH


def shown(size: Size) -> str:
    """A size as width × height."""
    return f"{size[1]}×{size[0]}"
