"""The files of an evaluation: the classes that it writes check them again when they are read.

People edit these files by hand. Entries that nothing here names are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.functional_serializers import PlainSerializer
from pydantic.functional_validators import PlainValidator

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.evaluation import signature

if TYPE_CHECKING:
    from typing_extensions import Self

REMEDY = "Evaluate again: cc-train evaluate"
TOTAL = "total"
UNCHANGED = "unchanged"
Z = 1.959964  # of a 95 % interval
Count = Annotated[int, Field(ge=0)]
Part = Annotated[float, Field(ge=0, le=1)]


class Entry(BaseModel):
    """A part of a file, with the names of its fields as keys."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, frozen=True, validate_by_name=True
    )

    def to_json(self) -> dict[str, Any]:
        """The content; of what has a default only what was given."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Table(Entry):
    """A part whose keys are read by people: they have blanks where the fields have `_`."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", " "))


class Group(Entry):
    """The pairs of a group, and its figures by measure, × 100."""

    __pydantic_extra__: dict[str, float]
    pairs: Count

    @property
    def figures(self) -> Mapping[str, float]:
        """Scores by measure."""
        return self.__pydantic_extra__


class Interval(Table):
    """A share, 0 to 1, with its 95 % interval."""

    share: Part
    low: Part
    high: Part

    @classmethod
    def of(cls, part: float, whole: int, **counts: int) -> Self:
        """The share of `part`, 0 if there is nothing, and its interval by Wilson's score."""
        share = part / whole if whole else 0.0
        low, high = wilson(share, whole)
        return cls(share=share, low=low, high=high, **counts)


