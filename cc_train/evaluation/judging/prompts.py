"""The texts of `prompts.yaml`, or those of a benchmark in a file, and the orders that are drawn."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from cc_prep import settings
from cc_prep.settings import Section

FILE = Path(__file__).parent / "prompts.yaml"
_FIELD = re.compile(r"\{(\w+)\}")
Value = TypeVar("Value")


class Part(Section):
    """A question of a form, or a criterion. options: the answers that it may have."""

    ask: str
    options: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Form(Section):
    """The texts of a form; the file's head describes them."""

    revision: int = Field(ge=1)
    intro: str
    blocks: dict[str, str]
    task: str
    parts: dict[str, Part] = Field(default_factory=dict)
    answer: str


class Forms(Section):
    """The whole file."""

    forms: dict[str, Form]


@cache
def read() -> Mapping[str, Form]:
    """All forms by name. Raises UserError."""
    values = settings.parse(FILE.read_text(encoding="utf-8"), FILE.name)
    return settings.build(
        Forms, values, FILE.name, "cc_train/evaluation/judging/prompts.yaml"
    ).forms


@cache
def digest(name: str) -> str:
    """SHA-256 of a form's texts."""
    text = json.dumps(read()[name].model_dump(), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Draw:
    """The orders of one asking of a question: drawn by seed, form and pair, then reversed.

    Attributes:
        reverse: This is the second asking.
    """

    seed: int
    form: str
    id: str
    reverse: bool = False

    def order(self, what: str, values: Sequence[Value]) -> list[Value]:
        """Values in the order that is drawn for `what`."""
        ordered = list(values)
        random.Random(f"{self.seed}/{self.form}/{self.id}/{what}").shuffle(ordered)
        return ordered[::-1] if self.reverse else ordered


def prompt(name: str, draw: Draw, fields: Mapping[str, str]) -> str:
    """The question of a form about a pair.

    Args:
        fields: What the blocks name in braces.
    """
    form = read()[name]
    blocks = [_filled(form.blocks[key], fields) for key in draw.order("blocks", [*form.blocks])]
    keys = draw.order("parts", [*form.parts])
    lines = []
    for key in keys:
        part = form.parts[key]
        options = draw.order(f"options of {key}", part.options)
        listed = ", ".join(json.dumps(option) for option in options)
        lines.append(f'- "{key}": {part.ask}' + (f" One of {listed}." if listed else ""))
    named = keys if name != "c3-bench" else [*keys, "final_score"]
    shape = "{" + ", ".join(f'"{key}": …' for key in named) + "}"
    task = "\n".join([form.task, *lines])
    return "\n\n".join([form.intro, *blocks, task, form.answer.replace("{form}", shape)])


def quoted(text: str) -> str:
    """A stranger's text as JSON has it: on one line, so that it cannot pass for a part of ours."""
    return json.dumps(text, ensure_ascii=False)


def listed(texts: Sequence[str], numbered: bool = False) -> str:
    """Texts one a line."""
    marks = (f"{number}." if numbered else "-" for number in range(1, len(texts) + 1))
    return "\n".join(f"{mark} {quoted(text)}" for mark, text in zip(marks, texts, strict=True))


def _filled(template: str, fields: Mapping[str, str]) -> str:
    """A template with its fields, each replaced once: a caption may hold braces of its own."""
    return _FIELD.sub(lambda match: fields[match[1]], template)
