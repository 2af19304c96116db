"""METEOR's process: started once, never answering for an earlier call, started anew if it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from cc_train.evaluation.captions import meteor, spice

REFERENCES = {"a": ["the small cube moved"], "b": ["a red ball appeared"]}


def score(caption: str) -> float:
    return meteor.meteor(REFERENCES, {"a": caption}, [["a"]])[0][0]


def process_id() -> int:
    assert meteor._running is not None
    return meteor._running.process.pid


# Scores a caption 1 if it is a reference, and 0 otherwise.
PROGRAM = """#!{python} -ES
import sys
for line in sys.stdin:
    kind, *words = line.rstrip("\\n").split(" ||| ")
    scores = map(float, words) if kind == "EVAL" else [words[-1] in words[:-1]]
    values = [float(score) for score in scores]
    print(*values, *([sum(values)] if kind == "EVAL" else []), sep="\\n", flush=True)
"""


def of_another_java(folder: Path, patch: pytest.MonkeyPatch, program: str) -> None:
    """A Java in the folder, which METEOR runs from now on; the real process stays for later."""
    java = folder / "bin/java"
    java.parent.mkdir()
    java.write_text(program)
    java.chmod(0o755)
    patch.setenv("JAVA_HOME", str(folder))
    patch.setattr(meteor, "_running", None)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that answers as METEOR does, and starts at once."""
    of_another_java(tmp_path, monkeypatch, PROGRAM.format(python=sys.executable))
    yield
    meteor._stop()


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Java that never answers."""
    of_another_java(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 60\n")
    yield
    meteor._stop()


def test_one_process_answers_all_calls() -> None:
    whole = score("the small cube moved")
    first = process_id()
    assert whole > 0.9
    assert score("nothing") == 0
    assert score("the small cube moved") == whole
    assert process_id() == first


@pytest.mark.usefixtures("small")
def test_a_call_that_was_broken_off_leaves_no_answers_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: the answers of a call that was interrupted, read by the next one."""
    whole = score("the small cube moved")
    with monkeypatch.context() as patch:
        patch.setattr(meteor._Server, "line", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score("nothing")
    assert score("the small cube moved") == whole


@pytest.mark.usefixtures("small")
def test_a_process_that_was_killed_is_started_anew() -> None:
    whole = score("the small cube moved")
    first = process_id()
    meteor._running.process.kill()  # type: ignore[union-attr]
    meteor._running.process.wait()  # type: ignore[union-attr]
    assert score("the small cube moved") == whole
    assert process_id() != first


@pytest.mark.usefixtures("sleeping")
def test_a_busy_machine_is_not_a_fault_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: "Java process failed", where it was ended since it had not started yet."""
    monkeypatch.setattr(meteor, "PATIENCE_S", 0.01)
    with pytest.raises(meteor.Unavailable, match="did not answer for 0 s: the machine is too busy"):
        score("the small cube moved")


@pytest.mark.usefixtures("sleeping")
def test_spice_does_not_wait_for_a_java_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an evaluation that never ends."""
    monkeypatch.setattr(spice, "PATIENCE_S", 0.2)
    with pytest.raises(meteor.Unavailable, match=r"bin/java does not work: .* timed out"):
        spice._require_answer(meteor.find_java())


@pytest.mark.usefixtures("sleeping")
def test_meteor_says_that_java_sleeps_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: ten minutes of silence."""
    monkeypatch.setattr(meteor, "PATIENCE_S", 0.3)
    monkeypatch.setattr(meteor, "TOLD_S", 0.1)
    monkeypatch.setattr(meteor, "STEP_S", 0.05)
    with pytest.raises(meteor.Unavailable, match="did not answer for 0 s"):
        score("the small cube moved")
    assert "has not answered for 0 s" in capsys.readouterr().err
