"""How a judge's answer is read: around prose, and never where it says nothing for sure."""

from __future__ import annotations

from typing import Any

import pytest

from cc_train.baselines.answers import Answer
from cc_train.evaluation.judging import reading
from cc_train.evaluation.judging.forms import C3, CLAIM, DIFFSPOT, FORMS, MATCHING, Subject
from cc_train.evaluation.judging.prompts import Draw

PAIR = Subject("p", "it moved", ("it went",), ("a", "b", "c"))
STILL = Subject("p", "it moved", ("it went",), (), unchanged=True)
RATES = {"correctness": 7, "specificity": "8", "relevance": "9/10", "fluency": 10.0}


def read(answer: str | Answer, form: str = CLAIM, subject: Subject = PAIR) -> Any:
    """What an answer says to a question in the orders of the first draw."""
    answer = answer if isinstance(answer, Answer) else Answer(answer)
    draw = Draw(0, form, subject.id)
    known = FORMS[form]
    return reading.of(answer, lambda value: known.read(value, subject, draw), known.read_text)


@pytest.mark.parametrize(
    "answer",
    [
        '{"change": "yes"}',
        '```json\n{"change": " Yes ", "why": "it {moved}"}\n```',
        '<think>or {"change": "no"}?</think> So: {"change": "yes"}.',
        '{it} says so: {"change": "yes"}, I repeat: {"change": "yes"}',
        '{"format": "an example"} {"change": "yes"}',
    ],
)
def test_prose_around_an_answer_does_not_matter(answer: str) -> None:
    """Keeps away: a verbose judge whose every answer is thrown away, or whose thoughts count."""
    assert read(answer) == {"change": "yes"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", reading.EMPTY),
        ("<think>hmm", reading.EMPTY),
        (Answer("", "length"), reading.CUT),
        (Answer('{"change": "y', "length"), reading.CUT),
        (Answer("", "content_filter"), reading.REFUSED),
        ("The answer is yes.", reading.NO_JSON),
        ('{"change": "yes"', reading.NO_JSON),
        ('{"change": "yes", "change": "no"}', reading.NO_JSON),
        ("{" * 100_000, reading.NO_JSON),
        ('{"a":' * 5000 + "1" + "}" * 5000, reading.NO_JSON),
        ('{"change": "maybe"}', reading.OTHER),
        ('{"change": true}', reading.OTHER),
        ('{"answer": "yes"}', reading.OTHER),
        ('{"change": "yes"} or {"change": "no"}', reading.SEVERAL),
    ],
)
def test_what_says_nothing_for_sure_has_a_reason(answer: str | Answer, reason: str) -> None:
    """Keeps away: a broken answer that counts as a verdict, or that ends the run."""
    with pytest.raises(reading.Broken) as caught:
        read(answer)
    assert caught.value.reason == reason


def test_claims_are_matched_with_the_differences() -> None:
    """Keeps away: a number that is read as another difference than the one that it stood before,
    and a caption that gains by saying one thing three times.
    """
    draw = Draw(0, MATCHING, "p")
    shown = draw.order("differences", range(3))
    claims = '{"claims": [{"difference": 1}, {"difference": "1"}, {"difference": 0}]}'
    said = read(claims, MATCHING)
    assert said == (frozenset({shown[0]}), 1)
    assert FORMS[MATCHING].counts(said, PAIR) == {
        "precision": (1, 2), "recall": (1, 3), "F1": (2, 5), "hallucination": (1.0, 1.0),
    }  # fmt: skip
    assert read('{"claims": []}', MATCHING) == (frozenset(), 0)
    for wrong in ("4", "-1", "1.5", "null", "true", '"one"', "[1]"):
        with pytest.raises(reading.Broken, match=reading.OTHER):
            read(f'{{"claims": [{{"difference": {wrong}}}]}}', MATCHING)


def test_both_orders_of_a_list_give_the_same_reading() -> None:
    """Keeps away: a judge that is consistent and seems not to be, since the numbers were turned."""
    first, second = Draw(0, MATCHING, "p"), Draw(0, MATCHING, "p", reverse=True)
    orders = [draw.order("differences", range(3)) for draw in (first, second)]
    assert orders[0] == orders[1][::-1]
    said = [
        FORMS[MATCHING].read({"claims": [{"difference": order.index(2) + 1}]}, PAIR, draw)
        for draw, order in zip((first, second), orders, strict=True)
    ]
    assert said == [(frozenset({2}), 0)] * 2


def test_ratings_in_json_and_between_marks() -> None:
    """Keeps away: ratings of C3-Bench's own prompt that cannot be read, or 80 in place of 8/10."""
    ours = str({**RATES, "final_score": 8}).replace("'", '"')
    marks = "".join(f"<{key}>\n{value}\n</{key}>" for key, value in RATES.items())
    marks = marks.replace("10.0", "10") + "<final_score>8</final_score>"
    expected = {"correctness": 7, "specificity": 8, "relevance": 9, "fluency": 10, "final_score": 8}
    assert read(ours, C3) == read(marks, C3) == expected
    for wrong in (ours.replace('"final_score": 8', '"final_score": 11'), '{"final_score": 8}'):
        with pytest.raises(reading.Broken, match=reading.OTHER):
            read(wrong, C3)
    for wrong in (marks.replace("7", "0"), marks + "<fluency>1</fluency>", marks[40:]):
        with pytest.raises(reading.Broken, match=reading.NO_JSON):
            read(wrong, C3)


def test_verdicts_of_diffspot() -> None:
    """Keeps away: other formulas than DiffSpot's, under its name: one correct change is enough,
    `partial` is not, and an unchanged pair is right if nothing is invented.
    """
    partial, correct = ({"verdict": verdict} for verdict in ("partial", "Correct"))

    def overall(mutations: list[Any], invented: list[str], subject: Subject) -> float:
        text = str({"mutations": mutations, "hallucinations": invented}).replace("'", '"')
        said = read(text, DIFFSPOT, subject)
        return FORMS[DIFFSPOT].counts(said, subject)["overall"][0]

    assert overall([partial, correct], ["x"], PAIR) == 1
    assert overall([partial], [], PAIR) == 0
    assert (overall([], [], STILL), overall([], ["x"], STILL)) == (1, 0)
    with pytest.raises(reading.Broken, match=reading.OTHER):
        overall([], [], PAIR)
    with pytest.raises(reading.Broken, match=reading.OTHER):
        overall([{"verdict": "good"}], [], PAIR)
    with pytest.raises(reading.Broken, match=reading.OTHER):
        overall([{"verdict": 1}], [], PAIR)
