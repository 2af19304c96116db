"""The most telling frames of a sequence: similarity scores → penalties → keyframes.

Pure arrays. A frame's penalty is low if the pair (before, frame) fits the captions as well as the
pair (frame, after): then it is in the middle of the change. Source: ProCap, section 3.2.
"""

from __future__ import annotations

import numpy as np

from cc_prep.manifest import Strategy

UNSCORED: tuple[Strategy, ...] = ("uniform", "random")  # these look at no scores


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


def weights(penalty: np.ndarray) -> np.ndarray:
    """Weight of every interior frame in the draw, float64 [F - 2]: 1 − softmax(penalty)."""
    interior = penalty[1:-1].astype(np.float64)
    exponent = np.exp(interior - interior.max())
    return 1 - exponent / exponent.sum()


def probabilities(penalty: np.ndarray) -> np.ndarray:
    """Probability of every interior frame to be drawn first, float64 [F - 2]."""
    weight = weights(penalty)
    total = weight.sum()
    # With one interior frame its softmax is 1 and its weight 0.
    return weight / total if total > 0 else np.full(len(weight), 1 / len(weight))


def keyframes(
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
    return keyframes(penalty, k, deterministic.get(strategy, "top"))


def _draw(frames: np.ndarray, chance: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """`k` different frames; frames of probability 0 only if there are not enough others."""
    possible, impossible = frames[chance > 0], frames[chance <= 0]
    if len(possible) <= k:
        rest = rng.choice(impossible, k - len(possible), replace=False)
        return np.concatenate((possible, rest))
    weights = chance[chance > 0]
    return rng.choice(possible, k, replace=False, p=weights / weights.sum())
