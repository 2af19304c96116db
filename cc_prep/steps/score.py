"""Sequences → scores of their frames against their captions, by CLIP4IDC → keyframes.

A frame's penalty is low if the pair (before, frame) fits the captions as well as the pair (frame,
after): then it is in the middle of the change, and tells most. Source: ProCap, section 3.2.
`FrameScorer` and the functions of penalties are arrays in and arrays out, `Score` is the step of
the jobs.
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
from cc_prep.manifest import Manifest, Strategy
from cc_prep.media.images import resize
from cc_prep.media.masks import NO_MASKS
from cc_prep.records import FrameScores, FrameSequence
from cc_prep.steps.base import Digests, StagedStep, map_accepted

if TYPE_CHECKING:
    from torch import Tensor

    from cc_prep.models.clip4idc import CLIP4IDC

UNSCORED: tuple[Strategy, ...] = ("uniform", "random")  # these look at no scores


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


def penalties(bef_inter_sim: np.ndarray, inter_aft_sim: np.ndarray) -> np.ndarray:
    """Penalty of every frame, float32 [F].

    Args:
        bef_inter_sim, inter_aft_sim: Raw logits [captions, F] of (before, frame) and (frame,
            after).
    """
    assert bef_inter_sim.shape == inter_aft_sim.shape
    assert bef_inter_sim.ndim == 2
    if not len(bef_inter_sim):  # not scored: every frame tells as much
        return np.zeros(bef_inter_sim.shape[1], np.float32)
    difference = bef_inter_sim.mean(axis=0) - inter_aft_sim.mean(axis=0)
    return np.square(difference).astype(np.float32)


def draw_weights(penalty: np.ndarray) -> np.ndarray:
    """Weight of every interior frame in the draw, float64 [F - 2]: 1 − softmax(penalty)."""
    interior = penalty[1:-1].astype(np.float64)
    exponent = np.exp(interior - interior.max())
    return 1 - exponent / exponent.sum()


def probabilities(penalty: np.ndarray) -> np.ndarray:
    """Probability of every interior frame to be drawn first, float64 [F - 2]."""
    weight = draw_weights(penalty)
    total = weight.sum()
    # With one interior frame its softmax is 1 and its weight 0.
    return weight / total if total > 0 else np.full(len(weight), 1 / len(weight))


def choose_keyframes(
    penalty: np.ndarray,
    k: int,
    strategy: Strategy,
    rng: np.random.Generator | None = None,
    threshold: float | None = None,
) -> list[int]:
    """Numbers of the keyframes in order: both ends and `k` interior frames.

    Args:
        penalty: [F]; for `visual` the penalties of an image-only distance.
        rng: For `confidence`, `visual` and `random`, which draw without replacement.
        threshold: Frames whose penalty exceeds it are drawn only if there are not enough others.
            `top` takes the smallest penalties (the earlier frame where two are equal), `uniform`
            spaces evenly, `random` draws every frame with equal chance.

    Raises:
        ValueError: If there are fewer than `k` interior frames, or a penalty is no finite number.
    """
    if not np.isfinite(penalty).all():
        raise ValueError("a penalty is no finite number")
    last = len(penalty) - 1
    interior = np.arange(1, last)
    if k == 0:
        return [0, last]
    if not 0 <= k <= len(interior):
        raise ValueError(f"{k} keyframes asked for, {len(interior)} interior frames there")
    if strategy == "top":
        frames = interior[np.argsort(penalty[1:-1], kind="stable")[:k]]
    elif strategy == "uniform":
        frames = np.array([round(last * (i + 1) / (k + 1)) for i in range(k)], dtype=int)
    else:
        assert rng is not None, f"{strategy} draws"
        chance = np.ones(len(interior)) if strategy == "random" else probabilities(penalty)
        if threshold is not None:
            chance = np.where(penalty[1:-1] <= threshold, chance, 0)
        frames = _draw(interior, chance, k, rng)
    return [0, *sorted(int(i) for i in frames), last]


def fixed_keyframes(penalty: np.ndarray, k: int, strategy: Strategy) -> list[int]:
    """The keyframes of a rule's deterministic form: instead of a draw, the `k` smallest penalties.

    `random` spaces its frames evenly.
    """
    deterministic: dict[Strategy, Strategy] = {"random": "uniform", "uniform": "uniform"}
    return choose_keyframes(penalty, k, deterministic.get(strategy, "top"))


def _draw(frames: np.ndarray, chance: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """`k` different frames; frames of probability 0 only if there are not enough others."""
    possible, impossible = frames[chance > 0], frames[chance <= 0]
    if len(possible) <= k:
        rest = rng.choice(impossible, k - len(possible), replace=False)
        return np.concatenate((possible, rest))
    weights = chance[chance > 0]
    return rng.choice(possible, k, replace=False, p=weights / weights.sum())


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
        penalty = penalties(*scores.similarities(rule.strategy == "visual"))
        chosen = fixed_keyframes(penalty, rule.k, rule.strategy)
        return score_rows.encode(scores, penalty, chosen, self.weights.name, self.weights.sha256)


def decoded(stored: StoredSequence, with_masks: bool = False) -> FrameSequence | RejectedPair:
    """A stored sequence without its truth, or why it is rejected."""
    try:
        known_masks = stored.masks() if with_masks else NO_MASKS
        registration = stored.meta.get(REGISTRATION)
        return FrameSequence(stored.pair(), stored.frames(), {}, *known_masks, registration)
    except (DamagedShard, ValueError) as error:
        return RejectedPair(Reason.UNREADABLE_SEQUENCE, str(error))
