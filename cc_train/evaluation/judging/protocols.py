"""By which protocol captions are judged: which forms are asked of a pair, and in whose words.

`differences` is ours. `c3-bench` and `diffspot` have the criteria, scales and formulas of their
benchmarks. What they ask is in our words unless a file holds the benchmark's own prompt, whose
SHA-256 tells whether it is the official one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cc_prep import storage, text_files
from cc_prep.errors import UserError
from cc_train.evaluation.judging import forms, prompts
from cc_train.evaluation.judging.forms import C3, DIFFSPOT, FORMS, Form, Subject
from cc_train.evaluation.judging.prompts import Draw

OURS = "differences"
NAMES = (OURS, C3, DIFFSPOT)
REVISIONS = {
    OURS: 1,
    C3: 1,
    DIFFSPOT: 1,
}  # counted up when a formula or the choice of forms changes
# By protocol, the fields of its own prompt and what of a pair they are.
FIELDS = {
    C3: {"[prediction]": "caption", "[reference]": "reference"},
    DIFFSPOT: {"{gt_json}": "mutations", "{gt_answer}": "reference", "{vlm_response}": "caption"},
}
BEGIN = ">>> PROMPT BEGINS BELOW THIS LINE >>>"  # below the head of DiffSpot's file
# SHA-256 of the official prompts, without blanks around them: `evaluate_template` of C3-Bench's
# c3_bench/prompts.py (2026-06-25), and DiffSpot's diffspot/prompts/judge.txt (v2.0).
OFFICIAL = {
    C3: "811a7eda5d8e2c253722506a824f50685d9b46728bbb2bf0bcd31f0ec2f4580a",
    DIFFSPOT: "8fc35fe9ede168820edd44376a4751ab802afad7f19c09a3811d10f7c2b9d7e5",
}
HEADLINES = {OURS: ("F1", "correctness"), C3: ("aggregation",), DIFFSPOT: ("overall",)}
RATED = {C3: (*forms.CRITERIA, "aggregation")}  # from 1 to 10; all other measures are shares


@dataclass(frozen=True)
class Protocol:
    """A protocol as it is asked.

    Attributes:
        template: The benchmark's own prompt; None asks in our words.
        seed: Of the orders.
    """

    name: str = OURS
    template: str | None = None
    seed: int = 0
    _template_digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.template is not None:
            digest = hashlib.sha256(self.template.encode("utf-8", "surrogatepass")).hexdigest()
            object.__setattr__(self, "_template_digest", digest)

    def askings(self, form: Form) -> int:
        """How often a question is put: a benchmark's own prompt has no orders to reverse."""
        return 1 if self.template is not None and form.name == self.name else 2

    @property
    def revised(self) -> str:
        """`name@revision`."""
        return f"{self.name}@{REVISIONS[self.name]}"

    @property
    def words(self) -> str:
        """Whose words are asked: `ours`, `official`, or `other` of a file that is not official."""
        if self.template is None:
            return "ours"
        return "official" if self._template_digest == OFFICIAL[self.name] else "other"

    def identity(self, names: Sequence[str]) -> dict[str, Any]:
        """What of the protocol decides the scores, for the forms with these names."""
        texts = {name: prompts.digest(name) for name in sorted(names)}
        if self.template is not None:
            texts[self.name] = self._template_digest
        return {
            "protocol": self.revised,
            "words": self.words,
            "prompts": texts,
            "seed": self.seed,
        }

    def forms(self, subject: Subject) -> list[Form]:
        """What is asked of a pair."""
        if self.name == OURS:
            changed = forms.GRADING if subject.differences is None else forms.MATCHING
            names = [forms.CLAIM if subject.unchanged else changed]
        else:
            names = [self.name]
        # DiffSpot has no such measure.
        if subject.swapped is not None and not subject.unchanged and self.name != DIFFSPOT:
            names.append(forms.REVERSAL)
        return [FORMS[name] for name in names]

    def prompt(self, form: Form, subject: Subject, draw: Draw) -> str:
        """The question of a form about a pair."""
        if self.template is None or form.name != self.name:
            return form.prompt(subject, draw)
        fields = forms.diffspot_fields(subject) if self.name == DIFFSPOT else _of_c3(subject)
        places = {mark: fields[name] for mark, name in FIELDS[self.name].items()}
        return _filled(self.template, places)


def _of_c3(subject: Subject) -> dict[str, str]:
    return {"caption": forms.c3_caption(subject.caption), "reference": subject.references[0]}


def _filled(text: str, places: Mapping[str, str]) -> str:
    """A template with each mark replaced once: a caption may hold a mark itself."""
    marks = "|".join(map(re.escape, places))
    return re.sub(marks, lambda match: places[match[0]], text)


def of(name: str, file: str | None, seed: int) -> Protocol:
    """The protocol of `--judge-protocol`, `--judge-prompt` and `--judge-seed`. Raises UserError."""
    if file is None:
        return Protocol(name, seed=seed)
    if name not in FIELDS:
        raise UserError(
            f"--judge-prompt is of the protocols {' and '.join(FIELDS)}", "Leave it out"
        )
    try:
        text = text_files.decode(storage.read_bytes(file), file)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file", "Check the path") from None
    text = text.partition(BEGIN)[2] or text
    missing = [mark for mark in FIELDS[name] if mark not in text]
    if missing:
        raise UserError(
            f"{file}: no prompt of {name}: no {missing[0]} in it",
            f"Give the benchmark's own judge prompt, with {', '.join(FIELDS[name])}",
        )
    return Protocol(name, text.strip(), seed)


def listed_differences(path: str) -> dict[str, tuple[Any, ...]]:
    """The lists of `--differences`, {id: [what differs]}, by the ids that the file gives.

    Raises:
        UserError: For a file of another form.
    """
    try:
        content = storage.read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "Check the path") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", "Give a JSON file") from None
    rows = content.items() if isinstance(content, dict) else ()
    lists = {}
    for id, listed in rows:
        if not isinstance(listed, list) or not all(_is_difference(one) for one in listed):
            raise UserError(
                f"{path}, id {id}: no list of differences", 'Give {"id": ["what differs", …]}'
            )
        lists[id] = tuple(listed)
    if not lists:
        raise UserError(f"{path}: no lists of differences", 'Give {"id": ["what differs", …]}')
    return lists


def _is_difference(value: Any) -> bool:
    return bool(value) and isinstance(value, str | dict)


def digest(subjects: Sequence[Subject]) -> str:
    """SHA-256 of the lists of differences that captions are judged against."""
    lines = sorted(
        json.dumps([one.id, one.differences], ensure_ascii=False, sort_keys=True)
        for one in subjects
        if one.differences is not None
    )
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
