"""What a judge's answer says, or why it says nothing that could be scored.

An answer is read from the one JSON object in it that has the form that was asked for; prose, a
fence or thoughts around it do not matter. Nothing is guessed from other words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cc_prep import strict_json
from cc_train.baselines.answers import FILTERED, LENGTH, Answer

EMPTY, CUT, REFUSED = "empty", "cut", "refused by the server"
NO_JSON, OTHER, SEVERAL = "no JSON", "not as asked", "several answers"
MAX_STARTS = 200  # braces at which an object may begin
MAX_LENGTH = 200_000  # characters of an answer that are looked at
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*\Z", re.DOTALL)

Reading = TypeVar("Reading")


class Broken(Exception):
    """An answer that says nothing that could be scored. reason: one of the constants above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def of(
    answer: Answer,
    read: Callable[[Any], Reading],
    read_text: Callable[[str], Reading] | None = None,
) -> Reading:
    """What an answer says.

    Args:
        read: The reading of a JSON object; raises ValueError, KeyError or TypeError for one of
            another form.
        read_text: The same of a text without JSON, for forms that have another way to answer.

    Raises:
        Broken: For an answer without a reading, or with several that differ.
    """
    if answer.ended == FILTERED:
        raise Broken(REFUSED)
    text = _THOUGHTS.sub(" ", answer.text[:MAX_LENGTH]).strip()
    is_cut = answer.ended == LENGTH
    if not text:
        raise Broken(CUT if is_cut else EMPTY)
    found = list(_objects(text))
    readings: list[Reading] = []
    for value in found:
        try:
            reading = read(value)
        except (ValueError, KeyError, TypeError):
            continue
        if reading not in readings:
            readings.append(reading)
    if not readings and read_text is not None:
        try:
            return read_text(text)
        except ValueError:
            pass
    if len(readings) == 1:
        return readings[0]
    if readings:
        raise Broken(SEVERAL)
    if is_cut:
        raise Broken(CUT)
    raise Broken(OTHER if found else NO_JSON)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text that lie in no other one of them."""
    decoder = json.JSONDecoder(object_pairs_hook=_strictly)
    start = -1
    for _ in range(MAX_STARTS):
        start = text.find("{", start + 1)
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
            strict_json.loads(text[start:end])  # its limit of levels
        except (ValueError, RecursionError):
            continue
        yield value
        start = end - 1


def _strictly(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value
