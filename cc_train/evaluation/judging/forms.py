"""The forms of questions to a judge: what is asked, how an answer is read, what it counts.

Each measure is a sum over pairs divided by another one, so that its figure of many pairs is one
division, and the bootstrap can draw the pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cc_train.evaluation.judging import prompts
from cc_train.evaluation.judging.prompts import Draw

CLAIM, REVERSAL, GRADING, MATCHING = "claim", "reversal", "grading", "matching"
C3, DIFFSPOT = "c3-bench", "diffspot"
CRITERIA = ("correctness", "specificity", "relevance", "fluency")
FINAL = "final_score"
RATES = range(1, 11)
MAX_CLAIMS = 200  # that a description is read to make
GRADES = {"right": 1.0, "partly right": 0.5, "wrong": 0.0, "all": 1.0, "some": 0.5, "nothing": 0.0}
# What DiffSpot's judge is told of an unchanged pair; our words.
UNCHANGED_NOTE = "Nothing was changed."
_OUTPUT = re.compile(r"<output>\s*(.*?)\s*</output>", re.DOTALL)

Counts = Mapping[str, tuple[float, float]]  # by measure: what its figure divides, and by what


@dataclass(frozen=True)
class Subject:
    """What is to be judged of a pair.

    Attributes:
        differences: All that truly differs, each as a sentence, or as the record of a benchmark;
            None where no list is known.
        swapped: The caption of (after, before); None where there is none.
    """

    id: str
    caption: str
    references: tuple[str, ...] = ()
    differences: tuple[Any, ...] | None = None
    unchanged: bool = False
    swapped: str | None = None


@dataclass(frozen=True)
class Form:
    """A kind of question.

    Attributes:
        prompt: The question about a pair, in the orders of a draw.
        read: What a JSON object says as an answer, comparable with that of another draw; raises
            ValueError, KeyError or TypeError for another form.
        counts: What a reading counts for the measures.
        read_text: See `reading.of`.
    """

    name: str
    prompt: Callable[[Subject, Draw], str]
    read: Callable[[Any, Subject, Draw], Any]
    counts: Callable[[Any, Subject], Counts]
    read_text: Callable[[str], Any] | None = None


def _choice(name: str) -> Callable[[Any, Subject, Draw], dict[str, str]]:
    """Reads an object with one of the options of each part of a form."""

    def read(value: Any, subject: Subject, draw: Draw) -> dict[str, str]:
        chosen = {}
        for key, part in prompts.read()[name].parts.items():
            option = " ".join(value[key].lower().split()) if isinstance(value[key], str) else ""
            if option not in part.options:
                raise ValueError(value[key])
            chosen[key] = option
        return chosen

    return read


def _claim_prompt(subject: Subject, draw: Draw) -> str:
    return prompts.prompt(CLAIM, draw, {"caption": prompts.quoted(subject.caption)})


def _claim_counts(reading: Mapping[str, str], subject: Subject) -> Counts:
    return {"specificity": (float(reading["change"] == "no"), 1.0)}


def _reversal_prompt(subject: Subject, draw: Draw) -> str:
    assert subject.swapped is not None
    captions = {"caption": subject.caption, "swapped": subject.swapped}
    return prompts.prompt(
        REVERSAL, draw, {name: prompts.quoted(text) for name, text in captions.items()}
    )


def _reversal_counts(reading: Mapping[str, str], subject: Subject) -> Counts:
    return {"reversibility": (float(reading["reverse"] == "yes"), 1.0)}


def _grading_prompt(subject: Subject, draw: Draw) -> str:
    references = draw.order("references", list(dict.fromkeys(subject.references)))
    fields = {
        "references": prompts.listed(references),
        "caption": prompts.quoted(subject.caption),
    }
    return prompts.prompt(GRADING, draw, fields)


def _grading_counts(reading: Mapping[str, str], subject: Subject) -> Counts:
    graded = {key: (GRADES[reading[key]], 1.0) for key in ("correctness", "completeness")}
    return {**graded, "hallucination": (float(reading["hallucination"] == "some"), 1.0)}


def _matching_prompt(subject: Subject, draw: Draw) -> str:
    numbers = draw.order("differences", range(len(subject.differences or ())))
    texts = [_in_words((subject.differences or ())[number]) for number in numbers]
    fields = {
        "differences": prompts.listed(texts, numbered=True),
        "caption": prompts.quoted(subject.caption),
    }
    return prompts.prompt(MATCHING, draw, fields)


def _in_words(difference: Any) -> str:
    if isinstance(difference, str):
        return difference
    return json.dumps(difference, ensure_ascii=False)


def _read_matching(value: Any, subject: Subject, draw: Draw) -> tuple[frozenset[int], int]:
    """The differences that are stated, by their place in the list, and the number of other claims.

    A difference counts once, however many claims state it.
    """
    numbers = draw.order("differences", range(len(subject.differences or ())))
    claims = value["claims"]
    if not isinstance(claims, list) or len(claims) > MAX_CLAIMS:
        raise ValueError(claims)
    stated, others = set(), 0
    for claim in claims:
        number = _whole(claim["difference"])
        if number == 0:
            others += 1
        else:
            stated.add(numbers[_within(number, range(1, len(numbers) + 1)) - 1])
    return frozenset(stated), others


def _matching_counts(reading: tuple[frozenset[int], int], subject: Subject) -> Counts:
    matched, others = len(reading[0]), reading[1]
    true = len(subject.differences or ())
    return {
        "precision": (matched, matched + others),
        "recall": (matched, true),
        "F1": (2 * matched, matched + others + true),
        "hallucination": (float(others > 0), 1.0),
    }


def _c3_prompt(subject: Subject, draw: Draw) -> str:
    fields = {"reference": subject.references[0], "caption": c3_caption(subject.caption)}
    return prompts.prompt(C3, draw, {name: prompts.quoted(text) for name, text in fields.items()})


def c3_caption(caption: str) -> str:
    """A prediction without the <output> marks that C3-Bench asks its models for."""
    match = _OUTPUT.search(caption)
    return match[1] if match else caption


def _read_c3(value: Any, subject: Subject, draw: Draw) -> dict[str, int]:
    return {key: _within(_rate(value[key]), RATES) for key in (*CRITERIA, FINAL)}


def read_c3_tags(text: str) -> dict[str, int]:
    """Ratings between the marks that C3-Bench's own prompt asks for. Raises ValueError."""
    ratings = {}
    for key in (*CRITERIA, FINAL):
        found = {one.strip() for one in re.findall(rf"<{key}>([^<]*)</{key}>", text)}
        if len(found) != 1:
            raise ValueError(key)
        ratings[key] = _within(_rate(found.pop()), RATES)
    return ratings


