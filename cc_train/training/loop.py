"""fit(): the one loop that all training goes through.

Everything random is drawn from (seed, step), so a run that is killed and resumed does what the
undisturbed one does.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader, Dataset

from cc_prep.errors import JobFailed, LoaderWorkerDied, UserError
from cc_train.data.stream import SKIPPED, Source
from cc_train.distributed import ALONE, Ranks
from cc_train.training import runs
from cc_train.training.ahead import ahead
from cc_train.training.experiment_loggers import open_loggers
from cc_train.training.metric_logger import MetricLogger
from cc_train.training.settings import Loop
from cc_train.training.trainer import Objective, Trainer

WORKER_DIED = (
    "a loader worker died (out of memory?); the same command goes on from the last checkpoint"
)


class Batches(Dataset[Any]):
    """The micro-batches of this rank by their number; a step has `grad_accum_steps` of them.

    A refusal takes the place of a batch: what is raised in a loader worker comes out of torch with
    the worker's traceback in place of its message. `_handed_over` raises it.
    """

    def __init__(self, source: Callable[[int], Any], count: int) -> None:
        self.source, self.count = source, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        try:
            return self.source(number)
        except (UserError, JobFailed) as error:
            return error


def fit(
    objective: Objective,
    source: Source,
    settings: Loop,
    config: Mapping[str, Any],
    run: Path,
    resume: str,
    console: Console,
    ranks: Ranks = ALONE,
    device: str = "cpu",
) -> dict[str, float]:
    """Trains up to `settings.steps` and returns the figures of the last validation, by name.

    source: gives each micro-batch of this rank by its number. config: all settings, written to
        the run folder and into the weights. resume: `auto` goes on from the last checkpoint,
        `never` refuses a folder that has a run. device: where the objective lies. Raises UserError;
        JobFailed when a loss is not finite, on SIGTERM and Ctrl-C; LoaderWorkerDied when a loader
        worker is killed.
    """
    trainer = Trainer(objective, settings, config, run, ranks, device)
    start = trainer.prepare(resume, source)
    logger = None
    if ranks.first:
        runs.write_keys(run, source.keys, anew=start == 0)
        if start:
            _say_that_it_goes_on(trainer, start, console)
        others = open_loggers(settings.loggers, run, config)
        logger = MetricLogger(run, start, settings.steps, console, others)
    with _stoppable() as stop_asked, _alive():
        try:
            steps = ahead(_steps(source, settings, start, device), device)
            steps = logger.watch(steps) if logger is not None else steps
            for step, items in enumerate(steps, start):
                skipped = [key for item in items for key in _skipped(item)]
                signals = {"stop": float(stop_asked()), "skipped": float(len(skipped))}
                trainer.step(items, step, signals)
                if trainer.signals["skipped"]:
                    source.mark_skipped(list(chain(*ranks.gather_objects(skipped))))
                # Several processes agree on it in their next step.
                stopped = stop_asked() if ranks.world == 1 else trainer.signals["stop"] > 0
                _after(trainer, source, logger, step + 1, stopped)
                if stopped and step + 1 < settings.steps:
                    raise JobFailed(
                        f"stopped at step {step + 1}; the same command goes on from there"
                    )
        finally:
            if logger is not None:
                logger.close()
    return trainer.figures


def _say_that_it_goes_on(trainer: Trainer, start: int, console: Console) -> None:
    before, steps = trainer.steps_before, trainer.settings.steps
    for what in trainer.damaged:
        console.print(f"passed over: {what}", highlight=False, soft_wrap=True)
    if start == steps:
        console.print(f"all {steps} steps are done", highlight=False)
        return
    console.print(f"going on at step {start}", highlight=False)
    if before not in (None, steps) and trainer.settings.schedule != "constant":
        text = f"{before} steps became {steps}: the learning rate follows"
        console.print(f"{text} the schedule of all {steps}", highlight=False)


def _after(
    trainer: Trainer,
    source: Source,
    logger: MetricLogger | None,
    done: int,
    stopped: bool,
) -> None:
    """What is due when `done` steps are over: log, validate, save."""
    settings, last = trainer.settings, done == trainer.settings.steps
    if done % settings.log_every == 0:
        losses = trainer.interval.take(trainer.ranks)
        a_step = settings.batch_size * settings.grad_accum_steps * trainer.ranks.world
        if logger is not None:
            logger.log(done, "train", losses, samples=a_step)
    if done % settings.validate_every == 0 or last:
        picture = trainer.validate(done)
        if logger is not None:
            logger.log(done, "validation", trainer.figures)
            if trainer.not_finite:
                logger.note(
                    f"validation {done}: {', '.join(trainer.not_finite)} is no finite number, and "
                    "is left out"
                )
            if picture is not None:
                logger.picture(done, picture)
    # The best one is kept too, so it has to be there whatever the two intervals are.
    best = trainer.best.get("step") == done
    if done % settings.checkpoint_every == 0 or best or last or stopped:
        trainer.save(done, source)


def _skipped(item: Any) -> list[str]:
    """Takes the keys of what could not be read out of a micro-batch: no network needs them."""
    keys: list[str] = item.pop(SKIPPED, []) if isinstance(item, dict) else []
    return keys


def _steps(source: Source, settings: Loop, start: int, device: str) -> Iterator[list[Any]]:
    """The micro-batches of every step from `start` on; pinned where they go to a GPU."""
    each = settings.grad_accum_steps
    loader: DataLoader[Any] = DataLoader(
        Batches(source, settings.steps * each),
        batch_size=None,
        sampler=range(start * each, settings.steps * each),
        num_workers=settings.loader_workers,
        pin_memory=device == "cuda",
        worker_init_fn=_alone,
    )
    batches: list[Any] = []
    for item in _handed_over(loader, settings.loader_workers):
        batches.append(item)
        if len(batches) == each:
            yield batches
            batches = []


def _alone(number: int) -> None:
    """A loader worker uses one processor: OpenCV would start a thread for each.

    SIGTERM often goes to a whole group of processes. It is the training's, which saves and ends its
    workers itself, so a worker ends at the second one.
    """
    import cv2

    cv2.setNumThreads(0)

    def spare(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, spare)


def _handed_over(loader: Iterable[Any], workers: int) -> Iterator[Any]:
    """A loader's items. Raises a refusal in place of one, and JobFailed if a worker dies while it
    hands one over.

    It does so through a socket, whose errors look like those of a store that a worker reads from;
    but what a worker itself raises says so.
    """
    try:
        for item in loader:
            if isinstance(item, (UserError, JobFailed)):
                raise item
            yield item
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if workers == 0 or "in DataLoader worker process" in str(error):
            raise
        raise LoaderWorkerDied(WORKER_DIED) from None


@contextmanager
def _alive() -> Iterator[None]:
    """Says in a line that a loader worker died: torch raises that wherever the process is at.

    That may be within a `__del__`, where Python prints a traceback and goes on: what it would print
    is left out, since the next batch is asked of the dead worker and says the same again.
    """
    unraisable = sys.unraisablehook

    def quiet(event: sys.UnraisableHookArgs) -> None:
        if not _worker_died(event.exc_value):
            unraisable(event)

    sys.unraisablehook = quiet
    try:
        yield
    except RuntimeError as error:
        if not _worker_died(error):
            raise
        raise LoaderWorkerDied(WORKER_DIED) from None
    finally:
        sys.unraisablehook = unraisable


def _worker_died(error: BaseException | None) -> bool:
    """Whether torch raised it for a dead worker; what a worker itself raises has no such words."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C end the step under way and save, instead of losing it."""
    stop_requested = False

    def request_stop(number: int, frame: object) -> None:
        nonlocal stop_requested
        stop_requested = True

    old_handlers = {
        number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: stop_requested
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
