"""The work of each step: weights held by the object, pairs in, encoded samples out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cc_prep import storage, weights
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.formats import scores as score_rows
from cc_prep.formats import sequences, training_shards
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import NONE, Manifest
from cc_prep.media import images
from cc_prep.media.video_frames import VideoFrames
from cc_prep.models.cpu import allocator
from cc_prep.records import LONGEST_CAPTION, FrameScores, FrameSequence, ImagePair
from cc_prep.steps import confidence, interpolation
from pipelines.step import Members

PAIRS_PER_BATCH = {"cpu": 1, "cuda": 8}
# What the driver found for each weight that a manifest names, so that a node of a cluster that has
# another file under the same name is noticed.
Digests = Mapping[str, str]


class Networks:
    """What every step shares.

    digests: SHA-256 of the driver's weights by name. device: `cpu` or `cuda`, where networks run.
    """

    pairs_per_batch = 1

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        self.manifest, self.device, self.digests = manifest, device, digests
        if device == "cpu":
            allocator.keep_freed_memory()
        else:
            # Before the first product: without it cuBLAS may sum otherwise each time.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def check(self, file: weights.Located) -> weights.Located:
        """`file`, if it is the one that the driver has. Raises UserError."""
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
        """Computes a little on the device. Raises what a broken one raises."""
        import torch

        ones = torch.ones(256, 256, device=self.device)
        product = (ones @ ones).sum().item()  # which waits for the device
        if product != 256**3:
            raise RuntimeError(f"CUDA error: a sum of ones is {product:.0f}, not {256**3}")


def use_threads(count: int) -> None:
    """The thread count of what runs next: float sums depend on it, so the manifest fixes it."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # On a GPU float32 is float32: torch's own default has convolutions in TF32, of 10 bits.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    # Or every new tensor is first filled with NaN: a fortieth of a network's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class Interpolate(Networks):
    """Pairs → sequences.

    with_truth: whether true frames are read where the data set has them. A mask always is.
    """

    def __init__(
        self, manifest: Manifest, digests: Digests, device: str, with_truth: bool = True
    ) -> None:
        super().__init__(manifest, digests, device)
        settings, self.with_truth = manifest.interpolate, with_truth
        self.pairs_per_batch = settings.pairs_per_batch or PAIRS_PER_BATCH[device]
        self.meta: dict[str, object] = {"method": settings.method, "depth": settings.depth}
        tensors = None
        if interpolation.has_weights(settings):
            use_threads(settings.threads)
            file = self.check(weights.locate(settings.weights))
            tensors = weights.read_tensors(file.path)
            self.meta["weights"] = file.name
        self.interpolator = interpolation.make(settings, tensors, device)
        self.video_frames = VideoFrames()

    def upcoming(self, pairs: Sequence[ImagePair]) -> None:
        """Pairs that will be read, in this order: frames of a video are then read in one pass."""
        with_truth = self.with_truth and self.manifest.interpolate.keep_truth
        references = [
            storage.resolve(self.manifest.root, reference)
            for pair in pairs
            for reference in (
                pair.before,
                pair.after,
                *(image for _, image in pair.truth if with_truth),
            )
            if images.FRAME in reference
        ]
        self.video_frames.expect(references)

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        settings = self.manifest.interpolate
        return [
            outcome
            if isinstance(outcome, RejectedPair)
            else sequences.encode(
                outcome, settings.codec, settings.quality, self.meta, settings.threads
            )
            for outcome in self.sequences(pairs)
        ]

    def sequences(self, pairs: Sequence[ImagePair]) -> list[FrameSequence | RejectedPair]:
        """Each pair's sequence with its truth and mask, or why it was rejected."""
        if interpolation.has_weights(self.manifest.interpolate):
            use_threads(self.manifest.interpolate.threads)
        before_after = [self._read(pair) for pair in pairs]
        frames = self._frames(
            {i: both for i, both in enumerate(before_after) if not isinstance(both, RejectedPair)}
        )
        return [
            both if isinstance(both, RejectedPair) else self._with_truth(pair, frames[i])
            for i, (pair, both) in enumerate(zip(pairs, before_after, strict=True))
        ]

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

    def _read(self, pair: ImagePair) -> tuple[np.ndarray, np.ndarray] | RejectedPair:
        longest = max(map(len, pair.captions), default=0)
        if longest > LONGEST_CAPTION:
            return RejectedPair(Reason.CAPTION_TOO_LONG, f"{longest:,} characters")
        try:
            before, after = self._image(pair.before), self._image(pair.after)
        except RejectedPair as error:
            return error
        if before.shape != after.shape:
            sizes = " and ".join(f"{x.shape[1]}×{x.shape[0]}" for x in (before, after))
            return RejectedPair(Reason.SIZES_DIFFER, f"{sizes}; set image_size to resize both")
        return before, after

    def _image(self, reference: str) -> np.ndarray:
        place = storage.resolve(self.manifest.root, reference)
        read = self.video_frames.read if images.FRAME in reference else images.read
        return read(place, self.manifest.image_size)

    def _with_truth(self, pair: ImagePair, frames: np.ndarray) -> FrameSequence | RejectedPair:
        truth, mask = {}, None
        try:
            if self.manifest.interpolate.keep_truth:
                last = len(frames) - 1
                truth = {
                    round(t * last): self._image(place)
                    for t, place in pair.truth
                    if self.with_truth and (t * last).is_integer()
                }
                if pair.mask is not None:
                    place = storage.resolve(self.manifest.root, pair.mask)
                    mask = images.read_mask(place, self.manifest.image_size)
                    mask = images.fitted_mask(mask, *frames.shape[1:3])
        except RejectedPair as error:
            return error
        return FrameSequence(pair, frames, truth, mask)


