"""Pairs → sequences: images are read, the frames in between are computed and encoded.

`Interpolator` is what the methods are, arrays in and arrays out. Networks such as RIFE and
VFIformer make the middle frame and are applied recursively; the training-free interpolators make a
frame at any time. `Interpolate` is the step of the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import cv2
import numpy as np

from cc_prep import devices, storage, weights
from cc_prep.errors import RejectedPair, UserError
from cc_prep.formats import sequences
from cc_prep.manifest import TRUTH, Manifest
from cc_prep.manifest import Interpolate as InterpolateSettings
from cc_prep.media import images, masks
from cc_prep.media.deep import Values
from cc_prep.media.flow import MEDIUM, OpticalFlow, grey
from cc_prep.media.masks import NO_MASKS, ImageSizes, Masks
from cc_prep.media.registration import Registration, on_one_grid
from cc_prep.media.video_frames import VideoFrames
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps.base import (
    Digests,
    Members,
    Size,
    StagedStep,
    check_captions,
    check_codec,
    check_sizes,
    map_accepted,
    true_frames,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

RIFE_REMEDY = "Give interpolate.weights=rife-v4.0, or a file with that network's tensors"
VFIFORMER_REMEDY = (
    "Set interpolate.weights to the net_220.pth of {variant}, a local file (docs/interpolation.md)"
)
PIXELS_AT_ONCE = 2**22  # of the midpoints that go through a network together on a GPU

Midpoints = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Interpolator(Protocol):
    """Pairs in, sequences out."""

    def interpolate_batch(self, before: np.ndarray, after: np.ndarray, depth: int) -> np.ndarray:
        """Sequences uint8 [N, 2**depth + 1, H, W, 3] of pairs uint8 [N, H, W, 3].

        The first and last frame are the images themselves, bit for bit.
        """
        ...


def times(depth: int) -> list[float]:
    """The time of each frame of a sequence, 0 for before and 1 for after."""
    return [i / 2**depth for i in range(2**depth + 1)]


def recurse(
    midpoints: Midpoints, before: np.ndarray, after: np.ndarray, depth: int, most: int | None = None
) -> np.ndarray:
    """Sequences by recursion: level by level, the midpoint between every two neighbours.

    Args:
        midpoints: uint8 [M, H, W, 3] twice → uint8 [M, H, W, 3]. All midpoints of a level are
            independent and go through it together, at most `most` in a call. Each level is rounded
            to 8 bits, so the next level sees exactly the frames that are written.
    """
    frames = np.stack((before, after), axis=1)  # [N, F, H, W, 3]
    for _ in range(depth):
        n, f, *image = frames.shape
        left = frames[:, :-1].reshape(n * (f - 1), *image)
        right = frames[:, 1:].reshape(n * (f - 1), *image)
        step = most or len(left)
        level = np.concatenate(
            [midpoints(left[i : i + step], right[i : i + step]) for i in range(0, len(left), step)]
        ).reshape(n, f - 1, *image)
        grown = np.empty((n, 2 * f - 1, *image), np.uint8)
        grown[:, 0::2], grown[:, 1::2] = frames, level
        frames = grown
    return frames


class CrossFade:
    """Linear cross-fade: the baseline that every interpolator has to beat."""

    def interpolate_batch(self, before: np.ndarray, after: np.ndarray, depth: int) -> np.ndarray:
        t = np.array(times(depth), np.float32).reshape(1, -1, 1, 1, 1)
        blend = before[:, None] * (1 - t) + after[:, None] * t
        return np.rint(blend).astype(np.uint8)


class DenseFlow:
    """OpenCV's DIS optical flow both ways, both ends warped to each time, linear blend."""

    def __init__(self, threads: int = 1) -> None:
        self.flow = OpticalFlow(MEDIUM, threads)

    def interpolate_batch(self, before: np.ndarray, after: np.ndarray, depth: int) -> np.ndarray:
        pairs = zip(before, after, strict=True)
        return np.stack([self._frames(b, a, times(depth)) for b, a in pairs])

    def _frames(self, before: np.ndarray, after: np.ndarray, when: list[float]) -> np.ndarray:
        if np.array_equal(before, after):
            return np.stack([before] * len(when))
        grey_before, grey_after = grey(before), grey(after)
        forward = self.flow(grey_before, grey_after)
        backward = self.flow(grey_after, grey_before)
        frames = [before]
        for t in when[1:-1]:
            # The flow at time t is taken at the same place of an end: good for small motion.
            from_before = warp_image(before, -t * forward)
            from_after = warp_image(after, -(1 - t) * backward)
            frames.append(np.rint((1 - t) * from_before + t * from_after).astype(np.uint8))
        return np.stack([*frames, after])


