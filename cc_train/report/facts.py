"""What of a rendered pair's caption is right, for the page of a run: words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cc_prep.composites import reading
from cc_prep.records import Facts
from cc_prep.synth.parsing import FEATURES, NEW, SEVERAL, TYPE, UNCHANGED, Claims, Mark
from cc_train.evaluation.evaluation_files import FactScores, Interval, Share
from cc_train.evaluation.rendered import change_scores, fact_scores
from cc_train.evaluation.rendered.fact_scores import (
    EXACT,
    FACTS,
    MEASURES,
    TITLES,
    TOLD_APART,
    TYPES,
    claimed_changes,
    claimed_types,
    claims_of,
    judge,
    single_changes,
    true_values,
)

# The facts of an object in the order in which they are said: "small red metal cube".
SAID = (*FEATURES, reading.CLASS, reading.PLACE)


@dataclass(frozen=True)
class Word:
    """Some characters of a caption.

    Attributes:
        state: `right`, `wrong`, or empty where they claim nothing.
        title: What a wrong word should be.
    """

    text: str
    state: str = ""
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A share and its 95 % interval, in percent.

    Attributes:
        counts: Right, wrong, not said, pairs.
        if_said: Percent right of those that say the fact; None where that is not asked.
    """

    name: str
    share: float
    low: float
    high: float
    if_said: float | None = None
    counts: tuple[int, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether it is one of the measures of comparisons, which stand out."""
        return self.name in MEASURES


@dataclass(frozen=True)
class Cell:
    """Captions of one true and one claimed type.

    Attributes:
        share: Of the true type's pairs, 0 to 1.
    """

    count: int
    share: float
    right: bool


@dataclass(frozen=True)
class Tables:
    """What facts.html.j2 shows.

    Attributes:
        claimed: The columns of the confusion table.
        confusion: True type, its cells, its exact share.
    """

    rows: list[Row]
    claimed: Sequence[str]
    confusion: list[tuple[str, list[Cell], Row | None]]


def words(caption: str, facts: Facts) -> list[Word]:
    """The caption in pieces, which joined are the caption again.

    Of several changes each sentence is compared with the one that it is matched with, or else with
    that of which it says most.
    """
    if facts.several:
        return _of_several(caption, facts)
    truth, claims = true_values(facts), claims_of(caption, facts)
    pieces, end = [], 0
    for mark in claims.marks:
        if mark.start > end:
            pieces.append(Word(caption[end : mark.start]))
        pieces.append(_word(caption[mark.start : mark.end], mark, claims, truth))
        end = mark.end
    return [*pieces, Word(caption[end:])] if end < len(caption) else pieces


def _of_several(caption: str, facts: Facts) -> list[Word]:
    said, changes = claimed_changes(caption, facts), single_changes(facts)
    verdicts = [[judge(text, alone, ()) for _, text in said] for alone in changes]
    of_sentence = change_scores.match([[one.exact for one in row] for row in verdicts])
    pieces, end = [], 0
    for number, (start, text) in enumerate(said):
        likeness = [list(row[number].outcomes.values()).count("right") for row in verdicts]
        nearest = of_sentence.get(number, likeness.index(max(likeness)))
        pieces += [Word(caption[end:start])] if start > end else []
        pieces += words(text, changes[nearest])
        end = start + len(text)
    return [*pieces, Word(caption[end:])] if end < len(caption) else pieces


def _word(text: str, mark: Mark, claims: Claims, truth: Mapping[str, str]) -> Word:
    name, true = TITLES.get(mark.fact, mark.fact), truth.get(mark.fact)
    if true is not None and mark.value == true:
        if claims.value(mark.fact) == SEVERAL:
            return Word(text, "wrong", f"{name}: {true}, but the caption says others as well")
        return Word(text, "right", f"{name}: right")
    if truth[TYPE] == UNCHANGED:
        return Word(text, "wrong", "should be: nothing changed")
    if true is None:
        return Word(text, "wrong", f"no {name} here: the change is of type {truth[TYPE]}")
    return Word(text, "wrong", f"{name} should be: {true}")


def sentence(facts: Facts) -> str:
    """What truly changed, in a few words: `move: small red metal cube`."""
    if facts.several:
        return "; ".join(map(sentence, single_changes(facts)))
    truth = true_values(facts)
    if truth[TYPE] == UNCHANGED:
        return "nothing changed"
    said = [truth[name] for name in SAID if name in truth]
    new = f" → {truth[NEW]}" if NEW in truth else ""
    return f"{': '.join(filter(None, (truth[TYPE], ' '.join(said))))}{new}"


def unsaid(caption: str, facts: Facts) -> list[str]:
    """The names of the facts that a caption leaves out; of several changes how many they are."""
    if facts.several:
        missing = len(facts.several) - judge(caption, facts, ()).changes.right
        return [f"{missing} of {len(facts.several)} changes"] if missing else []
    claims = claims_of(caption, facts)
    truth = true_values(facts)
    return [TITLES.get(f, f) for f in FACTS if f in truth and claims.value(f) is None]


def tables(scores: FactScores) -> Tables:
    """The tables of what captions are right about."""
    table, exact = scores.confusion, scores.exact_by_type
    claimed = claimed_types(table)
    lines = []
    for kind in (name for name in TYPES if name in table):
        total = max(1, sum(table[kind].values()))
        counts = [(name, table[kind].get(name, 0)) for name in claimed]
        cells = [Cell(count, count / total, name == kind) for name, count in counts]
        lines.append((kind, cells, _row(EXACT, exact[kind]) if kind in exact else None))
    return Tables(_rows(scores), claimed, lines)


def _rows(scores: FactScores) -> list[Row]:
    apart = scores.told_apart
    first = [Row(TOLD_APART, *_percent(apart))] if apart else []
    return first + [_row(name, share) for name, share in fact_scores.rows(scores).items()]


def _row(name: str, share: Share) -> Row:
    said = share.right + share.wrong
    if_said = 100 * share.right / said if said and name != EXACT else None
    counts = (share.right, share.wrong, share.not_said, share.pairs)
    return Row(name, *_percent(share), if_said, counts)


def _percent(one: Interval) -> tuple[float, float, float]:
    return 100 * one.share, 100 * one.low, 100 * one.high
