"""Captions of known truth, and how often a judge errs about them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.records import Facts, ObjectAttributes
from cc_train.baselines.answers import Answer
from cc_train.evaluation.judging import check, forms, truths
from cc_train.evaluation.judging.asking import Asked
from cc_train.evaluation.judging.forms import C3
from cc_train.evaluation.judging.protocols import NAMES, Protocol
from cc_train.evaluation.judging.truths import ALARM, KINDS, MORE, NOTHING, QUIET, RIGHT
from cc_train.evaluation.rendered.fact_scores import judge
from tests import judge_factory

QUIETLY = Console(quiet=True)


def thing(color: str, name: str, u: float = 0.1) -> ObjectAttributes:
    return ObjectAttributes({"class": name, "color": color}, (u, 0.1))


CAR, DOG, MOVED = thing("red", "car"), thing("", "dog", 0.5), thing("red", "car", 0.9)
COMPOSED = {
    name: Facts(kind, before, after, (CAR, DOG), (CAR, DOG), grammar="composites")
    for name, kind, before, after in (
        ("moved", "move", CAR, MOVED),
        ("gone", "drop", CAR, None),
        ("replaced", "replace", CAR, thing("", "bus")),
        ("recoloured", "color", CAR, thing("blue", "car")),
        ("unknown color", "color", CAR, thing("", "car")),
        ("darker", "darker", None, None),
        ("text", "text_added", None, thing("", "text")),
        ("still", "none", None, None),
    )
}
RENDERED = {f"s{number}": facts for number, facts in enumerate(truths.drawn(40, 1))}


@pytest.mark.parametrize("pairs", [RENDERED, COMPOSED], ids=["rendered", "composed"])
def test_captions_are_as_true_as_they_are_said_to_be(pairs: dict[str, Facts]) -> None:
    """Keeps away: errors of a judge that are errors of ours."""
    known = truths.known(pairs, 0)
    counts = Counter(one.kind for one in known)
    assert counts.keys() == set(KINDS)
    for one in known:
        if one.kind == MORE:
            true, more = one.caption.split(", and ")
            assert judge(true, one.facts, one.references).exact
            said = judge(more, one.facts, one.references).outcomes
            assert "wrong" in said.values(), one
            continue
        verdict = judge(one.caption, one.facts, one.references)
        if one.kind == NOTHING:
            assert verdict.claimed == "none", one
        elif one.kind in (RIGHT, QUIET):
            assert verdict.claimed == one.facts.type, one
            assert verdict.exact or one.kind == QUIET, one
        elif one.kind == ALARM:
            assert verdict.claimed == "drop", one
        else:
            assert "wrong" in verdict.outcomes.values(), one
    assert all(one.caption not in one.references for one in known)


def test_every_type_of_change_is_drawn() -> None:
    """Keeps away: a judge that is measured on one type of change."""
    types = Counter(facts.type for facts in RENDERED.values())
    assert types == {"none": 20, "color": 4, "material": 4, "add": 4, "drop": 4, "move": 4}
    assert truths.drawn(40, 1) == list(RENDERED.values())


def test_a_pair_of_several_changes_lists_each() -> None:
    """Keeps away: a `KeyError: 'several'` for judging captions of such pairs."""
    for pairs in (RENDERED, COMPOSED):
        single = [one for one in pairs.values() if one.changes][:2]
        several = Facts.of_changes([one.changes[0] for one in single], grammar=single[0].grammar)
        lists = [truths.differences(one) for one in single]
        assert truths.differences(several) == (*lists[0], *lists[1])
        assert all(map(len, lists))


class Judge:
    """A judge in this process."""

    def __init__(self, answer: judge_factory.Judging) -> None:
        self.identity = {"model": "j", "generation": {}}
        self._answer = answer

    def answer(self, prompt: str) -> Answer:
        text = self._answer(prompt)
        assert isinstance(text, str)
        return Answer(text)

    def stop(self) -> None:
        raise AssertionError("nothing failed")


def errors(answer: judge_factory.Judging, folder: Path, protocol: str = NAMES[0]) -> check.Errors:
    pairs = dict(list(RENDERED.items())[:10])
    return check.run(Judge(answer), Protocol(protocol), pairs, folder, QUIETLY).errors


@pytest.mark.parametrize("protocol", NAMES)
def test_a_judge_that_is_right_has_no_error(tmp_path: Path, protocol: str) -> None:
    """Keeps away: a truth that is turned round for one kind of caption or form of question."""
    found = errors(judge_factory.by_facts, tmp_path, protocol)
    shares = {(form, kind): one for form, kinds in found.items() for kind, one in kinds.items()}
    assert {one.share for one in shares.values()} == {0.0}
    assert all(one.captions >= 4 and one.high > 0.3 for one in shares.values())
    if protocol != C3:  # whose ratings have no truth but the order
        assert {RIGHT, *KINDS} <= {kind for _, kind in shares}


def test_a_judge_with_a_bias_is_found_out(tmp_path: Path) -> None:
    """Keeps away: a judge that takes the first option and passes for one that reads."""
    result = check.run(
        Judge(judge_factory.always_first), Protocol(), dict(list(RENDERED.items())[:10]), tmp_path,
        QUIETLY,
    )  # fmt: skip
    assert result.agreement is not None
    assert result.agreement.share == 0
    for kinds in (result.errors["claim"], result.errors["reversal"]):
        assert {one.share for one in kinds.values()} == {0.5}
    assert result.broken == {"not as asked": result.answers - 2 * 51}
    assert all(not one.captions and one.unread for one in result.errors["matching"].values())
    assert "| 0 |  |  |" in check.table(result)


def test_a_right_caption_that_was_not_rated_condemns_no_other() -> None:
    """Keeps away: an error of 100 % where the judge said nothing to compare with."""
    pair = dict(list(RENDERED.items())[:1])
    subjects = [
        (subject, one)
        for one in truths.known(pair, 0)
        for subject in check._subjects(one, Protocol(C3))
        if subject.swapped is None
    ]
    ratings = {**dict.fromkeys(forms.CRITERIA, 1), forms.FINAL: 1}
    asked = [
        Asked(subject, forms.FORMS[forms.C3], False, broken="cut")
        if one.kind == RIGHT
        else Asked(subject, forms.FORMS[forms.C3], False, ratings)
        for subject, one in subjects
    ]
    found = check.errors(asked, {subject.id: one for subject, one in subjects})[forms.C3]
    assert all(kind.captions == 0 and kind.unread == 1 for kind in found.values())


def test_one_kind_of_error_is_seen_in_that_kind_alone(tmp_path: Path) -> None:
    """Keeps away: a judge that is blind for what is too much, whose error drowns in a mean."""

    def lenient(prompt: str) -> str:
        return judge_factory.by_facts(prompt).replace(
            '"hallucination": "some"', '"hallucination": "none"'
        )

    shares = {kind: one.share for kind, one in errors(lenient, tmp_path)["grading"].items()}
    assert shares.pop(MORE) == 1
    assert set(shares.values()) == {0.0}
