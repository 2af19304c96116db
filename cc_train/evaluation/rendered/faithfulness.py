"""Whether a caption and a mask tell of the same object, on rendered pairs.

The caption is read by the grammar, and the objects that it fits are looked up in the scene. The
mask must be on one of them. How often caption and mask contradict each other about whether there
is a change at all is counted as well.

Only the changed object's own mask is known; of the others, the renderer says where their centres
are. So each pixel of a mask is counted for the object whose centre is nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cc_prep.composites import sentences
from cc_prep.composites.reading import PLACE
from cc_prep.records import Facts, ObjectAttributes
from cc_prep.synth.parsing import UNCHANGED, Claims
from cc_train.evaluation.evaluation_files import Contradictions, Counted, Faithfulness
from cc_train.evaluation.rendered.fact_scores import ATTRIBUTES, claims_of

EMPTY = 20  # px up to which a mask says that nothing changed
MOST = 0.5  # share of a mask's pixels that must be exceeded on objects that the caption fits
OVERLAP = 0.5  # intersection over union with the true mask, where the changed object is meant
# Types of change whose captions describe the object in the first image.
SEEN_BEFORE = ("drop", "color", "material", "replace", "text_removed")


@dataclass(frozen=True)
class Fit:
    """How well a caption and masks agree.

    Attributes:
        claims: The caption says that something changed; None where it is not recognised.
        masked: The predicted mask is not empty.
        predicted, true: The predicted and the true mask are on an object that the caption fits;
            both None unless the caption says that something changed.
    """

    claims: bool | None
    masked: bool
    predicted: bool | None = None
    true: bool | None = None

    @property
    def contradicts(self) -> bool:
        """Whether the caption says that something changed and the mask does not, or the reverse."""
        return self.claims is not None and self.claims != self.masked


@dataclass(frozen=True)
class Judged:
    """A pair to be judged.

    Attributes:
        mask, true: Class ids uint8 [H, W].
    """

    caption: str
    facts: Facts
    mask: np.ndarray
    true: np.ndarray

    @cached_property
    def claims(self) -> Claims:
        """The claims of the caption."""
        return claims_of(self.caption, self.facts)

    def lies_on_claimed(self, mask: np.ndarray) -> bool:
        """Whether a mask is not empty, and on an object that the caption fits."""
        return _is_masked(mask) and fits(self.claims, self.facts, mask, self.true)


def judge(pair: Judged) -> Fit:
    """How the caption of a pair fits its masks."""
    claims, masked = pair.claims, _is_masked(pair.mask)
    if claims.type is None and not claims.several:
        return Fit(None, masked)
    if claims.type == UNCHANGED:
        return Fit(False, masked)
    on_true = fits(claims, pair.facts, pair.true, pair.true)
    return Fit(True, masked, pair.lies_on_claimed(pair.mask), on_true)


def fits(claims: Claims, facts: Facts, mask: np.ndarray, true: np.ndarray) -> bool:
    """Whether a mask is on an object that the claims of a caption fit.

    More than MOST of its pixels are nearest to the centre of such an object, among the centres of
    all objects in both images. Where most of these are the changed object's, the mask must overlap
    its true mask too.
    """
    moment = _when(claims.type, facts)
    changed = [one for one in (facts.before, facts.after) if one is not None]
    others = [one for one in (*facts.objects_before, *facts.objects_after) if one not in changed]
    fitting = [any(_has_attributes(one, claims) for one in moment)] * len(changed)
    fitting += [_has_attributes(one, claims) for one in others]
    rows, columns = (mask > 0).nonzero()
    if not any(fitting) or not len(rows):
        return False
    height, width = mask.shape
    centres = np.array([one.location for one in (*changed, *others)]) * (width, height)  # x, y
    pixels = np.stack((columns, rows), axis=1) + 0.5
    nearest = np.square(pixels[:, None] - centres).sum(2).argmin(1)
    on_fitting = np.array(fitting)[nearest]
    if on_fitting.mean() <= MOST:
        return False
    if 2 * (on_fitting & (nearest < len(changed))).sum() <= on_fitting.sum():
        return True
    union = ((mask > 0) | (true > 0)).sum()
    return bool(((mask > 0) & (true > 0)).sum() >= OVERLAP * union)


def count(pairs: Sequence[Judged]) -> Faithfulness | None:
    """The shares over some pairs; None if there are none.

    Pairs whose picture changed as a whole are left out: no object has changed.

    Masks are shuffled by giving each pair that of the next one with the same type of change; a pair
    that is the only one of its type is left out of that.
    """
    pairs = [
        pair
        for pair in pairs
        if pair.facts.type == UNCHANGED or pair.facts.before or pair.facts.after
    ]
    if not pairs:
        return None
    listed = [judge(pair) for pair in pairs]
    claiming = [fit for fit in listed if fit.claims]
    denying = [fit for fit in listed if fit.claims is False]
    others = _with_other_masks(pairs, listed)
    return Faithfulness(
        predicted_masks=_counted(fit.predicted for fit in claiming),
        true_masks=_counted(fit.true for fit in claiming),
        masks_of_other_pairs=_counted(pair.lies_on_claimed(other) for pair, other in others),
        contradictions=Contradictions(
            change_without_a_mask=_counted(fit.contradicts for fit in claiming),
            no_change_with_a_mask=_counted(fit.contradicts for fit in denying),
        ),
    )


def table(scores: Faithfulness) -> str:
    """The shares in Markdown."""
    lines = ["| " + " | ".join(["caption and mask", *COLUMNS]) + " |", "|---" * 4 + "|"]
    for name, values in rows(scores):
        lines.append("| " + " | ".join([name, *values]) + " |")
    return "\n".join(lines) + "\n"


COLUMNS = ("%", "95 %", "captions")


def rows(scores: Faithfulness) -> list[tuple[str, list[str]]]:
    """The shares as rows of a table: a name, and COLUMNS."""
    contradictions = scores.contradictions
    shares = {
        "caption's object under the predicted mask": scores.predicted_masks,
        "… under the true mask": scores.true_masks,
        "… under the mask of another pair": scores.masks_of_other_pairs,
        "contradiction: change without a mask": contradictions.change_without_a_mask,
        "contradiction: no change with a mask": contradictions.no_change_with_a_mask,
    }
    lines = []
    for name, one in shares.items():
        percent, low, high = (100 * share for share in (one.share, one.low, one.high))
        interval = [f"{percent:.1f}", f"{low:.1f} … {high:.1f}"] if one.pairs else ["", ""]
        lines.append((name, [*interval, f"{one.pairs:,}"]))
    return lines


def _when(claimed: str | None, facts: Facts) -> list[ObjectAttributes]:
    """The changed object, in the image that a claim of this type refers to; empty if that image
    does not show it.
    """
    there = (facts.before, facts.after)
    if claimed in sentences.ADDED:
        there = (None, facts.after)
    elif claimed in SEEN_BEFORE:
        there = (facts.before, None)
    return [one for one in there if one is not None]


def _has_attributes(one: ObjectAttributes, claims: Claims) -> bool:
    """Whether an object looks as claimed; what is not said fits all."""
    is_alike = all(claims.value(name) in (None, one[name]) for name in ATTRIBUTES)
    return is_alike and claims.value(PLACE) in (None, sentences.place(one.location))


def _with_other_masks(
    pairs: Sequence[Judged], outcomes: Sequence[Fit]
) -> Iterator[tuple[Judged, np.ndarray]]:
    """The pairs whose caption says that something changed, each with the mask of the next pair of
    its type; a pair that is the only one of its type is left out.
    """
    by_type: dict[str, list[tuple[Judged, Fit]]] = {}
    for pair, outcome in zip(pairs, outcomes, strict=True):
        by_type.setdefault(pair.facts.type, []).append((pair, outcome))
    for alike in by_type.values():
        if len(alike) > 1:
            for (pair, outcome), (following, _) in zip(alike, [*alike[1:], alike[0]], strict=True):
                if outcome.claims:
                    yield pair, following.mask


def _is_masked(mask: np.ndarray) -> bool:
    return int((mask > 0).sum()) > EMPTY


def _counted(outcomes: Iterable[bool | None]) -> Counted:
    listed = [bool(one) for one in outcomes]
    return Counted.of(sum(listed), len(listed), count=sum(listed), pairs=len(listed))
