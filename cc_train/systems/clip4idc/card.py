"""`cc-train export` of a CLIP4IDC: the tensors that it stores, and the scores that it measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.records import NO_CHANGE
from cc_prep.steps.score import FrameScorer, penalties
from cc_prep.weights import networks
from cc_train.data.sequence_index import Sample
from cc_train.systems.clip4idc.batches import HeldOut
from cc_train.systems.clip4idc.objective import RANKS, retrieval

MIN_TRUE = 5


def compact(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, without the zero rows of the word table, and the numbers of the other rows."""
    table = tensors["token_embedding.weight"]
    rows = torch.nonzero(table.abs().sum(1)).flatten().to(torch.int32)
    return {
        **tensors,
        "token_embedding.weight": table[rows.long()].clone(),
        "token_embedding.rows": rows,
    }


def card(file: Path, samples: list[Sample]) -> dict[str, Any]:
    """Scores of a packed CLIP4IDC on samples, and the keys of those that were measured.

    Samples with true frames also show where the penalty is lowest.

    Raises:
        UserError: If no sample is a changed pair with a caption.
    """
    network, _ = networks.clip4idc(str(file))
    changed = [s for s in samples if s.meta.get("kind") != NO_CHANGE and s.meta.get("captions")]
    if not changed:
        raise UserError(
            "no changed pair of these shards has a caption",
            "Give shards of captioned pairs that the training did not see",
        )
    pairs = HeldOut(changed, len(changed), network.config)
    with torch.inference_mode():
        metrics = retrieval(network, pairs, "cpu")
    measures = {
        f"{way} R@{k}": f"{metrics[f'{part}_r{k}']:.1f} % (chance {metrics[f'chance_r{k}']:.1f} %)"
        for way, part in (("pair by sentence,", "text"), ("sentence by pair,", "pair"))
        for k in RANKS
    }
    more, remarks = _of_true_frames(network, changed)
    table = network.token_embedding.weight
    words = int((table.abs().sum(1) > 0).sum())
    kind = "rendered pairs" if all(s.meta.get("facts") for s in changed) else "pairs"
    return {
        "about": "A CLIP4IDC: it scores how well a pair of images fits a sentence about the "
        f"change. It knows only {words:,} of CLIP's {len(table):,} tokens.",
        "measured_on": f"On {len(changed)} {kind}",
        "keys": [sample.key for sample in changed],
        "measures": {**measures, **more},
        "remarks": remarks,
    }


def _of_true_frames(network: Any, changed: Sequence[Sample]) -> tuple[dict[str, str], str]:
    """Position of the lowest penalty of true frames, for the card, and the penalties in words."""
    with_truth = [s for s in changed if _truth(s)]
    measures, curves = dict[str, str](), list[str]()
    for what, chosen in (
        ("changes", with_truth),
        ("moves alone", [s for s in with_truth if s.meta.get("change_type") == "move"]),
    ):
        if len(chosen) < MIN_TRUE:
            continue
        curve = true_penalties(network, chosen)
        lowest = int(curve[1:-1].argmin()) + 1
        measures[f"penalty of true frames, {len(chosen)} {what}"] = (
            f"lowest at frame {lowest} of 0 … {len(curve) - 1}"
        )
        curves.append(f"{what}: {', '.join(f'{value:.2f}' for value in curve)}")
    remarks = (
        "The penalties of true frames, each divided by its sequence's mean, averaged, from before "
        f"to after; {'; '.join(curves)}."
        if curves
        else ""
    )
    return measures, remarks


def _truth(sample: Sample) -> list[str]:
    """A sequence's ends with the true frames between them."""
    truth = sorted(name for name in sample.members if name[0] == "t" and name[1:3].isdigit())
    return [sample.frames[0], *truth, sample.frames[-1]] if truth else []


def true_penalties(network: Any, samples: Sequence[Sample]) -> np.ndarray:
    """Mean penalty of true frames, [F], each sequence's scaled to a mean of 1."""
    scorer, curves = FrameScorer(network), []
    for sample in samples:
        images = np.stack([sample.image(name) for name in _truth(sample)])
        scores = scorer(images, tuple(str(c) for c in sample.meta["captions"]))
        penalty = penalties(*scores.similarities())
        curves.append(penalty / max(float(penalty.mean()), 1e-12))
    mean: np.ndarray = np.mean(curves, axis=0)
    return mean
