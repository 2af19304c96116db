"""The work of each step: weights held by the object, pairs in, encoded samples out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cc_prep import devices, storage, weights
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import scores as score_rows
from cc_prep.formats import sequences
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.media import images, masks
from cc_prep.media.masks import NO_MASKS, ImageSizes, Masks
from cc_prep.media.video_frames import VideoFrames
from cc_prep.records import FrameScores, FrameSequence, ImagePair
from cc_prep.steps import confidence, interpolation, pair_checks
from pipelines.step import Members, unless_rejected

PAIRS_PER_BATCH = {"cpu": 1, "cuda": 8}
# What the driver found for each weight that a manifest names, so that a node of a cluster that has
# another file under the same name is noticed.
Digests = Mapping[str, str]


class ThreadSettings(Protocol):
    """A section of the manifest with networks."""

    @property
    def threads(self) -> int: ...
    @property
    def tf32(self) -> bool: ...


class StepBase:
    """The base of every step.

    digests: SHA-256 of the driver's weights by name. device: `cpu` or `cuda`, where networks run.
    """

    pairs_per_batch = 1

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        self.manifest, self.device, self.digests = manifest, device, digests
        if device == "cpu":
            devices.keep_freed_memory()
        else:
            # Before the first product: without it cuBLAS may sum otherwise each time.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def use(self, settings: ThreadSettings) -> None:
        """Applies the torch settings of a section of the manifest to all that follows."""
        use_threads(settings.threads, settings.tf32 and self.device != "cpu")

    def check(self, file: weights.Located) -> weights.Located:
        """Returns `file` if its digest is the driver's, else raises UserError."""
        if self.digests.get(file.name) != file.sha256:
            raise UserError(
                f"{file.path} on this node is not the file that the driver has",
                "Put the same weights on every node",
            )
        return file

    def free_memory(self) -> None:
        """Gives the GPU's cached memory back."""
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def check_device(self) -> None:
        """Computes a little on the device. Raises the error of a broken device."""
        import torch

        ones = torch.ones(256, 256, device=self.device)
        product = (ones @ ones).sum().item()  # which waits for the device
        if product != 256**3:
            raise RuntimeError(f"CUDA error: a sum of ones is {product:.0f}, not {256**3}")


class StagedStep(StepBase):
    """A step of three stages, see `step.Staged`; a call runs them one after the other."""

    def __call__(self, items: Any) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        return self.encode(items, self.compute(items, self.read(items)))

    def read(self, items: Any) -> Any:
        raise NotImplementedError

    def compute(self, items: Any, inputs: Any) -> Any:
        raise NotImplementedError

    def encode(self, items: Any, computed: Any) -> list[Any]:
        raise NotImplementedError


def use_threads(count: int, tf32: bool = False) -> None:
    """Sets the number of threads: float sums depend on it, so the manifest fixes it.

    tf32: whether a GPU may round the factors of products and convolutions to TF32's 10 bits.
    """
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    # As use_deterministic_algorithms, which also imports the compiler: a second of processor time.
    torch.set_deterministic_debug_mode("warn")
    devices.set_tf32(tf32)
    # Or every new tensor is first filled with NaN: a fortieth of a network's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


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
        self.video_frames = VideoFrames()

    def upcoming(self, pairs: Sequence[ImagePair]) -> None:
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
        self.video_frames.expect(filter(images.is_frame, references))

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

        return unless_rejected(sequence, inputs, range(len(inputs)), pairs)

    def encode(
        self, pairs: Sequence[ImagePair], computed: Sequence[FrameSequence | RejectedPair]
    ) -> list[Members | RejectedPair]:
        """The sequences as members of a tar."""
        settings = self.manifest.interpolate

        def members(sequence: FrameSequence) -> Members:
            codec, quality, threads = settings.codec, settings.quality, settings.threads
            return sequences.encode(sequence, codec, quality, self.meta, threads)

        return unless_rejected(members, computed)

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


class Score(StagedStep):
    """Sequences → scores."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        from cc_prep.steps.scoring import FrameScorer
        from cc_prep.weights import networks

        super().__init__(manifest, digests, device)
        self.use(manifest.score)
        network, file = networks.clip4idc(manifest.score.weights, manifest.score.intra_layers)
        self.weights = self.check(file)
        self.scorer = FrameScorer(network, device)

    def read(self, stored: Sequence[StoredSequence]) -> list[FrameSequence | RejectedPair]:
        """Each sequence's frames, or why it is rejected."""
        return [decoded(sequence) for sequence in stored]

    def compute(
        self,
        stored: Sequence[StoredSequence],
        inputs: Sequence[FrameSequence | RejectedPair],
    ) -> list[FrameScores | RejectedPair]:
        """The scores of sequences that were read."""
        return unless_rejected(lambda read: self.score(read.frames, read.pair.captions), inputs)

    def encode(
        self, stored: Sequence[StoredSequence], computed: Sequence[FrameScores | RejectedPair]
    ) -> list[score_rows.Row | RejectedPair]:
        """The scores as rows of a table."""
        return unless_rejected(self._row, computed)

    def score(self, frames: np.ndarray, captions: Sequence[str]) -> FrameScores:
        """Scores of frames uint8 [F, H, W, 3]."""
        self.use(self.manifest.score)
        return self.scorer(frames, captions)

    def _row(self, scores: FrameScores) -> score_rows.Row:
        rule = self.manifest.keyframes
        penalty = confidence.penalties(*scores.similarities(rule.strategy == "visual"))
        keyframes = confidence.fixed_keyframes(penalty, rule.k, rule.strategy)
        return score_rows.encode(scores, penalty, keyframes, self.weights.name, self.weights.sha256)


def decoded(stored: StoredSequence, with_masks: bool = False) -> FrameSequence | RejectedPair:
    """A stored sequence without its truth, or why it is rejected."""
    try:
        known_masks = stored.masks() if with_masks else NO_MASKS
        return FrameSequence(stored.pair(), stored.frames(), {}, *known_masks)
    except (DamagedShard, ValueError) as error:
        return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
