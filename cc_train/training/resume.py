"""Resuming a run: which settings may have changed meanwhile, and who reads the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.provenance import differences
from cc_train.data.split import VALID_DIGEST
from cc_train.runs import checkpoints, origin, run_folder

# Settings that may differ when a run resumes. Those of NOTED change the steps that follow; a note
# names them. The others change a step by rounding at most, but for dropout: another device,
# `compile` and another size of the micro-batches draw other masks from the same seed. The division
# of a step's batch is free as well: only `global_batch_size` counts.
NOTED = ("steps", "epochs", "learning_rate")
FREE_OF_LOOP = (
    *NOTED, "batch_size", "grad_accum_steps", "compile", "device", "threads", "tf32",
    "loader_workers", "log_every", "validate_every", "checkpoint_every", "keep_checkpoints",
    "loggers",
)  # fmt: skip
FREE = (
    *(f"loop.{name}" for name in FREE_OF_LOOP), "cache_mb", "max_activation_mb", "files",
    f"samples.{VALID_DIGEST}",  # `_check_validation` compares it, with a clearer message
    "samples.valid_keys_sha256",  # of older runs; it depends on the order of the keys alone
    "validation_split.scenes",  # older runs lack it; if it changes a split, `samples` differ
)  # fmt: skip
GLOBAL_BATCH_SIZE = "global_batch_size"
# Settings that older runs lack, with the value that keeps the behaviour of such runs.
ADDED = {
    "mirror": 0.0,
    "network.compare_ends": False,
    "weights.squared": 0.0,
    "data.reverse": False,
}


def read_settings(path: Path) -> dict[str, Any]:
    """The content of a run's settings.json. Raises UserError for what is none."""
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
    before: Mapping[str, Any], now: Mapping[str, Any], run: Path, stream: Mapping[str, Any]
) -> None:
    """Raises UserError where settings differ that change a step.

    before, now: all settings, as JSON. stream: the state of the stream in the last checkpoint, from
    which the items of a step are known where settings from before `global_batch_size` do not say
    them.
    """
    _check_start(before, now, run)
    old, new = origin.without_start(before), origin.without_start(now)
    if "loop" in old and "loop" in new and old["loop"].get(GLOBAL_BATCH_SIZE) is None:
        loop, own = dict(old["loop"]), new["loop"]
        batch = loop.get("batch_size", own["batch_size"])
        accumulated = loop.get("grad_accum_steps", own["grad_accum_steps"])
        processes = own[GLOBAL_BATCH_SIZE] // (own["batch_size"] * own["grad_accum_steps"])
        loop[GLOBAL_BATCH_SIZE] = stream.get("batch", batch * processes) * accumulated
        old["loop"] = loop
    allowed = tuple(f"{name}:" for name in FREE)
    same = {line for name, value in ADDED.items() for line in differences(None, value, name)}
    changed = [d for d in differences(old, new) if not d.startswith(allowed) and d not in same]
    if changed:
        raise UserError(
            f"{run} was trained with other settings ({'; '.join(changed[:5])})",
            _remedy(old, new, changed),
        )
    _check_validation(old, new, run)


def _remedy(old: Mapping[str, Any], new: Mapping[str, Any], changed: Sequence[str]) -> str:
    """The remedy for a run with other settings. Runs from before `validation_split.scenes` held out
    at least one scene, so small data had other splits of the same samples.
    """
    is_older = "scenes" not in old.get("validation_split", {})
    only_parts = all(line.startswith("samples.") for line in changed)
    before, now = (settings.get("samples", {}) for settings in (old, new))
    totals = [parts.get("train", 0) + parts.get("valid", 0) for parts in (before, now)]
    if is_older and only_parts and totals[0] == totals[1]:
        return "Set validation_split.scenes=1, which the run was begun with, or give another --out"
    return "Use the same settings and shards, or another --out"


def _check_validation(old: Mapping[str, Any], new: Mapping[str, Any], run: Path) -> None:
    """Raises UserError for other pairs to validate on, unless a run is too old to say which."""
    before, now = (settings.get("samples", {}).get(VALID_DIGEST) for settings in (old, new))
    if before is not None and before != now:
        raise UserError(
            f"{run} was validated on other pairs, and its best checkpoint chosen by them",
            "Give the same --valid, or another --out",
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

    An equal path or an equal digest is enough, since the weights are not read again. Runs from
    before the start was recorded resume with any.
    """
    if origin.INIT not in before:
        return
    old, new = before[origin.INIT], now.get(origin.INIT)
    if old is None or new is None:
        differ = old != new
    else:
        # Folders of one name are many. Runs from before the place was noted have the name alone.
        place = "place" if "place" in old else "name"
        differ = all(old[key] != new[key] for key in (place, "sha256"))
    if differ:
        what = f"{run} started from {origin.start_in_words(old)}"
        raise UserError(
            f"{what}, and this training from {origin.start_in_words(new)}",
            "Give the same --init, or another --out",
        )
