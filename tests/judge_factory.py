"""A stand-in for a judge's server, and judges: right by the facts, biased, verbose, broken.

The judge that is right reads both texts with the grammar of rendered scenes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from cc_prep.synth import parsing
from cc_prep.synth.parsing import UNCHANGED, Claims
from tests.server_factory import COMPLETIONS, MODEL, Handler, Server, Trouble

AND = ", and "
_LINE = re.compile(r'^(?:\d+\.|-) (".*")$', re.MULTILINE)

Judging = Callable[[str], "str | Trouble"]


class JudgeServer(Server):
    """prompts: of all requests. answer: to a prompt; a text that ends in CUT was cut there."""

    CUT = "\u2702"

    def __init__(self, answer: Judging) -> None:
        super().__init__(_JudgeHandler)
        self.answer = answer
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"{super().address}/v1"


class _JudgeHandler(Handler):
    server: JudgeServer

    def do_POST(self) -> None:  # noqa: N802  # http.server calls it by this name
        body = json.loads(self.body())
        if self.path != COMPLETIONS or body["model"] != MODEL:
            return self.reply({"error": {"message": f"no {body['model']}"}}, 404)
        [message] = body["messages"]
        assert isinstance(message["content"], str), "a judge sees no images"
        self.server.bodies.append(body)
        self.server.prompts.append(message["content"])
        answer = self.server.answer(message["content"])
        if isinstance(answer, Trouble):
            return self.reply(answer.body, answer.status, answer.headers)
        ended = "length" if answer.endswith(JudgeServer.CUT) else "stop"
        message = {"role": "assistant", "content": answer.removesuffix(JudgeServer.CUT)}
        return self.reply({"choices": [{"index": 0, "message": message, "finish_reason": ended}]})


def by_facts(prompt: str) -> str:
    """What a judge says that makes no mistake about sentences of rendered scenes."""
    if "From B to A:" in prompt:
        forwards, backwards = _after(prompt, "From A to B:"), _after(prompt, "From B to A:")
        return _answer(reverse="yes" if _is_reverse(forwards, backwards) else "no")
    if "Does it say that something changed" in prompt:
        says = [_claims(_after(prompt, "The description:"))]
        return _answer(change="no" if says[0].type == UNCHANGED else "yes")
    if "All differences" in prompt:
        return _matched(prompt)
    if "Rate a caption" in prompt:
        caption, reference = (
            _after(prompt, "The caption to be rated:"),
            _after(prompt, "The reference:"),
        )
        same = _claims(caption).type == _claims(reference).type == UNCHANGED
        rate = 9 if same or (_agrees(caption, [reference]) and AND not in caption) else 3
        keys = ("correctness", "specificity", "relevance", "fluency", "final_score")
        return _answer(**dict.fromkeys(keys, rate))
    if "screenshots" in prompt:
        return _listed(prompt)
    references = [json.loads(line) for line in _LINE.findall(prompt)]
    caption = _after(prompt, "The description to be judged:")
    parts = [part for part in caption.split(AND) if _claims(part).type != UNCHANGED]
    right = [_agrees(part, references) for part in parts]
    return _answer(
        correctness="wrong" if not any(right) else "right" if all(right) else "partly right",
        completeness="all" if any(right) else "nothing",
        hallucination="none" if all(right) else "some",
    )


def always_first(prompt: str) -> str:
    """What a judge says that takes the first option that it reads."""
    chosen = re.findall(r'^- "(\w+)": .* One of "([^"]+)"', prompt, re.MULTILINE)
    return _answer(**dict(chosen))


def verbose(prompt: str) -> str:
    """The right answer between thoughts, an example and prose."""
    return (
        '<think>perhaps {"change": "yes"} or {"reverse": "no"}?</think>Sure! Here {is} my '
        f"verdict:\n```json\n{by_facts(prompt)}\n```\nI hope that {{helps}}."
    )


def _answer(**values: Any) -> str:
    return json.dumps(values)


def _after(prompt: str, heading: str) -> str:
    line = prompt.split(heading, 1)[1].strip().splitlines()[0]
    return str(json.loads(line))


def _matched(prompt: str) -> str:
    differences = [json.loads(line) for line in _LINE.findall(prompt)]
    claims = []
    for part in _after(prompt, "The description to be judged:").split(AND):
        if _claims(part).type == UNCHANGED:
            continue
        stated = [n for n, one in enumerate(differences, 1) if _agrees(part, [one])]
        claims.append({"claim": part, "difference": stated[0] if stated else 0})
    return _answer(claims=claims)


def _listed(prompt: str) -> str:
    records = prompt.split("there are none:\n", 1)[1].split("\nIn words:", 1)[0]
    changes = json.loads(records)
    parts = _after(prompt, "The list to be judged:").split(AND)
    parts = [part for part in parts if _claims(part).type != UNCHANGED]
    found = [any(_agrees(part, [change]) for part in parts) for change in changes]
    invented = [part for part in parts if not _agrees(part, changes)]
    verdicts = [{"verdict": "correct" if one else "missed"} for one in found]
    return _answer(mutations=verdicts, hallucinations=invented)


def _claims(text: str) -> Claims:
    return parsing.parse(text)


def _agrees(caption: str, true: list[str]) -> bool:
    """Whether a sentence claims nothing that one of the true ones does not claim."""
    said = _claims(caption)
    if said.type in (None, UNCHANGED):
        return False
    facts = (parsing.TYPE, *parsing.FEATURES, parsing.NEW)
    values = {fact: said.value(fact) for fact in facts if said.value(fact) is not None}
    known = [_claims(one) for one in true]
    return any(all(one.value(fact) == value for fact, value in values.items()) for one in known)


def _is_reverse(forwards: str, backwards: str) -> bool:
    one, other = _claims(forwards), _claims(backwards)
    types = {"add": "drop", "drop": "add"}
    if UNCHANGED in (one.type, other.type) or types.get(str(one.type), one.type) != other.type:
        return False
    if one.type in parsing.NEW_FEATURES:
        changed = str(one.type)
        return (one.value(parsing.NEW), other.value(parsing.NEW)) == (
            other.value(changed),
            one.value(changed),
        )
    return all(one.value(feature) == other.value(feature) for feature in parsing.FEATURES)
