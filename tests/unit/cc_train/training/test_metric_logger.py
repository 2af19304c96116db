"""What a run says of its pace."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from cc_train.training import metric_logger


def test_the_step_that_a_run_goes_on_from_stays_on_the_board(tmp_path: Path) -> None:
    """Keeps away: a validation that vanished from TensorBoard at each resume."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / metric_logger.TENSORBOARD
    for start, step in ((0, 250), (250, 500)):
        logger = metric_logger.MetricLogger(tmp_path, start, 500, Console(quiet=True))
        logger.log(step, "validation", {"loss": 1.0})
        logger.close()
        # Files are read in the order of the second in their names, which here is the same one.
        [file] = folder.glob("events.out.tfevents.*.*")
        file.rename(folder / f"events.out.tfevents.{step}")
    events = EventAccumulator(str(folder)).Reload()
    [tag] = events.Tags()["scalars"]
    assert [event.step for event in events.Scalars(tag)] == [250, 500]


def test_the_time_spent_waiting_for_samples_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: now))
    output = io.StringIO()
    logger = metric_logger.MetricLogger(tmp_path, 0, 8, Console(file=output, width=200))

    def slow() -> Iterator[int]:
        nonlocal now
        for number in range(4):
            now += 1  # reading
            yield number

    for _ in logger.watch(slow()):
        now += 4  # training
    logger.log(4, "train", {"loss": 1.0}, samples=10)
    logger.close()
    assert "(2 samples/s, 5.00 s a step, 20% waiting for samples, 0 min left)" in output.getvalue()