class Score(Networks):
    """Sequences → scores."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        from cc_prep.steps.scoring import Scorer
        from cc_prep.weights import networks

        super().__init__(manifest, digests, device)
        use_threads(manifest.score.threads)
        network, file = networks.clip4idc(manifest.score.weights, manifest.score.intra_layers)
        self.weights = self.check(file)
        self.scorer = Scorer(network, device)

    def __call__(self, stored: Sequence[StoredSequence]) -> list[score_rows.Row | RejectedPair]:
        return [self._row(sequence) for sequence in stored]

    def score(self, frames: np.ndarray, captions: Sequence[str]) -> FrameScores:
        """Scores of frames uint8 [F, H, W, 3]."""
        use_threads(self.manifest.score.threads)
        return self.scorer(frames, captions)

    def _row(self, stored: StoredSequence) -> score_rows.Row | RejectedPair:
        try:
            frames, captions = stored.frames(), stored.pair().captions
        except (DamagedShard, ValueError) as error:
            return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
        scores = self.score(frames, captions)
        rule = self.manifest.keyframes
        penalty = confidence.penalties(*scores.similarities(rule.strategy == "visual"))
        keyframes = confidence.fixed_keyframes(penalty, rule.k, rule.strategy)
        return score_rows.encode(scores, penalty, keyframes, self.weights.name, self.weights.sha256)


class Build(Networks):
    """Pairs or stored sequences → training samples: what is not there yet is made on the way.

    All networks sit in one actor, so frames never leave it. makes: the steps before
    tokenising that are to be done here, of `interpolate` and `score`. scorer: the name of the
    weights that the scores are of.
    """

    def __init__(
        self,
        manifest: Manifest,
        digests: Digests,
        makes: frozenset[str],
        scorer: str,
        device: str,
    ) -> None:
        from cc_prep.steps.features import FeatureExtractor
        from cc_prep.steps.tokenization import Tokenizer
        from cc_prep.weights import networks

        super().__init__(manifest, digests, device)
        self.interpolate, self.score = None, None
        if "interpolate" in makes:
            # Training shards hold no true frames: none is read, and none is missed.
            self.interpolate = Interpolate(manifest, digests, device, with_truth=False)
            self.pairs_per_batch = self.interpolate.pairs_per_batch
        if "score" in makes:
            self.score = Score(manifest, digests, device)
        self.meta: dict[str, Any] = {"scorer": scorer}
        self.tokenizer, self.extractor = None, None
        if manifest.tokenize.weights != NONE:
            use_threads(manifest.tokenize.threads)
            network, file, _ = networks.vqgan(manifest.tokenize.weights, manifest.tokenize.config)
            self.tokenizer = Tokenizer(network, device)
            self.meta["tokenizer"] = self.check(file).name
            self.meta["tokenizer_sha256"] = file.sha256
            self.meta["codes"] = network.config.codes
        settings = manifest.features
        if settings.backbone != NONE:
            use_threads(settings.threads)
            backbone, file = networks.backbone(settings.backbone, settings.weights)
            self.extractor = FeatureExtractor(
                settings.backbone, backbone, self.check(file), device, settings.precision
            )

    def upcoming(self, pairs: Sequence[ImagePair]) -> None:
        """See `Interpolate.upcoming`."""
        if self.interpolate is not None:
            self.interpolate.upcoming(pairs)

    def __call__(
        self, items: Sequence[ImagePair] | Sequence[StoredSequence]
    ) -> list[Members | RejectedPair]:
        if self.interpolate is None:
            return [self._from_stored(item) for item in items if isinstance(item, StoredSequence)]
        pairs = [item for item in items if isinstance(item, ImagePair)]
        return [
            outcome if isinstance(outcome, RejectedPair) else self._from_interpolated(outcome)
            for outcome in self.interpolate.sequences(pairs)
        ]

    def _from_interpolated(self, sequence: FrameSequence) -> Members | RejectedPair:
        assert self.interpolate is not None
        settings, interpolator = self.manifest.interpolate, self.interpolate.meta
        if settings.codec == "png":
            return self._sample(sequence, None, interpolator)
        # Lossy codecs change the frames: what the later steps would read is what they must see.
        members = sequences.encode(sequence, settings.codec, settings.quality, interpolator)
        meta = {"codec": settings.codec, "frames": len(sequence.frames)}
        frames = StoredSequence(sequence.pair.key, meta, members).frames()
        sequence = FrameSequence(sequence.pair, frames, mask=sequence.mask)
        return self._sample(sequence, None, interpolator)

    def _from_stored(self, stored: StoredSequence) -> Members | RejectedPair:
        try:
            sequence = FrameSequence(stored.pair(), stored.frames(), mask=stored.mask())
        except (DamagedShard, ValueError) as error:
            return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
        return self._sample(sequence, stored.scores, stored.meta.get("interpolator", {}))

    def _sample(
        self, sequence: FrameSequence, scores: FrameScores | None, interpolator: Mapping[str, Any]
    ) -> Members | RejectedPair:
        rule, frames = self.manifest.keyframes, sequence.frames
        if scores is None and self.score is not None:
            scores = self.score.score(frames, sequence.pair.captions)
        try:
            similarities, scored_by = self._similarities(scores, len(frames))
            tokens = self._tokens(frames)
            penalty = confidence.penalties(*similarities)
            chosen = confidence.fixed_keyframes(penalty, rule.k, rule.strategy)
            features = self._features(frames, chosen)
        except RejectedPair as error:
            return error
        shown = {"keyframes": chosen, "all": list(range(len(frames))), "none": []}[rule.images]
        meta = {
            **self.meta,
            "interpolator": dict(interpolator),
            "scored_by": scored_by,
            "keyframes": chosen,
        }
        return training_shards.encode(
            sequence, tokens, similarities, shown, rule.quality, meta, features
        )

    def _similarities(self, scores: FrameScores | None, count: int) -> tuple[np.ndarray, str]:
        """What keyframes are drawn from, float32 [2, captions, F], and what it is of.

        Raises RejectedPair where it is missing.
        """
        if scores is None:
            if self.manifest.score.weights != NONE:
                raise RejectedPair(Reason.UNREADABLE_SEQUENCE, "no scores of this sequence")
            return np.zeros((2, 0, count), np.float32), NONE
        visual = self.manifest.keyframes.strategy == "visual" or not scores.captions
        if visual and not len(scores.bef_inter_visual):
            raise RejectedPair(
                Reason.UNREADABLE_SEQUENCE,
                "imported scores lack image similarity; run score-frames",
            )
        return scores.similarities(visual), "likeness" if visual else "captions"

    def _tokens(self, frames: np.ndarray) -> np.ndarray:
        """Indices int16 [F, h, w], or [F, 0, 0] without a tokenizer. Raises RejectedPair."""
        if self.tokenizer is None:
            return np.zeros((len(frames), 0, 0), np.int16)
        use_threads(self.manifest.tokenize.threads)
        return self.tokenizer(frames)

    def _features(
        self, frames: np.ndarray, keyframes: list[int]
    ) -> training_shards.Features | None:
        """What the manifest asks for; None without a backbone. Raises RejectedPair."""
        if self.extractor is None:
            return None
        settings, last = self.manifest.features, len(frames) - 1
        use_threads(settings.threads)
        frames_of = {"ends": [0, last], "keyframes": keyframes, "all": list(range(last + 1))}
        return self.extractor(frames, frames_of[settings.frames])