def wilson(share: float, pairs: int) -> tuple[float, float]:
    """The 95 % interval of a share of some pairs, 0 to 1, by Wilson's score."""
    if not pairs:
        return 0.0, 1.0
    middle = share + Z**2 / (2 * pairs)
    half = Z * math.sqrt(share * (1 - share) / pairs + Z**2 / (4 * pairs**2))
    low, high = ((middle + sign * half) / (1 + Z**2 / pairs) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


class Share(Interval):
    """How many captions of some pairs are right; `not_said`: how many leave out the fact."""

    right: Count
    wrong: Count
    not_said: Count
    pairs: Count

    @classmethod
    def of_right(cls, right: int, pairs: int, not_said: int = 0) -> Self:
        """The share of captions that are right; all others are wrong or leave out the fact."""
        wrong = pairs - right - not_said
        return cls.of(right, pairs, right=right, wrong=wrong, not_said=not_said, pairs=pairs)


class FactScores(Table):
    """What captions of pairs with facts are right about.

    Attributes:
        told_apart: Mean recall of changed and unchanged pairs; None unless there are both kinds.
        changed_pairs, unchanged_pairs: Of the changed and of the unchanged pairs, how many captions
            say so; a caption whose type is not recognised says neither, and one that claims several
            types says that something changed.
        shares: By the name of the fact, over the changed pairs that have it, and of `exact`.
        exact_by_type: Exact captions of the changed pairs.
        confusion: Captions by true type and claimed type, SEVERAL or UNRECOGNISED.
        changes: As `change_scores.to_json` gives it, where some pair has several changes.
    """

    told_apart: Interval | None
    changed_pairs: Share
    unchanged_pairs: Share
    shares: dict[str, Share]
    exact_by_type: dict[str, Share]
    confusion: dict[str, dict[str, Count]]
    changes: dict[str, Any] = {}

    @model_validator(mode="after")
    def _each_type_is_counted(self) -> Self:
        missing = sorted(self.exact_by_type.keys() - self.confusion.keys())
        if missing:
            raise ValueError(f"confusion lacks the type {missing[0]}")
        return self


class ClassScores(Table):
    """Figures of a class of masks, × 100 of pixels; None for 0 / 0."""

    iou: float | None = Field(alias="IoU")
    f1: float | None = Field(alias="F1")
    precision: float | None
    recall: float | None


class MaskScores(Table):
    """How well predicted masks agree with the true ones, × 100; None for 0 / 0.

    Attributes:
        iou: By class, `unchanged` first.
        f1, precision, recall, iou_any: Of "changed at all".
        classes: By class of change.
        false_alarms: Share of the unchanged pairs in which some change is predicted.
    """

    miou: float | None = Field(alias="mIoU")
    miou_change: float | None = Field(alias="mIoU-change")
    iou: dict[str, float | None] = Field(alias="IoU")
    f1: float | None = Field(alias="F1")
    precision: float | None
    recall: float | None
    iou_any: float | None = Field(alias="IoU-any")
    mean_f1: float | None = Field(alias="mF1")
    classes: dict[str, ClassScores]
    false_alarms: float | None
    pairs: Count
    unchanged_pairs: Count

    @model_validator(mode="after")
    def _unchanged_is_a_class(self) -> Self:
        if UNCHANGED not in self.iou:
            raise ValueError(f"IoU lacks {UNCHANGED}")
        return self


class Counted(Interval):
    """A share of some pairs, and how many they are."""

    count: Count
    pairs: Count


class Contradictions(Table):
    """Of the captions that say that something changed, those with an empty mask; of those that say
    that nothing did, those with a mask.
    """

    change_without_a_mask: Counted
    no_change_with_a_mask: Counted


class Faithfulness(Table):
    """Of the captions that say that something changed, those whose predicted mask, whose true mask,
    and, for comparison, the predicted mask of another pair with the same type of change is on an
    object that they fit.
    """

    predicted_masks: Counted
    true_masks: Counted
    masks_of_other_pairs: Counted
    contradictions: Contradictions


class Swapped(Table):
    """How the captions of changed pairs react when before and after are swapped.

    Attributes:
        same: The share of captions that stay word for word, though an added object should now be
            removed.
        cider, cider_swapped: × 100, of both against the references of the true order, which should
            fall.
    """

    pairs: Count
    same: Part
    cider: float = Field(alias="CIDEr")
    cider_swapped: float = Field(alias="CIDEr of the swapped")


class NoneSwapped(Entry):
    """In place of `Swapped` where no pair is changed."""

    model_config = ConfigDict(extra="forbid")

    def __bool__(self) -> Literal[False]:
        return False


class JudgeError(Interval):
    """How often a judge errs about captions; of `unread` no answer can be read."""

    captions: Count
    unread: Count


class Agreement(Interval):
    """Of the questions that were asked in both orders and whose answers can both be read, how many
    were answered alike.
    """

    questions: Count


class Figure(Entry):
    """A measure over some pairs with its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: Count


class Record(Table):
    """What decides the answers of a judge: the model, its settings, the texts, their orders.

    Attributes:
        differences: A digest of the lists that captions were judged against, if there are any.
    """

    model: str
    generation: dict[str, Any]
    protocol: str
    words: str
    prompts: dict[str, str]
    seed: int
    differences: str | None = None


class Judged(Record):
    """What a judge says of captions.

    Attributes:
        headline: The measure that comparisons show.
        groups: Figures by group and measure.
        broken: Answers that cannot be read, by reason.
        broken_pairs: Ids of the pairs that have one.
        unjudged: Ids of the pairs of which no answer can be read.
        check: The judge's error on captions of known truth, by form and kind; None if not given.
    """

    headline: str
    groups: dict[str, dict[str, Figure]]
    agreement: Agreement | None
    answers: Count
    broken: dict[str, Count]
    broken_pairs: list[str]
    unjudged: list[str]
    check: dict[str, dict[str, JudgeError]] | None


class JudgeCheck(Record):
    """judge_check.json: how often a judge errs, by form of question and kind of caption."""

    pairs: Count
    errors: dict[str, dict[str, JudgeError]]
    agreement: Agreement | None
    answers: Count
    broken: dict[str, Count]
    version: str


class ScoresFile(Entry):
    """scores.json; see `evaluation.Evaluation` for what it is made of."""

    facts: FactScores | None = None
    groups: dict[str, Group]
    sentences: dict[str, Any] | None = None
    judged: Judged | None = None
    masks: MaskScores | None = None
    faithfulness: Faithfulness | None = None
    without_blanks: str = ""
    without_words: str = ""
    left_out: dict[str, str]
    conventions: str
    signature: str
    swapped: Swapped | NoneSwapped | None = None
    step: Count | None = None
    weights: str | None = None
    beams: Count | None = None
    decode: str | None = None
    trained_on: Count = 0
    chosen_on: bool = False

    @model_validator(mode="after")
    def _has_a_total(self) -> Self:
        if TOTAL not in self.groups:
            raise ValueError(f"no group {TOTAL}")
        signature.parse(self.signature)
        return self


def _read_facts(value: Any) -> Facts:
    return value if isinstance(value, Facts) else Facts.from_json(value)


PairFacts = Annotated[Facts, PlainValidator(_read_facts), PlainSerializer(Facts.to_json)]


class ScoredPair(Entry):
    """A line of items.jsonl.

    Attributes:
        pair, before, after: Its names in its data set, of an own pair.
        facts, outcomes, exact, changes: Of a rendered pair what truly changed, and the `Verdict`.
        swapped: The caption of (after, before), where a judge was shown it.
        judged: What a judge said of it.
    """

    id: str
    image_id: str | None = None
    pair: str | None = None
    before: str | None = None
    after: str | None = None
    caption: str
    references: list[str]
    groups: list[str]
    scores: dict[str, float]
    facts: PairFacts | None = None
    outcomes: dict[str, str] | None = None
    exact: bool | None = None
    changes: dict[str, Any] | None = None
    swapped: str | None = None
    judged: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _facts_are_judged(self) -> Self:
        if self.facts and self.exact is None:
            raise ValueError("facts without exact")
        return self

    @property
    def name(self) -> str:
        """The official id of the pair."""
        return self.image_id or self.id


M = TypeVar("M", bound=Entry)


def checked(model: type[M], content: Any, which: str = "") -> M:
    """The content of a file, or of its line `which`.

    Raises:
        ValueError: With the first wrong entry in a line, where a figure is missing, of another type
            or not finite.
    """
    try:
        return model.model_validate(content, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(which + (f"{where}: {message}" if where else message)) from None


def items(path: Path) -> list[ScoredPair]:
    """The pairs of items.jsonl; none if there is no such file.

    Raises:
        UserError: For a damaged one, with the number of the pair and its first wrong entry.
    """
    if not path.exists():
        return []
    try:
        rows = storage.read_json_lines(str(path))
        return [checked(ScoredPair, row, f"pair {n}: ") for n, row in enumerate(rows, 1)]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error})", REMEDY) from None
