"""Resuming a run: which settings may have changed meanwhile, and who reads the checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.provenance import differences
from cc_train.data.split import VALID_DIGEST
from cc_train.runs import checkpoints, origin, run_folder

# What may differ when a run resumes, besides settings with the role SPEED. Those change a step by
# rounding at most, but for dropout: another device, `compile` and another size of the micro-batches
# draw other masks from the same seed. `global_batch_size` counts, and not how a step is divided.
FREE = (
    "loop.steps", "loop.epochs", "loop.learning_rate",  # for the steps to come; a note names them
    "files", origin.INIT,  # `_check_start` compares the start
    f"{origin.INIT_PAIR}.name",  # it may have been moved
)  # fmt: skip


def read_settings(path: Path) -> dict[str, Any]:
    """The content of a run's settings.json.

    Raises:
        UserError: For what is none.
    """
    try:
        settings = storage.read_json(str(path))
    except ValueError as error:
        raise UserError(
            f"{path}: not JSON ({error})", "Restore it, or give another --out"
        ) from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: no settings of a run", "Give another --out")
    return settings


def check_same(
    before: Mapping[str, Any], now: Mapping[str, Any], run: Path, speed: Collection[str] = ()
) -> None:
    """Raises UserError where settings differ that change a step.

    Args:
        before: All settings that the run was trained with, as JSON.
        now: All settings of this training, as JSON.
        run: The run's folder.
        speed: The dotted keys of those with the role SPEED.
    """
    _check_start(before, now, run)
    changed = differences(before, now, free={*FREE, *speed})
    if [line.partition(":")[0] for line in changed] == [f"samples.{VALID_DIGEST}"]:
        raise UserError(
            f"{run} was validated on other pairs, and its best checkpoint chosen by them",
            "Give the same --valid, or another --out",
        )
    if changed:
        raise UserError(
            f"{run} was trained with other settings ({'; '.join(changed[:5])})",
            "Use the same settings and shards, or another --out",
        )


def check_begun(run: Path) -> None:
    """Raises UserError for checkpoints without the settings that they were made with."""
    if checkpoints.steps(run) and not (run / run_folder.SETTINGS).exists():
        raise UserError(
            f"{run}: checkpoints without {run_folder.SETTINGS}, which says what they are of",
            "Restore that file, or give another --out",
        )


def check_steps(done: int, steps: int | None, run: Path) -> None:
    """Raises UserError where a training is to end before the last of the `done` steps of its run.

    Nothing would be trained, and the settings would name fewer steps than the checkpoints have.
    """
    if steps is not None and steps < done:
        what = f"{run} was trained for {done} steps already, and is to end after {steps}"
        raise UserError(what, f"Give --steps {done} or more, or another --out")


def _check_start(before: Mapping[str, Any], now: Mapping[str, Any], run: Path) -> None:
    """Raises UserError where --init names other weights than those that the run started from.

    An equal path or an equal digest is enough, since the weights are not read again.
    """
    old, new = before.get(origin.INIT), now.get(origin.INIT)
    if old is None or new is None:
        differ = old != new
    else:
        differ = all(old[key] != new[key] for key in ("place", "sha256"))
    if differ:
        what = f"{run} started from {origin.start_in_words(old)}"
        raise UserError(
            f"{what}, and this training from {origin.start_in_words(new)}",
            "Give the same --init, or another --out",
        )
