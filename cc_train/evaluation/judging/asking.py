"""Puts questions to a judge, unless their answers are stored, and reads what it answers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import track

from cc_prep.errors import JobFailed
from cc_train.baselines.answers import Answer, Answers
from cc_train.baselines.asking import in_threads
from cc_train.evaluation.judging import protocols, reading
from cc_train.evaluation.judging.forms import Form, Subject
from cc_train.evaluation.judging.prompts import Draw

FIRST = 20  # answers; where none of the first ones can be read, no further question is put
REMEDIES = {
    reading.CUT: "Give it more tokens: --judge-set max_tokens=16384",
    reading.EMPTY: "If it is a model that thinks, give it more tokens: "
    "--judge-set max_tokens=16384",
}
REMEDY = "Try another --judge: this one does not answer in the form that is asked for"


class Model(Protocol):
    """What answers questions. identity: what of it decides an answer."""

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def answer(self, prompt: str) -> Answer: ...

    def stop(self) -> None:
        """Lets threads that wait with a question end with an error."""


@dataclass(frozen=True)
class Asked:
    """A question about a pair, and what the judge said.

    Attributes:
        second: It is the second asking, with all orders reversed.
        said: The reading of the answer; None where it is broken.
        broken: Why, as `reading` names it.
    """

    subject: Subject
    form: Form
    second: bool
    said: Any = None
    broken: str | None = None


def ask(
    model: Model,
    answers: Answers,
    protocol: protocols.Protocol,
    subjects: Sequence[Subject],
    console: Console,
    *,
    threads: int = 1,
    patient: bool = False,
) -> list[Asked]:
    """All questions of a protocol about pairs, answered, in the order of the pairs.

    Answers are stored as they come, and stored ones are not asked for again.

    Args:
        patient: Go on where none of the FIRST answers can be read.

    Raises:
        UserError and JobFailed: The server refuses or fails, or not one answer can be read.
    """
    questions = [
        (subject, form, second)
        for subject in subjects
        for form in protocol.forms(subject)
        for second in range(protocol.askings(form))
    ]
    draws = [
        Draw(protocol.seed, form.name, subject.id, bool(second))
        for subject, form, second in questions
    ]
    prompts = [
        protocol.prompt(form, subject, draw)
        for (subject, form, _), draw in zip(questions, draws, strict=True)
    ]
    digests = [_digest(prompt, model.identity) for prompt in prompts]

    def read(number: int, answer: Answer) -> Asked:
        subject, form, second = questions[number]
        try:
            said = reading.of(
                answer, lambda value: form.read(value, subject, draws[number]), form.read_text
            )
        except reading.Broken as error:
            return Asked(subject, form, bool(second), broken=error.reason)
        return Asked(subject, form, bool(second), said)

    # Pairs with equal captions may be one question.
    first = {digest: number for number, digest in reversed([*enumerate(digests)])}
    by_digest: dict[str, Answer] = {}
    reasons: list[str | None] = []
    unique = list(first)
    each = _answered(model, answers, [prompts[first[digest]] for digest in unique], unique, threads)
    count = 0
    for digest, answer, stored in track(
        each, "judging", len(unique), console=console, transient=True
    ):
        by_digest[digest] = answer
        count += stored
        reasons.append(read(first[digest], answer).broken)
        if not patient and len(reasons) == FIRST < len(unique) and all(reasons):
            model.stop()
            raise _failed(reasons)
    if count:
        console.print(f"{count:,} of {len(unique):,} answers of the judge were stored")
    if reasons and all(reasons):
        raise _failed(reasons)
    return [read(number, by_digest[digest]) for number, digest in enumerate(digests)]


def _failed(reasons: Sequence[str | None]) -> JobFailed:
    counts = Counter(filter(None, reasons))
    listed = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    remedy = REMEDIES.get(counts.most_common(1)[0][0], REMEDY)
    return JobFailed(
        f"none of the first {len(reasons)} answers of the judge can be read ({listed}). {remedy}"
    )


def _digest(prompt: str, identity: Mapping[str, Any]) -> str:
    content = json.dumps({"prompt": prompt, **identity}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _answered(
    model: Model,
    answers: Answers,
    prompts: Sequence[str],
    digests: Sequence[str],
    threads: int,
) -> Iterator[tuple[str, Answer, bool]]:
    """Digest, answer, and whether it was stored, as they come."""

    def one(question: tuple[str, str]) -> tuple[str, Answer, bool]:
        prompt, digest = question
        known = answers.get(digest)
        if known is not None:
            return digest, known, True
        answer = model.answer(prompt)
        answers.put(digest, answer, {**model.identity, "prompt": prompt})
        return digest, answer, False

    yield from in_threads(one, zip(prompts, digests, strict=True), threads, model.stop)
