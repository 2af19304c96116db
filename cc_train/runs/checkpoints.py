"""Checkpoints: folders of safetensors and JSON that appear whole or not at all.

RUN/checkpoints/000500/
  model.safetensors      the network as others load it; its settings in the file's metadata
  training.safetensors   what training needs besides: optimisers; the raw network, where the model
                         is its running average
  state.json             step, best measure so far, SHA-256 of both files
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cc_prep import strict_json
from cc_prep.errors import JobFailed, UserError
from cc_prep.storage import sha256

FOLDER = "checkpoints"
DAMAGED = "Restore it, or run its training again: that resumes from the checkpoint before"
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


class Criterion(NamedTuple):
    """Which of two validations is better.

    Attributes:
        figure: Its name.
        higher_is_better: Whether the larger figure is better; of equal ones the larger
            `tie_breaker`, another figure, is.
    """

    figure: str
    higher_is_better: bool
    tie_breaker: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back.

    Attributes:
        training: Tensors by name; the model's are there too, as `exported.…` where the raw network
            was stored as `network.…`, and else as `network.…`.
        state: The content of state.json.
        stored: The steps of all checkpoints of the run.
    """

    step: int
    training: dict[str, Tensor]
    state: dict[str, Any]
    stored: list[int] = field(default_factory=list)


def to_send(
    decided: tuple[Checkpoint | None, dict[str, Any]],
) -> tuple[Checkpoint | None, dict[str, Any]]:
    """A checkpoint to resume from, with its data, for the other ranks:
    `broadcast_tensors` sends its tensors, which would be pickled here."""
    checkpoint, more = decided
    return None if checkpoint is None else replace(checkpoint, training={}), more


