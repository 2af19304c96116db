"""The work of `cc-prep build`: all networks in one worker, pairs or sequences in, samples out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cc_prep import devices
from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import sequences, training_shards
from cc_prep.formats.sequences import StoredSequence
from cc_prep.manifest import NONE, Manifest
from cc_prep.records import FrameScores, FrameSequence, ImagePair
from cc_prep.steps.base import (
    Digests,
    Members,
    StagedStep,
    WithFindings,
    check_keyframes,
    map_accepted,
    unwrap,
)
from cc_prep.steps.imported_features import UNKNOWN, FeatureFiles
from cc_prep.steps.interpolate import Interpolate
from cc_prep.steps.score import Score, decoded, fixed_keyframes, penalties

Items = Sequence[ImagePair] | Sequence[StoredSequence] | Sequence[WithFindings]


@dataclass(frozen=True)
class Computed:
    """What the networks made of an item, not yet encoded.

    Attributes:
        sequence: Its frames, captions and masks.
        tokens: int16 [F, h, w].
        scores: float32 [2, captions, F], which keyframes are drawn from.
        image_frames: Frames whose images are stored.
        features: Of a backbone, if the manifest asks for any.
        meta: How all this was made.
    """

    sequence: FrameSequence
    tokens: np.ndarray
    scores: np.ndarray
    image_frames: list[int]
    features: training_shards.Features | None
    meta: dict[str, Any]


class Build(StagedStep):
    """Pairs or stored sequences → training samples; missing sequences and scores are computed.

    Items may come with findings, which go into their samples. All networks are in one actor, so
    frames never leave it.

    Args:
        makes: The steps before tokenising that are done here, out of `interpolate` and `score`.
        scorer: The name of the weights that made the scores.
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
            devices.use(manifest.tokenize, self.device)
            config = manifest.tokenize.config
            network, file, unused = networks.vqgan(manifest.tokenize.weights, config)
            self.tokenizer = Tokenizer(network, device)
            self.meta |= networks.tokenizer_meta(network, self.check(file), unused, config)
        settings = manifest.features
        self.feature_files = None
        if settings.folder is not None:
            self.feature_files = self._imported_features(settings.folder)
        elif settings.backbone != NONE:
            devices.use(settings, self.device)
            backbone, file = networks.features_backbone(settings)
            self.extractor = FeatureExtractor(
                settings.backbone,
                backbone,
                self.check(file),
                device,
                settings.precision,
                settings.mirrored,
            )

    def prefetch(self, pairs: Sequence[ImagePair]) -> None:
        """Announces pairs that will be read; see `Interpolate.prefetch`."""
        if self.interpolate is not None:
            self.interpolate.prefetch(pairs)

    def read(self, items: Items) -> list[Any]:
        """Each item's images or frames, or why it is rejected."""
        if self.interpolate is None:
            return [decoded(stored, with_masks=True) for stored in map(unwrap, items)]
        return self.interpolate.read([unwrap(item) for item in items])

    def compute(self, items: Items, inputs: list[Any]) -> list[Computed | RejectedPair]:
        """What all networks make of items that were read."""
        if self.interpolate is not None:
            computed = self.interpolate.compute([unwrap(item) for item in items], inputs)
            return map_accepted(self._interpolated, computed)

        def sample(sequence: FrameSequence, stored: StoredSequence) -> Computed | RejectedPair:
            return self._sample(sequence, stored.scores, stored.meta.get("interpolator", {}))

        return map_accepted(sample, inputs, map(unwrap, items))

    def encode(
        self, items: Items, computed: list[Computed | RejectedPair]
    ) -> list[Members | RejectedPair]:
        """The samples as members of a tar."""
        return map_accepted(self._members, computed, items)

    def _members(self, made: Computed, item: ImagePair | StoredSequence | WithFindings) -> Members:
        members = training_shards.encode(
            made.sequence,
            made.tokens,
            made.scores,
            made.image_frames,
            quality=self.manifest.keyframes.quality,
            processing_meta=made.meta,
            features=made.features,
        )
        return item.add_to(members) if isinstance(item, WithFindings) else members

    def _interpolated(self, sequence: FrameSequence) -> Computed | RejectedPair:
        assert self.interpolate is not None
        settings, interpolator = self.manifest.interpolate, self.interpolate.meta
        if settings.codec == "png":
            return self._sample(sequence, None, interpolator)
        # Lossy codecs change the frames: what the later steps would read is what they must see.
        members = sequences.encode(sequence, settings.codec, settings.quality, interpolator)
        meta = {"codec": settings.codec, "frames": len(sequence.frames)}
        frames = StoredSequence(sequence.pair.key, meta, members).frames()
        sequence = replace(sequence, frames=frames, truth={})
        return self._sample(sequence, None, interpolator)

    def _sample(
        self, sequence: FrameSequence, scores: FrameScores | None, interpolator: Mapping[str, Any]
    ) -> Computed | RejectedPair:
        rule, frames = self.manifest.keyframes, sequence.frames
        if scores is None and self.score is not None:
            scores = self.score.score(frames, sequence.pair.captions)
        try:
            check_keyframes(frames.shape[1:3], rule)
            similarities, scored_by = self._similarities(scores, len(frames))
            tokens = self._tokens(frames)
            penalty = penalties(*similarities)
            chosen = fixed_keyframes(penalty, rule.k, rule.strategy)
            features = self._features(sequence, chosen)
        except RejectedPair as error:
            return error
        shown = {"keyframes": chosen, "all": list(range(len(frames))), "none": []}[rule.images]
        meta = {
            **self.meta,
            "interpolator": dict(interpolator),
            "scored_by": scored_by,
            "keyframes": chosen,
        }
        return Computed(sequence, tokens, similarities, shown, features, meta)

    def _similarities(self, scores: FrameScores | None, count: int) -> tuple[np.ndarray, str]:
        """The scores that keyframes are drawn from, float32 [2, captions, F], and their kind.

        Raises RejectedPair if they are missing.
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
        devices.use(self.manifest.tokenize, self.device)
        return self.tokenizer(frames)

    def _features(
        self, sequence: FrameSequence, keyframes: list[int]
    ) -> training_shards.Features | None:
        """The features that the manifest asks for; None without a backbone. Raises RejectedPair."""
        frames, last = sequence.frames, len(sequence.frames) - 1
        if self.feature_files is not None:
            return self.feature_files(sequence.pair, last)
        if self.extractor is None:
            return None
        settings = self.manifest.features
        devices.use(settings, self.device)
        frames_of = {"ends": [0, last], "keyframes": keyframes, "all": list(range(last + 1))}
        return self.extractor(frames, frames_of[settings.frames])

    def _imported_features(self, folder: str) -> FeatureFiles:
        from cc_prep.weights import networks

        settings, digest = self.manifest.features, UNKNOWN
        if settings.weights is not None:
            digest = self.check(networks.backbone(settings.backbone, settings.weights)[1]).sha256
        return FeatureFiles(folder, settings.backbone, digest, settings.precision)
