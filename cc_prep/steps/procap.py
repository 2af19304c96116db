"""Pairs → sequences and scores out of ProCap's HDF5 and JSON. No network runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import procap, scores, sequences
from cc_prep.formats.procap import Names
from cc_prep.formats.sequences import StoredSequence
from cc_prep.manifest import IMPORTED, Manifest
from cc_prep.media.images import resize
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps.base import Digests, Members, StepBase
from cc_prep.steps.score import fixed_keyframes, penalties


class ImportFrames(StepBase):
    """Pairs → sequences out of HDF5 files."""

    def __init__(self, manifest: Manifest, digests: Digests, source: str, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.videos = procap.Videos(source, Names(manifest.name, manifest.layout))

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        return [self._members(pair) for pair in pairs]

    def _members(self, pair: ImagePair) -> Members | RejectedPair:
        settings = self.manifest.interpolate
        try:
            frames = self.videos.frames(pair)
        except RejectedPair as error:
            return error
        if len(frames) != 2**settings.depth + 1:
            return RejectedPair(
                Reason.UNREADABLE_SEQUENCE,
                f"{len(frames)} frames, not {2**settings.depth + 1} as the first sequence has",
            )
        size, filter = self.manifest.image_size, self.manifest.image.filter
        frames = np.stack([resize(frame, size, filter) for frame in frames])
        interpolator = {"method": IMPORTED, "depth": settings.depth}
        sequence = FrameSequence(pair, frames)
        return sequences.encode(sequence, settings.codec, settings.quality, interpolator)


class ImportScores(StepBase):
    """Sequences → scores out of a JSON file."""

    def __init__(self, manifest: Manifest, digests: Digests, source: str, device: str) -> None:
        super().__init__(manifest, digests, device)
        self.rule = manifest.keyframes
        self.names = Names(manifest.name, manifest.layout)
        self.by_id = procap.read_scores(source, self.names)

    def __call__(self, stored: Sequence[StoredSequence]) -> list[scores.Row | RejectedPair]:
        return [self._row(sequence) for sequence in stored]

    def _row(self, stored: StoredSequence) -> scores.Row | RejectedPair:
        pair, frames = stored.pair(), int(stored.meta["frames"])
        try:
            frame_scores = procap.scores_of(self.by_id, self.names, pair, pair.captions, frames)
        except RejectedPair as error:
            return error
        penalty = penalties(frame_scores.bef_inter_sim, frame_scores.inter_aft_sim)
        keyframes = fixed_keyframes(penalty, self.rule.k, self.rule.strategy)
        return scores.encode(frame_scores, penalty, keyframes, IMPORTED, "")
