"""Sequences → scores of their frames against their captions, by CLIP4IDC.

`FrameScorer` is arrays in and arrays out, `Score` the step of the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cc_prep import devices
from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats import scores as score_rows
from cc_prep.formats.sequences import REGISTRATION, StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.media.images import resize
from cc_prep.media.masks import NO_MASKS
from cc_prep.records import FrameScores, FrameSequence
from cc_prep.steps import keyframe_selection
from cc_prep.steps.base import Digests, StagedStep, map_accepted

if TYPE_CHECKING:
    from torch import Tensor

    from cc_prep.models.clip4idc import CLIP4IDC


def normalize(images: Sequence[np.ndarray] | np.ndarray, resolution: int) -> Tensor:
    """Images uint8 [H, W, 3] each → float32 [N, 3, R, R], CLIP's input.

    As in CLIP4IDC, they are resized to the network's square by bicubic interpolation, without a
    centre crop, and normalised with CLIP's mean and standard deviation.
    """
    import torch

    from cc_prep.models.clip import MEAN, STD

    square = np.stack([resize(image, resolution) for image in images])
    pixels = torch.tensor(square).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


class FrameScorer:
    """Runs a CLIP4IDC on sequences, one at a time, since float sums depend on the batch size.

    A sequence's scores therefore depend on that sequence alone.
    """

    def __init__(self, network: CLIP4IDC, device: str = "cpu") -> None:
        from cc_prep.models.cpu import use_kernels

        self.network = use_kernels(network.to(device).eval(), only_infers=True)
        self.device = device

    def __call__(self, frames: np.ndarray, captions: Sequence[str]) -> FrameScores:
        """Scores of frames uint8 [F, H, W, 3], before first and after last."""
        import torch

        from cc_prep.models.clip import tokenize

        network, count = self.network, len(frames)
        images = normalize(frames, network.config.resolution).to(self.device)
        with torch.inference_mode():
            tokens = network.visual.encode_frames(images)
            bef_visual, aft_visual = network.image_similarity(tokens)
            bef = aft = torch.zeros((0, count))
            if captions:
                ids = tokenize(captions, network.config.caption_tokens)
                text = network.encode_text(torch.tensor(ids, device=self.device))
                bef, aft = network.score_tokens(tokens, text)
        arrays = (x.float().cpu().numpy() for x in (bef, aft, bef_visual, aft_visual))
        return FrameScores(tuple(captions), *arrays)


class Score(StagedStep):
    """Sequences → scores."""

    def __init__(self, manifest: Manifest, digests: Digests, device: str) -> None:
        from cc_prep.weights import networks

        super().__init__(manifest, digests, device)
        devices.use(manifest.score, self.device)
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
        devices.use(self.manifest.score, self.device)
        return self.scorer(frames, captions)

    def _row(self, scores: FrameScores) -> score_rows.Row:
        rule = self.manifest.keyframes
        penalty = keyframe_selection.penalties(*scores.similarities(rule.strategy == "visual"))
        keyframes = keyframe_selection.fixed_keyframes(penalty, rule.k, rule.strategy)
        return score_rows.encode(scores, penalty, keyframes, self.weights.name, self.weights.sha256)


def decoded(stored: StoredSequence, with_masks: bool = False) -> FrameSequence | RejectedPair:
    """A stored sequence without its truth, or why it is rejected."""
    try:
        known_masks = stored.masks() if with_masks else NO_MASKS
        registration = stored.meta.get(REGISTRATION)
        return FrameSequence(stored.pair(), stored.frames(), {}, *known_masks, registration)
    except (DamagedShard, ValueError) as error:
        return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
