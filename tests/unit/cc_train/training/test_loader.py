"""What the loader makes of loader workers that die, and of what their stores say."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, Dataset

from cc_prep.errors import JobFailed, UserError
from cc_train.training import loader as loaders
from cc_train.training.loader import WORKER_DIED, dead_workers_reported

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
    with dead_workers_reported():
        Raises(RuntimeError(DIED))
        gc.collect()
    assert "Traceback" not in capsys.readouterr().err


def test_other_errors_of_a_collection_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("sys.unraisablehook", lambda event: shown.append(str(event.exc_value)))
    with dead_workers_reported():
        Raises(RuntimeError("something else"))
        Raises(RuntimeError(DIED))
        gc.collect()
    assert shown == ["something else"]
    Raises(RuntimeError(DIED))
    gc.collect()
    assert shown == ["something else", DIED], "the hook of before is back"


def test_a_dead_worker_is_one_line() -> None:
    with pytest.raises(JobFailed, match="a loader worker died") as caught, dead_workers_reported():
        raise RuntimeError(DIED)
    assert str(caught.value) == WORKER_DIED
    with pytest.raises(RuntimeError, match="something else"), dead_workers_reported():
        raise RuntimeError("something else")


class Torn:
    """A loader that gives one item and then fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise self.error


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset"), EOFError(), FileNotFoundError(2, "")]
)
def test_a_worker_that_dies_while_it_hands_an_item_over(error: Exception) -> None:
    """Keeps away: "[Errno 104] Connection reset by peer" as all that is said of it."""
    items = loaders.raise_refusals(Torn(error), workers=2)
    assert next(items) == 1
    with pytest.raises(JobFailed, match="a loader worker died"):
        next(items)


@pytest.mark.parametrize(
    ("workers", "message"), [(0, ""), (2, "Caught X in DataLoader worker process 0.\nOriginal")]
)
def test_what_a_store_says_stays_what_it_said(workers: int, message: str) -> None:
    error = ConnectionResetError(message)
    with pytest.raises(ConnectionResetError) as caught:
        list(loaders.raise_refusals(Torn(error), workers))
    assert caught.value is error


def test_only_a_death_is_called_one() -> None:
    """Keeps away: a worker's own error, its traceback lost, called out of memory."""
    killed = "DataLoader worker (pid 12) is killed by signal: Killed. "
    with pytest.raises(JobFailed, match="a loader worker died"), dead_workers_reported():
        raise RuntimeError(killed)
    own = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback"
    with pytest.raises(RuntimeError, match="Original"), dead_workers_reported():
        raise RuntimeError(own)


def refused(number: int) -> int:
    if number == 1:
        raise UserError("no such sample", "Give others")
    raise JobFailed("enough of them")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_refusal_in_a_worker_is_the_line_that_it_is_elsewhere(workers: int) -> None:
    """Keeps away: torch's traceback in place of a message, once `loop.loader_workers` is set."""
    for number, error in (
        (1, UserError("no such sample", "Give others")),
        (2, JobFailed("enough of them")),
    ):
        loader: DataLoader[int] = DataLoader(
            loaders.Batches(refused, 3), None, sampler=[number], num_workers=workers
        )
        with pytest.raises(type(error)) as caught:
            list(loaders.raise_refusals(loader, workers))
        assert str(caught.value) == str(error)


class Signalled(Dataset[int]):
    """Each item's worker is sent SIGTERM before it has the item."""

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return index


def test_a_signal_to_all_processes_leaves_the_workers_to_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: workers that die while the training saves, of which torch prints tracebacks."""
    # Beside other tests' threads a forked worker may not end by itself; torch waits 5 s for each.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)

    def loader(items: int) -> DataLoader[int]:
        return DataLoader(
            Signalled(),
            None,
            sampler=range(items),
            num_workers=2,
            worker_init_fn=loaders.init_worker,
        )

    assert list(loader(2)) == [0, 1]
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(loader(4))  # each worker's second
