"""Captions of held-out rendered pairs, whether each is right, and what confidence follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cc_prep.errors import UserError
from cc_train import calibration
from cc_train.calibration import Calibration
from cc_train.captioner import Caption, CaptionModel
from cc_train.evaluation import shard_items
from cc_train.evaluation.predict import predict
from cc_train.evaluation.rendered.fact_scores import judge


@dataclass(frozen=True)
class Judged:
    """Captions of pairs whose facts are known, and whether each is right."""

    captions: list[Caption]
    right: list[bool]


def judged(captioner: CaptionModel, shards: Sequence[str]) -> Judged:
    """Greedy captions of the samples of training shards with facts. Raises UserError."""
    entries, items = shard_items.captioned(shards)
    known = [pair for pair in zip(entries, items, strict=True) if pair[1].facts is not None]
    if not known:
        raise UserError(
            "no sample of these shards says what truly changed", "Give shards of rendered pairs"
        )
    captions = [caption for _, caption in predict(captioner, [entry for entry, _ in known])]
    right = [
        judge(caption.text, item.facts, item.references).exact
        for caption, (_, item) in zip(captions, known, strict=True)
        if item.facts is not None
    ]
    return Judged(captions, right)


def fit(captioner: CaptionModel, shards: Sequence[str]) -> Calibration:
    """The calibration of a captioner on held-out rendered pairs. Raises UserError."""
    held_out = judged(captioner, shards)
    scores = [caption.score for caption in held_out.captions if caption.score is not None]
    if len(scores) < len(held_out.captions):
        raise UserError("this captioner gives its captions no probability", "Leave out --calibrate")
    ood_score = [c.ood_score for c in held_out.captions if c.ood_score is not None]
    return calibration.fit(scores, held_out.right, ood_score)


def measured(captioner: CaptionModel, shards: Sequence[str], constant: float) -> dict[str, str]:
    """What a calibrated captioner's confidence is worth on other pairs, as rows of its card.

    Args:
        constant: A confidence that is the same for all captions, for comparison, 0 to 1.

    Raises:
        UserError: For a captioner without confidence, and as `judged` does.
    """
    captions = judged(captioner, shards)
    confidences = [c.confidence for c in captions.captions if c.confidence is not None]
    if len(confidences) < len(captions.captions):
        raise UserError("this captioner shows no confidence", "Leave out --calibrate")
    return rows(confidences, captions.right, constant)


def rows(confidences: Sequence[float], right: Sequence[bool], constant: float) -> dict[str, str]:
    """The measures of confidences in words, by name, each beside that of a constant, 0 to 1."""
    ours = calibration.quality(confidences, right)
    other = calibration.quality([constant] * len(right), right)

    def beside(one: str, another: str) -> str:
        return f"{one}; a constant confidence of {100 * constant:.1f} % has {another}"

    percent, share = "{:.1f} %".format, "{:.3f}".format
    risks = {
        f"wrong among the {100 * coverage:.0f} % with the highest confidence": beside(
            percent(100 * risk), percent(100 * other.risk[coverage])
        )
        for coverage, risk in ours.risk.items()
    }
    return {
        "calibration error": beside(percent(100 * ours.error), percent(100 * other.error)),
        "Brier score": beside(f"{ours.brier:.4f}", f"{other.brier:.4f}"),
        **(
            {"AUROC of the confidence": beside(share(ours.auroc), share(other.auroc))}
            if ours.auroc is not None and other.auroc is not None
            else {}
        ),
        **risks,
    }
