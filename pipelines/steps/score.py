"""Sequences → scores of their frames against their captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import scores as score_rows
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.media.masks import NO_MASKS
from cc_prep.records import FrameScores, FrameSequence
from cc_prep.steps import confidence
from pipelines.steps.base import Digests, StagedStep, map_accepted


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
        return map_accepted(lambda read: self.score(read.frames, read.pair.captions), inputs)

    def encode(
        self, stored: Sequence[StoredSequence], computed: Sequence[FrameScores | RejectedPair]
    ) -> list[score_rows.Row | RejectedPair]:
        """The scores as rows of a table."""
        return map_accepted(self._row, computed)

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
