"""Pairs → sequences: images are read, frames in between are computed and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cc_prep import storage, weights
from cc_prep.errors import RejectedPair
from cc_prep.formats import sequences
from cc_prep.manifest import Manifest
from cc_prep.media import images, masks
from cc_prep.media.masks import NO_MASKS, ImageSizes, Masks
from cc_prep.media.video_frames import VideoFrames
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps import interpolation, pair_checks
from pipelines.steps.base import Digests, Members, StagedStep, map_accepted

PAIRS_PER_BATCH = {"cpu": 1, "cuda": 8}


@dataclass(frozen=True)
class DecodedPair:
    """The images of a pair, uint8 [H, W, 3] each: both ends, true frames by number, and masks."""

    before: np.ndarray
    after: np.ndarray
    truth: dict[int, np.ndarray] = field(default_factory=dict)
    masks: Masks = NO_MASKS


class Interpolate(StagedStep):
    """Pairs → sequences.

    with_truth: also read the data set's true frames, if the manifest's `keep_truth` is set. Masks
    are read whenever it is set. The method `truth` always reads the true frames: they become the
    sequence.
    """

    def __init__(
        self, manifest: Manifest, digests: Digests, device: str, with_truth: bool = True
    ) -> None:
        super().__init__(manifest, digests, device)
        settings = manifest.interpolate
        self.takes_truth = settings.method == interpolation.TRUTH
        self.with_truth = self.takes_truth or (with_truth and settings.keep_truth)
        self.pairs_per_batch = settings.pairs_per_batch or PAIRS_PER_BATCH[device]
        self.meta: dict[str, object] = {"method": settings.method, "depth": settings.depth}
        tensors = None
        if interpolation.has_weights(settings):
            self.use(settings)
            file = self.check(weights.locate(settings.weights))
            tensors = weights.read_tensors(file.path)
            self.meta["weights"] = file.name
        if not self.takes_truth:
            self.interpolator = interpolation.make(settings, tensors, device)

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
        if interpolation.has_weights(self.manifest.interpolate):
            self.use(self.manifest.interpolate)
        readable = {i: read for i, read in enumerate(inputs) if isinstance(read, DecodedPair)}
        if self.takes_truth:
            frames = {i: _true_frames(read) for i, read in readable.items()}
        else:
            frames = self._frames({i: (read.before, read.after) for i, read in readable.items()})

        def sequence(read: DecodedPair, number: int, pair: ImagePair) -> FrameSequence:
            truth = {} if self.takes_truth else read.truth
            return FrameSequence(pair, frames[number], truth, *read.masks)

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
            interpolated = self.interpolator.sequence(
                before, after, self.manifest.interpolate.depth
            )
            frames.update(zip(numbers, interpolated, strict=True))
        return frames

    def _read(self, pair: ImagePair) -> DecodedPair | RejectedPair:
        settings = self.manifest.interpolate
        try:
            pair_checks.check_captions(pair.captions)
            (before, before_size), (after, after_size) = map(self._image, (pair.before, pair.after))
            size = before.shape[:2]
            pair_checks.check_sizes(size, after.shape[:2])
            pair_checks.check_codec(size, settings.codec)
            truth = self._truth(pair) if self.with_truth else {}
            pair_checks.check_sizes(size, size, (frame.shape[:2] for frame in truth.values()))
            if not settings.keep_truth:
                return DecodedPair(before, after, truth)
            height, width = size
            sizes = ImageSizes(before_size, after_size)
            known_masks = masks.of_pair(self.manifest.root, pair, height, width, sizes=sizes)
            return DecodedPair(before, after, truth, known_masks)
        except RejectedPair as error:
            return error

    def _image(self, reference: str) -> tuple[np.ndarray, pair_checks.Size | None]:
        """An image in the size of the frames, and the size in which it is stored.

        That of a video's frame is not known: frames that are held for later are resized.
        """
        path, size = storage.resolve(self.manifest.root, reference), self.manifest.image_size
        if images.is_frame(path):
            return self.video_frames.read(path, size), None
        pixels = images.read(path)
        return images.resize(pixels, size), pixels.shape[:2]

    def _truth(self, pair: ImagePair) -> dict[int, np.ndarray]:
        references = pair_checks.true_frames(pair, self.manifest.interpolate.depth)
        return {number: self._image(reference)[0] for number, reference in references.items()}


def _true_frames(read: DecodedPair) -> np.ndarray:
    """The images of a pair with the true frames between them, uint8 [F, H, W, 3]."""
    return np.stack([read.before, *(read.truth[i] for i in sorted(read.truth)), read.after])
