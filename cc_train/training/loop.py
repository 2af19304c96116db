"""fit(): the one loop that all training goes through.

Everything random is drawn from (seed, step), so a run that is killed and resumed does what the
undisturbed one does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from cc_prep.errors import JobFailed
from cc_train.data.stream import SKIPPED, Source
from cc_train.distributed import ALONE, Ranks
from cc_train.runs import run_folder
from cc_train.training import loader
from cc_train.training.experiment_loggers import IDS, open_loggers
from cc_train.training.metric_logger import MetricLogger
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop
from cc_train.training.trainer import Trainer


def fit(
    objective: Objective,
    source: Source,
    settings: Loop,
    *,
    config: Mapping[str, Any],
    speed: Collection[str] = (),
    files: Mapping[str, bytes] | None = None,
    run: Path,
    resume: str,
    console: Console,
    ranks: Ranks = ALONE,
    device: str = "cpu",
) -> dict[str, float]:
    """Trains up to `settings.steps` and returns the metrics of the last validation, by name.

    Raises UserError; JobFailed when a loss is not finite, on SIGTERM and Ctrl-C; LoaderWorkerDied
    when a loader worker is killed.

    Args:
        source: Gives each micro-batch of this rank by its number.
        config: All settings, written to the run folder and into the weights.
        speed: The dotted keys in it with the role SPEED, which may differ when a run resumes.
        files: What the network needs besides, by name; also written to the run folder.
        resume: `auto` resumes from the last checkpoint, `never` refuses a folder that has a run.
        device: Of the objective.
    """
    trainer = Trainer(objective, settings, config, run, ranks, device, speed)
    with trainer.held:
        start = trainer.prepare(resume, source)
        if ranks.is_main_process:
            run_folder.write_files(run, files or {})
            if start == 0:  # what a start that broke off left is not this training's
                (run / IDS).unlink(missing_ok=True)
        return _fit(trainer, source, start, console)


def _fit(trainer: Trainer, source: Source, start: int, console: Console) -> dict[str, float]:
    """The steps from `start` on, as `fit` says."""
    settings, run, ranks = trainer.settings, trainer.run, trainer.ranks
    logger = None
    if ranks.is_main_process:
        run_folder.write_keys(run, source.keys, anew=start == 0)
        if start:
            _note_resuming(trainer, start, console)
        others = open_loggers(settings.loggers, run, trainer.config)
        logger = MetricLogger(run, start, settings.steps, console, others)
    with _stoppable() as stop_asked, loader.dead_workers_reported():
        try:
            batches = loader.steps(source, settings, start, trainer.device)
            steps = loader.ahead(batches, trainer.device)
            steps = logger.watch(steps) if logger is not None else steps
            for step, items in enumerate(steps, start):
                skipped = [key for item in items for key in _skipped(item)]
                signals = {"stop": float(stop_asked()), "skipped": float(len(skipped))}
                trainer.step(items, step, signals)
                if trainer.signals["skipped"]:
                    source.mark_skipped(list(chain(*ranks.gather_objects(skipped))))
                # Several processes agree on it in their next step.
                stopped = stop_asked() if ranks.world == 1 else trainer.signals["stop"] > 0
                _log_validate_save(trainer, source, logger, step + 1, stopped)
                if stopped and step + 1 < settings.steps:
                    raise JobFailed(
                        f"stopped at step {step + 1}; the same command resumes from there"
                    )
        finally:
            if logger is not None:
                logger.close()
    return trainer.metrics


def _note_resuming(trainer: Trainer, start: int, console: Console) -> None:
    before, steps = trainer.before.get("steps"), trainer.settings.steps
    rates = trainer.before.get("learning_rate"), trainer.settings.learning_rate
    for what in trainer.damaged:
        console.print(f"passed over: {what}")
    if start == steps:
        console.print(f"all {steps} steps are done")
        return
    console.print(f"resuming at step {start}")
    if rates[0] not in (None, rates[1]):
        console.print(f"the learning rate was {rates[0]:g} and is {rates[1]:g} from here on")
    if before not in (None, steps) and trainer.settings.follows_steps:
        text = f"{before} steps became {steps}: the learning rate follows"
        console.print(f"{text} the schedule of all {steps}")


def _log_validate_save(
    trainer: Trainer,
    source: Source,
    logger: MetricLogger | None,
    done: int,
    stopped: bool,
) -> None:
    """What is due when `done` steps are over: log, validate, save."""
    settings, last = trainer.settings, done == trainer.settings.steps
    due = done % settings.log_every == 0
    if due or last:
        # The last steps are logged in any case. If the run is prolonged, its next log is over the
        # whole interval all the same, as that of a run which did not end here.
        means = trainer.interval.take if due else trainer.interval.means
        losses = means(trainer.ranks)
        rate = settings.learning_rate * settings.lr_multiplier(done - 1)
        a_step = settings.batch_size * settings.grad_accum_steps * trainer.ranks.world
        if logger is not None:
            logger.log(done, "train", {**losses, "learning_rate": rate}, samples=a_step)
    elif logger is not None:
        logger.first_step(done)
    if done % settings.validate_every == 0 or last:
        picture = trainer.validate(done)
        if logger is not None:
            logger.log(done, "validation", trainer.metrics)
            if trainer.not_finite:
                logger.console.print(
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
