"""JSON of strangers: what Python reads, but for what contradicts itself or has no end of levels."""

from __future__ import annotations

import json

import pytest

from cc_prep import strict_json


def test_plain_values_come_back() -> None:
    value = {"a": [1, 2.5, None, True, {"b": "ü"}], "c": {}, "d": []}
    assert strict_json.loads(json.dumps(value)) == value
    assert strict_json.loads(json.dumps(value).encode()) == value
    assert strict_json.loads("7") == 7


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]'])
def test_a_key_that_occurs_twice_is_refused(text: str) -> None:
    """Keeps away: captions or splits of which the first half is lost without a word."""
    with pytest.raises(ValueError, match="the key 'a' occurs twice"):
        strict_json.loads(text)


@pytest.mark.parametrize("levels", [strict_json.MAX_DEPTH + 1, 10**5])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_levels_are_bounded(levels: int, opening: str, closing: str) -> None:
    """Keeps away: a RecursionError, here or in whatever walks over the value later."""

    def nested(levels: int) -> str:
        return opening * levels + "1" + closing * levels

    assert strict_json.loads(nested(strict_json.MAX_DEPTH))
    with pytest.raises(ValueError, match="nested too deeply"):
        strict_json.loads(nested(levels))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[1,]"])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        strict_json.loads(text)