class MidpointInterpolator:
    """Recursion with a network that makes the middle frame, on a device and in a precision.

    A pair that is passed alone has frames that depend on it alone. Pairs that are passed together
    may get others, by rounding: sums round differently with other batch sizes. Jobs on a CPU
    therefore pass one pair at a time, unless `interpolate.pairs_per_batch` is more than 1.
    """

    midpoints_a_pair = 1  # that go through the network together
    blue_first = False  # whether the network takes blue, green, red

    def __init__(self, network: nn.Module, settings: InterpolateSettings, device: str) -> None:
        import torch

        from cc_prep.models.cpu import use_kernels

        self.torch = torch
        self.device = device
        self.dtype = getattr(torch, settings.precision)
        network = network.to(device).to(memory_format=torch.channels_last).eval()
        self.network = use_kernels(network, only_infers=settings.precision == "float32")

    def interpolate_batch(self, before: np.ndarray, after: np.ndarray, depth: int) -> np.ndarray:
        most = self.midpoints_a_pair * len(before)
        if self.device != "cpu":  # so that a large pair fits; on a CPU memory is no such concern
            most = min(most, max(1, PIXELS_AT_ONCE // (before.shape[1] * before.shape[2])))
        return recurse(self._midpoints, before, after, depth, most)

    def _midpoints(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        # Only the convolutions run in half precision: images keep all their levels.
        half = self.torch.autocast(self.device, self.dtype, enabled=self.dtype.itemsize < 4)
        with self.torch.inference_mode(), half:
            middle = self.network(self._tensor(before), self._tensor(after))
            levels = (middle.float() * 255).round().clamp(0, 255).to(self.torch.uint8)
            result: np.ndarray = self._channels(levels).permute(0, 2, 3, 1).cpu().numpy()
            return result

    def _tensor(self, images: np.ndarray) -> Tensor:
        # Copied, since Ray hands out read-only arrays.
        tensor = self.torch.tensor(images, device=self.device)
        return self._channels(tensor.permute(0, 3, 1, 2)).float() / 255

    def _channels(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] with channels reordered from RGB to the network's order, or back."""
        return images.flip(1) if self.blue_first else images


class RifeInterpolator(MidpointInterpolator):
    """RIFE v4.0."""

    midpoints_a_pair = 4

    def __init__(
        self, weights: Mapping[str, Any], settings: InterpolateSettings, device: str = "cpu"
    ) -> None:
        from cc_prep.models.rife import RIFE

        network = RIFE(settings.pad_multiple, settings.refine, settings.padding_mode)
        expected = network.state_dict()
        network.load_state_dict(fitting(weights, expected, "RIFE v4.0", RIFE_REMEDY))
        super().__init__(network, settings, device)


class VfiformerInterpolator(MidpointInterpolator):
    """VFIformer, or its small variant, depending on `settings.method`."""

    blue_first = True

    def __init__(
        self, weights: Mapping[str, Any], settings: InterpolateSettings, device: str = "cpu"
    ) -> None:
        import torch

        from cc_prep.models.vfiformer import network as vfiformer

        name = VFIFORMER_NAMES[settings.method]
        remedy = VFIFORMER_REMEDY.format(variant=name)
        config = vfiformer.VARIANTS[settings.method]
        with torch.device("meta"):
            network = vfiformer.VFIformer(config, settings.padding_mode)
        expected = network.state_dict()
        tensors = fitting(weights, expected, name, remedy)
        unknown = vfiformer.unknown_names(weights, config)
        if unknown:
            names = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
            raise UserError(f"these are no {name} weights: it has no {names}", remedy)
        tensors = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
        network.load_state_dict(tensors, assign=True)
        super().__init__(network, settings, device)


VFIFORMER_NAMES = {"vfiformer": "VFIformer", "vfiformer-small": "VFIformerSmall"}


def warp_image(image: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """`image` [H, W, 3] sampled at each pixel's position plus `flow` [H, W, 2] (x, y in px)."""
    height, width = image.shape[:2]
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(
        image.astype(np.float32),
        x + flow[..., 0].astype(np.float32),
        y + flow[..., 1].astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )


def fitting(
    weights: Mapping[str, Any], expected: Mapping[str, Any], network: str, remedy: str
) -> dict[str, Any]:
    """The tensors that a network expects, by name, and no others.

    Args:
        network, remedy: Its name and how to get its weights, for the message.

    Raises:
        UserError: If a tensor is missing or has another shape.
    """
    for name, tensor in expected.items():
        if name not in weights:
            raise UserError(f"these are no {network} weights: no {name} in them", remedy)
        if weights[name].shape != tensor.shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise UserError(f"these are no {network} weights: {name} is {shapes}", remedy)
    return {name: weights[name] for name in expected}


# The methods that are networks: the jobs find the weights of these, check them on every node and
# fix the number of threads.
NETWORKS: dict[str, Callable[[Mapping[str, Any], InterpolateSettings, str], Interpolator]] = {
    "rife": RifeInterpolator,
    "vfiformer": VfiformerInterpolator,
    "vfiformer-small": VfiformerInterpolator,
}
# The weights of `cc-prep weights` that belong to a network. Others take files only.
NAMED_WEIGHTS = {"rife": ("rife-v4.0",)}


def check_truth(pair: ImagePair, depth: int) -> None:
    """Raises UserError if a pair has no true frame at one of the times of this depth."""
    known = {time for time, _ in pair.truth}
    missing = [time for time in times(depth)[1:-1] if time not in known]
    if missing:
        raise UserError(
            f"interpolate.method={TRUTH}: {pair.name} has no true frame at the time {missing[0]:g}",
            "Take data with true frames (cc-prep synth --truth has 7 a pair, for a depth of up to "
            "3), or another method",
        )


def has_weights(settings: InterpolateSettings) -> bool:
    """Whether the method of a manifest is a network, which needs `interpolate.weights`."""
    return settings.method in NETWORKS


def make(
    settings: InterpolateSettings, weights: Mapping[str, Any] | None, device: str
) -> Interpolator:
    """The interpolator that a manifest asks for.

    Args:
        weights: Tensors by name; only for methods that have weights.
        device: `cpu` or `cuda`.

    Raises:
        UserError: For weights of another network.
    """
    if settings.method in NETWORKS:
        assert weights is not None, settings.method
        return NETWORKS[settings.method](weights, settings, device)
    if settings.method == "crossfade":
        return CrossFade()
    assert settings.method == "dis", settings.method
    return DenseFlow(settings.threads)


PAIRS_PER_BATCH = {"cpu": 1, "cuda": 8}


@dataclass(frozen=True)
class DecodedPair:
    """The images of a pair, uint8 [H, W, 3] each: both ends, true frames by number, and masks.

    Attributes:
        registration: By which motion `after` was laid on `before`.
    """

    before: np.ndarray
    after: np.ndarray
    truth: dict[int, np.ndarray] = field(default_factory=dict)
    masks: Masks = NO_MASKS
    registration: Registration | None = None


class Interpolate(StagedStep):
    """Pairs → sequences.

    Args:
        with_truth: Also read the data set's true frames, if the manifest's `keep_truth` is set.
            Masks are read whenever it is set. The method `truth` always reads the true frames: they
            become the sequence.
    """

    def __init__(
        self, manifest: Manifest, digests: Digests, device: str, with_truth: bool = True
    ) -> None:
        super().__init__(manifest, digests, device)
        settings = manifest.interpolate
        self.takes_truth = settings.method == TRUTH
        # True frames lie between the images as they are, and not as they are registered.
        keeps_truth = settings.keep_truth and manifest.pairs.register == "none"
        self.with_truth = self.takes_truth or (with_truth and keeps_truth)
        self.moves_images = manifest.pairs.resize or manifest.pairs.register != "none"
        self.resizes_frames = manifest.image.resize == "after" and not self.takes_truth
        self.pairs_per_batch = settings.pairs_per_batch or PAIRS_PER_BATCH[device]
        self.meta: dict[str, object] = {"method": settings.method, "depth": settings.depth}
        tensors = None
        if has_weights(settings):
            devices.use(settings, self.device)
            file = self.check(weights.locate(settings.weights))
            tensors = weights.read_tensors(file.path)
            self.meta["weights"] = file.name
        if not self.takes_truth:
            self.interpolator = make(settings, tensors, device)

    @cached_property
    def video_frames(self) -> VideoFrames:
        """Frames of videos that were announced; made where there are videos."""
        return VideoFrames()

    def prefetch(self, pairs: Sequence[ImagePair]) -> None:
        """Announces pairs that will be read, in this order, so that a video is read in one pass."""
        references = (
            storage.resolve(self.manifest.root, reference)
            for pair in pairs
            for reference in (
                pair.before,
                pair.after,
                *(image for _, image in pair.truth if self.with_truth),
            )
            if images.FRAME in reference
        )
        frames = list(filter(images.is_frame, references))
        if frames or "video_frames" in self.__dict__:  # which then drops those of another shard
            self.video_frames.expect(frames)

    def read(self, pairs: Sequence[ImagePair]) -> list[DecodedPair | RejectedPair]:
        """Each pair's images, or why it is rejected."""
        return [self._read(pair) for pair in pairs]

    def compute(
        self, pairs: Sequence[ImagePair], inputs: Sequence[DecodedPair | RejectedPair]
    ) -> list[FrameSequence | RejectedPair]:
        """The sequences of pairs whose images were read."""
        if has_weights(self.manifest.interpolate):
            devices.use(self.manifest.interpolate, self.device)
        readable = {i: read for i, read in enumerate(inputs) if isinstance(read, DecodedPair)}
        if self.takes_truth:
            frames = {i: _true_frames(read) for i, read in readable.items()}
        else:
            frames = self._frames({i: (read.before, read.after) for i, read in readable.items()})
        if self.resizes_frames:
            frames = {i: np.stack(self._resized(of)) for i, of in frames.items()}

        def sequence(read: DecodedPair, number: int, pair: ImagePair) -> FrameSequence:
            truth = {} if self.takes_truth else read.truth
            found = None if read.registration is None else read.registration.to_json()
            return FrameSequence(pair, frames[number], truth, *read.masks, found)

        return map_accepted(sequence, inputs, range(len(inputs)), pairs)

    def encode(
        self, pairs: Sequence[ImagePair], computed: Sequence[FrameSequence | RejectedPair]
    ) -> list[Members | RejectedPair]:
        """The sequences as members of a tar."""
        settings = self.manifest.interpolate

        def members(sequence: FrameSequence) -> Members:
            codec, quality, threads = settings.codec, settings.quality, settings.threads
            return sequences.encode(sequence, codec, quality, self.meta, threads)

        return map_accepted(members, computed)

    def _frames(
        self, before_after: dict[int, tuple[np.ndarray, np.ndarray]]
    ) -> dict[int, np.ndarray]:
        """Frames by the pair's number; only pairs of one size go through the network together."""
        frames: dict[int, np.ndarray] = {}
        for shape in {before.shape for before, _ in before_after.values()}:
            numbers = [i for i, (before, _) in before_after.items() if before.shape == shape]
            before, after = (
                np.stack([before_after[i][which] for i in numbers]) for which in (0, 1)
            )
            interpolated = self.interpolator.interpolate_batch(
                before, after, self.manifest.interpolate.depth
            )
            frames.update(zip(numbers, interpolated, strict=True))
        return frames

    def _read(self, pair: ImagePair) -> DecodedPair | RejectedPair:
        settings = self.manifest.interpolate
        try:
            check_captions(pair.captions)
            truth = true_frames(pair, settings.depth) if self.with_truth else {}
            pixels, stored_sizes = self._images([pair.before, pair.after, *truth.values()])
            before, after, *between = pixels
            registration = None
            if self.moves_images:
                before, after, registration = on_one_grid(before, after, self.manifest.pairs)
            if not self.resizes_frames:
                before, after = self._resized([before, after])
            between = self._resized(between)
            side = self.manifest.image_size
            size = before.shape[:2] if side is None else (side, side)
            others = [frame.shape[:2] for frame in between]
            check_sizes(before.shape[:2], after.shape[:2])
            check_sizes(size, size, others)
            check_codec(size, settings.codec)
            truth_frames = dict(zip(truth, between, strict=True))
            if not settings.keep_truth:
                return DecodedPair(before, after, truth_frames, registration=registration)
            sizes = ImageSizes(*stored_sizes[:2])
            known_masks = masks.of_pair(
                self.manifest.root, pair, *size, sizes=sizes, registration=registration
            )
            return DecodedPair(before, after, truth_frames, known_masks, registration)
        except RejectedPair as error:
            return error

    def _resized(self, pictures: Iterable[np.ndarray]) -> list[np.ndarray]:
        size, how = self.manifest.image_size, self.manifest.image.filter
        return [images.resize(picture, size, how) for picture in pictures]

    def _images(self, references: Sequence[str]) -> tuple[list[np.ndarray], list[Size | None]]:
        """Images of a pair, and the sizes in which they are stored.

        That of a video's frame is not known: frames that are held for later are resized, unless
        another filter or place is set.
        """
        paths = [storage.resolve(self.manifest.root, reference) for reference in references]
        size, values = self.manifest.image_size, self.manifest.image
        if self.resizes_frames or values.filter != "bicubic":
            size = None
        found: list[np.ndarray | Values] = []
        sizes: list[Size | None] = []
        for path in paths:
            if images.is_frame(path):
                found.append(self.video_frames.read(path, size))
                sizes.append(None)
            else:
                found.append(images.load(path, values))
                sizes.append(images.size_of(found[-1]))
        return images.to_rgb(found, values), sizes


def _true_frames(read: DecodedPair) -> np.ndarray:
    """The images of a pair with the true frames between them, uint8 [F, H, W, 3]."""
    return np.stack([read.before, *(read.truth[i] for i in sorted(read.truth)), read.after])
