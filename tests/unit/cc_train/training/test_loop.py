"""What the loop makes of loader workers that die."""

from __future__ import annotations

import gc

import pytest

from cc_prep.errors import JobFailed
from cc_train.training.loop import WORKER_DIED, _alive

DIED = "DataLoader worker (pid 7) is killed by signal: Terminated."


class Raises:
    """Raises when it is collected, as whatever is under way when torch hears of a dead worker."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_during_a_collection_prints_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keeps away: a traceback before the one line that says what happened."""
    with _alive():
        Raises(RuntimeError(DIED))
        gc.collect()
    assert "Traceback" not in capsys.readouterr().err


def test_other_errors_of_a_collection_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: shown.append(str(event.exc_value)))
    with _alive():
        Raises(RuntimeError("something else"))
        Raises(RuntimeError(DIED))
        gc.collect()
    assert shown == ["something else"]
    Raises(RuntimeError(DIED))
    gc.collect()
    assert shown == ["something else", DIED], "the hook of before is back"


def test_a_dead_worker_is_one_line() -> None:
    with pytest.raises(JobFailed, match="a loader worker died") as caught, _alive():
        raise RuntimeError(DIED)
    assert str(caught.value) == WORKER_DIED
    with pytest.raises(RuntimeError, match="something else"), _alive():
        raise RuntimeError("something else")
