"""METEOR's process: started once, never answering for an earlier call, started anew if it ended."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from cc_train.evaluation.captions import meteor

REFERENCES = {"a": ["the small cube moved"], "b": ["a red ball appeared"]}


def score(caption: str) -> float:
    return meteor.meteor(REFERENCES, {"a": caption}, [["a"]])[0][0]


def process_id() -> int:
    assert meteor._running is not None
    return meteor._running.process.pid


def test_one_process_answers_all_calls() -> None:
    whole = score("the small cube moved")
    first = process_id()
    assert whole > 0.9
    assert score("nothing") == 0
    assert score("the small cube moved") == whole
    assert process_id() == first


def test_a_call_that_was_broken_off_leaves_no_answers_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: the answers of a call that was interrupted, read by the next one."""
    whole = score("the small cube moved")
    with monkeypatch.context() as patch:
        patch.setattr(meteor, "_line", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score("nothing")
    assert score("the small cube moved") == whole


def test_a_process_that_was_killed_is_started_anew() -> None:
    whole = score("the small cube moved")
    first = process_id()
    meteor._running.process.kill()  # type: ignore[union-attr]
    meteor._running.process.wait()  # type: ignore[union-attr]
    assert score("the small cube moved") == whole
    assert process_id() != first


def test_a_busy_machine_is_not_a_fault_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: "Java process failed", where it was ended since it had not started yet."""
    meteor._stop()
    monkeypatch.setattr(meteor, "START_S", 0.0)
    monkeypatch.setattr(meteor, "EACH_S", 0.01)
    with pytest.raises(meteor.Unavailable, match="not ready after 0 s: the machine is too busy"):
        score("the small cube moved")