def write(
    run: Path,
    step: int,
    model: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Writes a checkpoint under another name, renames it when it is whole, and returns its folder.

    Args:
        model, training: Tensors by name.
        metadata: The settings, stored in the model's file.
        state: More JSON for state.json.

    Raises:
        JobFailed: If it cannot be written.
    """
    path = run / FOLDER / f"{step:06d}"
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        words = {"settings": json.dumps(metadata, sort_keys=True)}
        save_file(_plain(model), temporary / MODEL, metadata=words)
        save_file(_plain(training), temporary / TRAINING)
        digests = {name: sha256(temporary / name) for name in (MODEL, TRAINING)}
        text = json.dumps({**state, "step": step, "sha256": digests}, indent=2, sort_keys=True)
        (temporary / STATE).write_text(text + "\n")
        for name in (MODEL, TRAINING, STATE):
            _sync(temporary / name)
    except (OSError, SafetensorError) as error:  # safetensors has a type of its own for any fault
        shutil.rmtree(temporary, ignore_errors=True)
        raise JobFailed(f"{path}: cannot write a checkpoint ({error})") from None
    former = path.with_name(f".{path.name}.old")
    shutil.rmtree(former, ignore_errors=True)
    if path.exists():  # a resumed run comes by here again; a kill loses neither of the two
        os.replace(path, former)
    os.replace(temporary, path)
    _sync(path.parent)
    shutil.rmtree(former, ignore_errors=True)
    return path


def _restore_former(run: Path) -> None:
    """Gives back its name to a checkpoint that a kill left aside before the new one was there."""
    for former in (run / FOLDER).glob(".[0-9]*.old"):
        path = former.with_name(former.name[1:].removesuffix(".old"))
        if path.exists():
            shutil.rmtree(former, ignore_errors=True)
        else:
            os.replace(former, path)


def steps(run: Path) -> list[int]:
    """The steps of all checkpoints of a run, ascending."""
    names = (path.name for path in (run / FOLDER).glob("[0-9]*") if path.is_dir())
    return sorted(int(name) for name in names if name.isdecimal())


def read_state(run: Path, step: int) -> dict[str, Any]:
    """The content of a checkpoint's state.json.

    Raises:
        UserError: If it is missing or damaged.
    """
    path = run / FOLDER / f"{step:06d}"
    try:
        state = strict_json.loads((path / STATE).read_text())
        if not isinstance(state, dict) or not isinstance(state["sha256"], dict):
            raise ValueError("no state")
        return state
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: no checkpoint ({error})", DAMAGED) from None


def best_step(run: Path) -> tuple[int, bool]:
    """The step of the checkpoint that was best in validation, and whether there was a validation.

    The last checkpoint stands in for the best one of a run that was stopped before its first
    validation.

    Raises:
        UserError: For a folder without checkpoints.
    """
    stored = steps(run)
    if not stored or not (run / "settings.json").exists():
        raise UserError(f"{run}: no checkpoint of a run", "Give the --out of a training")
    best = read_state(run, stored[-1])["best"]
    return (int(best["step"]), True) if best else (stored[-1], False)


def better(
    best: Mapping[str, float], metrics: Mapping[str, float], step: int, criterion: Criterion
) -> dict[str, float]:
    """The validation at `step` where it is at least as good as the best one so far, else that one.

    Args:
        best: `step` and metrics of the best one so far; empty where there is none.
        metrics: Of the validation at `step`, all finite; without the figure of `criterion` it is
            not the best one. Of equal ones the later is taken: it has learned more.
    """
    name, higher_is_better, tie_breaker = criterion
    if name not in metrics:
        return dict(best)
    new: dict[str, float] = {"step": step, name: metrics[name]}
    if tie_breaker is not None and tie_breaker in metrics:
        new[tie_breaker] = metrics[tie_breaker]
    if name not in best:
        return new

    def rank(one: Mapping[str, float]) -> tuple[float, float]:
        first = one[name] if higher_is_better else -one[name]
        return first, -math.inf if tie_breaker is None else one.get(tie_breaker, -math.inf)

    return new if rank(new) >= rank(best) else dict(best)


def read(run: Path, step: int) -> Checkpoint:
    """The checkpoint of a step.

    Raises:
        UserError: If a file is damaged, by its SHA-256.
    """
    path = run / FOLDER / f"{step:06d}"
    state = read_state(run, step)
    try:
        for name, digest in state["sha256"].items():
            if sha256(path / name) != digest:
                raise UserError(f"{path / name}: damaged", DAMAGED)
        training = load_file(path / TRAINING)
        raw = any(name.startswith("network.") for name in training)
        prefix = "exported" if raw else "network"
        model = load_file(path / MODEL)
        training |= {f"{prefix}.{name}": tensor for name, tensor in model.items()}
        return Checkpoint(step, training, state, steps(run))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{path}: no checkpoint ({error})", DAMAGED) from None


def read_last(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint that is whole, and what is wrong with each one after it.

    The checkpoint is None for a run without checkpoints.

    Raises:
        UserError: If all are damaged.
    """
    _restore_former(run)
    errors: list[UserError] = []
    for step in reversed(steps(run)):
        try:
            return read(run, step), [error.what for error in errors]
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserError(
            f"{errors[0].what}, and no checkpoint before it is whole", "Give another --out"
        )
    return None, []


def prune(run: Path, step: int, count: int, best: int | None) -> None:
    """Removes all but the checkpoint of this step, the `count` − 1 before it, and the best one.

    Later ones are damaged: the run went on from one before them.
    """
    stored = steps(run)
    last = [one for one in stored if one <= step][-count:]
    for one in stored:
        if one not in last and one != best:
            shutil.rmtree(run / FOLDER / f"{one:06d}")


def flatten(state: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """An optimiser's state dict as tensors by name: `<prefix>.<parameter number>.<key>`."""
    return {
        f"{prefix}.{number}.{what}": torch.as_tensor(value)
        for number, values in state["state"].items()
        for what, value in values.items()
    }


def load(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Loads those of a checkpoint's tensors into a module whose names begin with its prefix.

    Raises:
        UserError: Where the module has others, as one of another version of this package may.
    """
    own = {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise UserError(
            f"the checkpoint is of another network ({' '.join(str(error).split())[:200]})",
            "Resume with the version of this package that made it, or give another --out",
        ) from None


def unflatten(tensors: Mapping[str, Tensor], prefix: str) -> dict[int, dict[str, Tensor]]:
    """The `state` of an optimiser's state dict, from tensors that `flatten` named."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}."):
            number, what = name[len(prefix) + 1 :].split(".")
            state.setdefault(int(number), {})[what] = tensor
    return state


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
