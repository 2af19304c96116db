"""What the files of an evaluation hold, checked before it is shown: people edit them by hand.

Entries that nothing here names are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.evaluation import signature
from cc_train.evaluation.evaluation import TOTAL
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.rendered.fact_scores import TOLD_APART

REMEDY = "Evaluate again: cc-train evaluate"
Count = Annotated[int, Field(ge=0)]
Part = Annotated[float, Field(ge=0, le=1)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class _Group(_Entry):
    """The pairs of a group, and its figures by measure, × 100."""

    __pydantic_extra__: dict[str, float]
    pairs: Count


class _Share(_Entry):
    share: Part
    low: Part
    high: Part


class _Of(_Share):
    """A share of some pairs."""

    pairs: Count


class _Counted(_Of):
    right: Count
    wrong: Count
    unsaid: Count = Field(alias="not said")


class _Facts(_Entry):
    apart: _Share | None = Field(alias=TOLD_APART)
    changed: _Counted = Field(alias="changed pairs")
    unchanged: _Counted = Field(alias="unchanged pairs")
    shares: dict[str, _Counted]
    exact: dict[str, _Counted] = Field(alias="exact by type")
    confusion: dict[str, dict[str, Count]]

    @model_validator(mode="after")
    def _each_type_is_counted(self) -> _Facts:
        missing = sorted(self.exact.keys() - self.confusion.keys())
        if missing:
            raise ValueError(f"confusion lacks the type {missing[0]}")
        return self


class _Rates(_Entry):
    """Figures × 100 of pixels; None for 0 / 0."""

    f1: float | None = Field(alias="F1")
    precision: float | None
    recall: float | None


class _OfClass(_Rates):
    iou: float | None = Field(alias="IoU")


class _Masks(_Rates):
    iou: dict[str, float | None] = Field(alias="IoU")
    miou: float | None = Field(alias=segmentation.MIOU)
    miou_change: float | None = Field(alias=segmentation.MIOU_CHANGE)
    iou_any: float | None = Field(alias="IoU-any")
    alarms: float | None = Field(alias=segmentation.FALSE_ALARMS)
    classes: dict[str, _OfClass]
    pairs: Count
    unchanged: Count = Field(alias="unchanged pairs")

    @model_validator(mode="after")
    def _unchanged_is_a_class(self) -> _Masks:
        if segmentation.UNCHANGED not in self.iou:
            raise ValueError(f"IoU lacks {segmentation.UNCHANGED}")
        return self


class _Contradictions(_Entry):
    unmasked: _Of = Field(alias="change without a mask")
    masked: _Of = Field(alias="no change with a mask")


class _Faithfulness(_Entry):
    predicted: _Of = Field(alias="predicted masks")
    true: _Of = Field(alias="true masks")
    shuffled: _Of = Field(alias="masks of other pairs")
    contradictions: _Contradictions


class _Swapped(_Entry):
    """How captions react when the images are swapped; an empty object says nothing of it."""

    same: Part
    cider: float = Field(alias="CIDEr")
    cider_swapped: float = Field(alias="CIDEr of the swapped")


class _Error(_Share):
    captions: Count


class _Figure(_Entry):
    value: float
    low: float
    high: float
    pairs: Count


class _Judged(_Entry):
    """What a judge says; shown as `judging.scores.table` and `notes` have it."""

    model: str
    protocol: str
    words: str
    headline: str
    groups: dict[str, dict[str, _Figure]]
    agreement: _Share | None
    answers: Count
    broken: dict[str, Count]
    broken_pairs: list[str] = Field(alias="broken pairs")
    unjudged: list[str]
    check: dict[str, dict[str, _Error]] | None


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Scores(_Entry):
    groups: dict[str, _Group]
    conventions: str
    signature: str
    left_out: dict[str, str]
    facts: _Facts | None = None
    masks: _Masks | None = None
    faithfulness: _Faithfulness | None = None
    judged: _Judged | None = None
    swapped: _Swapped | _Nothing | None = None
    step: Count | None = None
    weights: str | None = None

    @model_validator(mode="after")
    def _has_a_total(self) -> _Scores:
        if TOTAL not in self.groups:
            raise ValueError(f"no group {TOTAL}")
        signature.parse(self.signature)
        return self


class _Item(_Entry):
    id: str
    caption: str
    references: list[str]
    groups: list[str]
    scores: dict[str, float]
    image_id: str | None = None
    facts: dict[str, Any] | None = None
    exact: bool | None = None

    @model_validator(mode="after")
    def _facts_are_judged(self) -> _Item:
        if self.facts and self.exact is None:
            raise ValueError("facts without exact")
        facts_of(self.facts)
        return self


def checked(content: Any) -> Mapping[str, Any]:
    """The content of scores.json as it is.

    Raises ValueError, with the first wrong entry in a line, where it has no scores of captions, a
    figure is missing, of another type or not finite.
    """
    _check(_Scores, content)
    scores: Mapping[str, Any] = content
    return scores


def items(path: Path) -> list[dict[str, Any]]:
    """The pairs of items.jsonl; none if there is no such file.

    Raises:
        UserError: For a damaged one, with the number of the pair and its first wrong entry.
    """
    if not path.exists():
        return []
    try:
        rows = storage.read_json_lines(str(path))
        for number, row in enumerate(rows, 1):
            _check(_Item, row, f"pair {number}: ")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error})", REMEDY) from None
    return rows


def facts_of(value: Mapping[str, Any] | None) -> Facts | None:
    """The facts of a pair as items.jsonl holds them; None where it has none. Raises ValueError."""
    return Facts.from_json(dict(value)) if value else None


def _check(model: type[BaseModel], content: Any, which: str = "") -> None:
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(which + (f"{where}: {message}" if where else message)) from None
