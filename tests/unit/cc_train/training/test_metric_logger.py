"""What a run says of its pace."""

from __future__ import annotations

import io
import json
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
    assert "(2 samples/s, 5.00 s a step, 20% waiting for samples, 20 s left)" in output.getvalue()


def test_the_first_step_tells_how_long_the_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: 25 minutes of silence until step 20 of a training that takes a week."""
    now = 0.0
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: now))
    output = io.StringIO()
    logger = metric_logger.MetricLogger(tmp_path, 100, 7301, Console(file=output, width=200))
    now = 9.8
    logger.first_step(101)
    logger.first_step(102)
    logger.close()
    told = (
        "the first step took 9.8 s: about 20 h for the other 7,200, less if later steps are faster"
    )
    assert output.getvalue().splitlines() == [told]


def test_the_terminal_shows_few_figures_and_the_logs_have_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: fifteen figures a line, a rate that is rounded to 0, and times in our log, which
    a resumed run could not repeat."""
    now = 0.0
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: now))
    output, told = io.StringIO(), dict[str, float]()
    other = SimpleNamespace(log=lambda step, named: told.update(named), close=lambda: None)
    logger = metric_logger.MetricLogger(tmp_path, 0, 9, Console(file=output, width=200), [other])
    now = 6.0
    figures = {"caption": 2.5, "type": 0.0, "loss": 2.5, "grad_norm": 1.25, "learning_rate": 1e-7}
    logger.log(3, "train", figures)
    logger.close()
    assert output.getvalue().startswith(
        "train 3/9: loss 2.5, grad_norm 1.25, learning_rate 1e-07, 2 more in log.jsonl  (2.00 s a "
    )
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {
        "step": 3,
        "part": "train",
        **figures,
    }
    timed = {**figures, "seconds_per_step": 2.0}
    assert told == {f"train/{name}": value for name, value in timed.items()}