def _c3_counts(reading: Mapping[str, int], subject: Subject) -> Counts:
    rated = {key: (float(reading[key]), 1.0) for key in CRITERIA}
    return {**rated, "aggregation": (float(reading[FINAL]), 1.0)}


def diffspot_fields(subject: Subject) -> dict[str, str]:
    """What DiffSpot's judge is shown of a pair: records, their sentence, the list to be judged."""
    unchanged = subject.unchanged
    records = [] if unchanged else [*(subject.differences or subject.references[:1])]
    return {
        "mutations": json.dumps(records, ensure_ascii=False, indent=2),
        "reference": UNCHANGED_NOTE if unchanged else subject.references[0],
        "caption": subject.caption,
    }


def _diffspot_prompt(subject: Subject, draw: Draw) -> str:
    fields = diffspot_fields(subject)
    quoted = {name: prompts.quoted(fields[name]) for name in ("reference", "caption")}
    return prompts.prompt(DIFFSPOT, draw, {**fields, **quoted})


def _read_diffspot(value: Any, subject: Subject, draw: Draw) -> tuple[bool, bool]:
    """Whether one of the changes is found, and whether a difference is invented."""
    verdicts, invented = value["mutations"], value["hallucinations"]
    if not isinstance(verdicts, list) or not isinstance(invented, list):
        raise ValueError(value)
    said = [one["verdict"] for one in verdicts]
    if not all(isinstance(one, str) for one in said):
        raise ValueError(said)
    found = [one.lower().strip() for one in said]
    if not set(found) <= {*prompts.read()[DIFFSPOT].parts}:
        raise ValueError(found)
    if not found and not subject.unchanged:
        raise ValueError("no verdict on what changed")
    return "correct" in found, bool(invented)


def _diffspot_counts(reading: tuple[bool, bool], subject: Subject) -> Counts:
    found, invented = reading
    if subject.unchanged:
        right = (float(not invented), 1.0)
        return {"overall": right, "specificity": right}
    return {"overall": (float(found), 1.0), "recall": (float(found), 1.0)}


def _rate(value: Any) -> int:
    """A rating, also as `8/10`."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,3})(?:\s*/\s*10)?\s*", value)
        value = int(match[1]) if match else value
    return _whole(value)


def _whole(value: Any) -> int:
    """A whole number, also as a text. Raises ValueError and TypeError."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"\s*\d{1,6}\s*", value) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise ValueError(value)
    return value


def _within(number: int, known: range) -> int:
    if number not in known:
        raise ValueError(number)
    return number


FORMS = {
    form.name: form
    for form in (
        Form(CLAIM, _claim_prompt, _choice(CLAIM), _claim_counts),
        Form(REVERSAL, _reversal_prompt, _choice(REVERSAL), _reversal_counts),
        Form(GRADING, _grading_prompt, _choice(GRADING), _grading_counts),
        Form(MATCHING, _matching_prompt, _read_matching, _matching_counts),
        Form(C3, _c3_prompt, _read_c3, _c3_counts, read_c3_tags),
        Form(DIFFSPOT, _diffspot_prompt, _read_diffspot, _diffspot_counts),
    )
}
