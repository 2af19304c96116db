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
_QUOTES = (('"', '"'), ("“", "”"), ("`", "`"), ("'", "'"))


@dataclass(frozen=True)
class Answer:
    """What a model answered, word for word.

    Attributes:
        ended: Why it ended, as the server says it; `length` where it reached the limit of tokens,
            `content_filter` where the server does not answer the question.
    """

    text: str
    ended: str = STOPPED

    @property
    def caption(self) -> str:
        """The answer as one line, without thoughts in <think> marks and without quotation marks
        around it; empty where nothing is left.
        """
        text = " ".join(_THOUGHTS.sub(" ", self.text).split())
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
            return Answer(_text(content["answer"]), _text(content["ended"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: no stored answer", "Remove that file") from None

    def put(self, digest: str, answer: Answer, asked: Mapping[str, Any]) -> None:
        """Stores an answer, with what was asked for whoever opens the file."""
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"answer": answer.text, "ended": answer.ended, "asked": dict(asked)}
        storage.write_json(str(path), content)

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest}.json"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
