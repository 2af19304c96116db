"""Answers on a disk, a file each, named by the digest of what was asked.

An answer is stored the moment it is there, and a file appears under its name only when it is whole.
So a killed run resumes without asking again for any answer that it had received.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError

STOPPED, LENGTH, FILTERED = "stop", "length", "content_filter"
# A chat template may have written the opening mark.
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*\Z", re.DOTALL)
_PARAGRAPHS = re.compile(r"\n\s*\n")
# What chat models put around a sentence: bold marks, list marks and headings, words before it.
_BOLD = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")
_MARK = re.compile(r"\A(?:#{1,6}|[-*•]|\d{1,2}[.)])\s+")
_LABEL = re.compile(
    r"\A(?:(?:the |my )?(?:only |main |final |short |one-sentence )?"
    r"(?:answer|caption|change|changes|description|difference|output|request|response|sentence)"
    r"(?: between (?:the (?:two )?)?images)?"
    r"(?: is that[:,]?| is:|\s*:)"
    r"|(?:sure|certainly|of course|okay)\s*[!:,]\s*(?=here(?:'s| is| are)\b)"
    r"|here(?: is|'s| are) (?:the |my |your |a |an |one )?(?:\w+ ){0,3}"
    r"(?:answer|caption|changes?|description|differences?|sentence)"
    # Not "the caption sign: …" or "a change at 10:30", which are in the picture.
    r"(?: text)?(?:(?: ?[,(]| (?:about|as|based|below|between|comparing|describing|detected|for"
    r"|found|from|i|identified|in|noted|observed|of|requested|seen|that|to|visible|which|you)\b)"
    r"[^:.]{0,60})?\s*:)\s*",
    re.IGNORECASE,
)
_QUOTES = (('"', '"'), ("“", "”"), ("`", "`"), ("'", "'"))


@dataclass(frozen=True)
class Answer:
    """What a model answered, word for word.

    Attributes:
        ended: Why it ended, as the server says it; `length` where it reached the limit of tokens,
            `content_filter` where the server does not answer the question.
        thoughts: What the server sends apart from the answer, as the model's thoughts.
    """

    text: str
    ended: str = STOPPED
    thoughts: str = ""

    @property
    def caption(self) -> str:
        """The answer as one line, without thoughts in <think> marks and without quotation marks
        around it; empty where nothing is left.

        Some servers take all that a model writes for thoughts. Then the answer is their last
        paragraph, unless the limit of tokens cut them.
        """
        text = " ".join(_THOUGHTS.sub(" ", self.text).split())
        if self.is_in_thoughts:
            text = " ".join(self._last_thought().split())
        return _unquoted(text)

    @property
    def plain_caption(self) -> str:
        """The caption without what chat models put around a sentence: "**Answer:** …", "Sure! Here
        is the change: …", "The change is that …", marks of lists and of bold text.
        """
        text = before = self.caption
        while True:
            text = _BOLD.sub(r"\2", text)
            for pattern in (_MARK, _LABEL):
                text = pattern.sub("", text)
            text = _unquoted(text.strip())
            if text == before:
                return text
            before = text

    @property
    def is_in_thoughts(self) -> bool:
        """Whether the server has put the answer among the thoughts."""
        said = _THOUGHTS.sub(" ", self.text).strip()
        return not said and self.ended == STOPPED and bool(self._last_thought())

    def _last_thought(self) -> str:
        whole = _THOUGHTS.sub(" ", self.thoughts).strip()
        return _PARAGRAPHS.split(whole)[-1]


def _unquoted(text: str) -> str:
    """A text without the quotation marks around it, if they are around all of it."""
    for opening, closing in _QUOTES:
        if len(text) > 1 and text.startswith(opening) and text.endswith(closing):
            inner = text[1:-1]
            if opening not in inner and closing not in inner:
                return inner.strip()
    return text


class Answers:
    """A folder of answers, each in `<2 digits>/<digest>.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, digest: str) -> Answer | None:
        """The answer to a question; None where it was not asked yet. Raises UserError."""
        path = self._path(digest)
        try:
            content = storage.read_json(str(path))
            texts = (content[name] for name in ("answer", "ended", "thoughts"))
            return Answer(*map(_text, texts))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: no stored answer", "Remove that file") from None

    def put(self, digest: str, answer: Answer, asked: Mapping[str, Any]) -> None:
        """Stores an answer, with what was asked for whoever opens the file."""
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"answer": answer.text, "ended": answer.ended, "thoughts": answer.thoughts}
        storage.write_json(str(path), {**content, "asked": dict(asked)})

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest}.json"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
