"""Logs of a training: log.jsonl, TensorBoard, sample images, the console, external loggers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
from rich.console import Console

from cc_prep import storage
from cc_prep.words import duration
from cc_train.training.experiment_loggers import ExperimentLogger

LOG = "log.jsonl"
PICTURES = "pictures"
TENSORBOARD = "tensorboard"
# Of the training on the terminal: figures whose names begin so, and of a validation so many. All
# are in the logs.
SHOWN = ("loss", "grad_norm", "learning_rate")
SHOWN_OF_VALIDATION = 6

T = TypeVar("T")


class MetricLogger:
    """Writes the logs of a run that starts, or resumes, at step `start`.

    Lines of later steps, which a killed run left behind, are dropped.

    Args:
        total: The last step.
        console: Prints the line of each log.
        others: Further loggers, which get the same metrics.
    """

    def __init__(
        self,
        run: Path,
        start: int,
        total: int,
        console: Console,
        others: Sequence[ExperimentLogger] = (),
    ) -> None:
        self.run, self.total, self.console, self.others = run, total, console, list(others)
        self.file = run / LOG
        if self.file.exists():
            lines = [line for line in self.file.read_text().splitlines() if _before(line, start)]
            storage.write_bytes(str(self.file), "".join(f"{line}\n" for line in lines).encode())
        # Imported here because it brings torch, which those who only read logs do without.
        from torch.utils.tensorboard import SummaryWriter

        # Later steps are purged, as in the log; the step that the run resumes from is kept.
        self.board = SummaryWriter(str(run / TENSORBOARD), purge_step=start + 1)
        self.started, self.first, self.waited = time.monotonic(), start, 0.0
        self.hook, threading.excepthook = threading.excepthook, self._in_thread

    def watch(self, steps: Iterator[T]) -> Iterator[T]:
        """Passes `steps` on and measures how long the run waits for each."""
        while True:
            began = time.monotonic()
            step = next(steps, None)
            self.waited += time.monotonic() - began
            if step is None:
                return
            yield step

    def close(self) -> None:
        """Writes what TensorBoard still holds back, and ends the other loggers."""
        try:
            self._tell(lambda logger: logger.close())
            self.board.close()
        finally:
            threading.excepthook = self.hook

    def _in_thread(self, fault: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own: a full disk there is a line, no traceback."""
        if isinstance(fault.exc_value, OSError):
            self.console.print(f"TensorBoard's log: {fault.exc_value}")
        else:
            self.hook(fault)

    def log(self, step: int, part: str, metrics: Mapping[str, float], samples: int = 0) -> None:
        """Logs metrics by name: of training the means over the steps since the last log.

        Args:
            part: `train` or `validation`.
            samples: How many items a step trains on, for the speed.
        """
        values = {name: _rounded(float(value)) for name, value in metrics.items()}
        with self.file.open("a") as file:
            file.write(json.dumps({"step": step, "part": part, **values}) + "\n")
        named = {
            f"{part}/{name}": value for name, value in (values | self._time(part, step)).items()
        }
        for name, value in named.items():
            self.board.add_scalar(name, value, step)
        self._tell(lambda logger: logger.log(step, named))
        shown = _shown(part, values)
        words = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        if more := len(values) - len(shown):
            words += f", {more} more in {LOG}"
        self.console.print(f"{part} {step}/{self.total}: {words}{self._pace(step, samples)}")

    def first_step(self, step: int) -> None:
        """Says after the first step of this process how long the training may take."""
        if step != self.first + 1:
            return
        passed, left = time.monotonic() - self.started, self.total - step
        self.console.print(
            f"the first step took {passed:.2g} s: about {duration(passed * left)} for the other "
            f"{left:,}, less if later steps are faster"
        )

    def _time(self, part: str, step: int) -> dict[str, float]:
        """Seconds of a step. Not for our log, which is the same for the same training."""
        if part != "train" or step <= self.first:
            return {}
        return {"seconds_per_step": (time.monotonic() - self.started) / (step - self.first)}

    def _tell(self, what: Callable[[ExperimentLogger], None]) -> None:
        """Does something with the other loggers. One that fails is named and left out from then on:
        the training and our own logs do not depend on a service.
        """
        for logger in list(self.others):
            try:
                what(logger)
            except Exception as error:  # each has types of its own
                self.others.remove(logger)
                kind = type(logger).__name__.strip("_")
                self.console.print(f"{kind} gets no more figures: {type(error).__name__}: {error}")

    def _pace(self, step: int, samples: int) -> str:
        """How fast the run is, and how long it still takes."""
        if step <= self.first:
            return ""
        passed = time.monotonic() - self.started
        seconds = passed / (step - self.first)
        speed = f"{samples / seconds:,.0f} samples/s, " if samples else ""
        return (
            f"  ({speed}{seconds:.2f} s a step, {self.waited / passed:.0%} waiting for samples, "
            f"{duration(seconds * (self.total - step))} left)"
        )

    def picture(self, step: int, image: np.ndarray) -> None:
        """Writes a picture of a validation, uint8 [H, W, 3] RGB, as PICTURES/<step>.png."""
        folder = self.run / PICTURES
        folder.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / f"{step:06d}.png"), image[..., ::-1])
        self.board.add_image("validation", image, step, dataformats="HWC")


def _rounded(value: float) -> float:
    """A figure with six digits after the point, or six that count: learning rates are small."""
    return round(value, 6) if abs(value) >= 0.1 else float(f"{value:.6g}")


def _shown(part: str, values: Mapping[str, float]) -> dict[str, float]:
    """The figures for the terminal."""
    if part == "train":
        return {name: value for name, value in values.items() if name.startswith(SHOWN)}
    return dict(list(values.items())[:SHOWN_OF_VALIDATION])


def _before(line: str, start: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= start)
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill
        return False
