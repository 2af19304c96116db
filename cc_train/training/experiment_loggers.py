"""Weights & Biases, MLflow and trackio beside our own logs: `loop.loggers=[wandb]`.

Each is an extra of the package. Where its metrics go is set by its own environment variables, such
as WANDB_PROJECT, MLFLOW_TRACKING_URI and TRACKIO_SPACE_ID; the project is PROJECT by default.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from cc_prep import extras, storage
from cc_prep.errors import UserError, first_line

Name = Literal["wandb", "mlflow", "trackio"]
PROJECT = "change-captioning"
IDS = "loggers.json"  # of a run: by logger the id with which a resumed run continues


class ExperimentLogger(Protocol):
    """What a logger is asked for. A new one is a class with these methods, and a line in OPEN."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of a step by name, such as `train/total` and `validation/CIDEr`."""
        ...

    def close(self) -> None:
        """Called once, when the training ends or is stopped."""
        ...


class _Wandb:
    """Logger for Weights & Biases, and for trackio, which has the same functions."""

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self.module, self.run = module, module.init(**options)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.module.log(dict(metrics), step=step)

    def close(self) -> None:
        self.module.finish()


class _MLflow:
    def __init__(self, module: Any, options: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.module, self.run = module, module.start_run(**options)
        if options.get("run_id") is None:
            # MLflow takes plain values of at most 500 characters.
            module.log_params({name: str(value)[:500] for name, value in flat(config).items()})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.module.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        self.module.end_run()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names: {"loop": {"steps": 9}} becomes {"loop.steps": 9}."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        inner = isinstance(value, Mapping)
        values |= flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return values


def _wandb(run: Path, config: Mapping[str, Any], id: str | None) -> tuple[ExperimentLogger, str]:
    module = importlib.import_module("wandb")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    options = {"project": project, "name": _title(run), "dir": str(run), "config": dict(config)}
    logger = _Wandb(module, {**options, "id": id, "resume": "allow"})
    return logger, str(logger.run.id)


def _trackio(run: Path, config: Mapping[str, Any], id: str | None) -> tuple[ExperimentLogger, str]:
    module = importlib.import_module("trackio")
    # It knows a run by its name alone, and continues any run that has it: the same title may be
    # that of a run in another folder, or of one that was there before.
    name = id or f"{_title(run)}-{secrets.token_hex(3)}"
    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    options = {"project": project, "name": name, "config": dict(config), "resume": "allow"}
    return _Wandb(module, options), name


def _mlflow(run: Path, config: Mapping[str, Any], id: str | None) -> tuple[ExperimentLogger, str]:
    module = importlib.import_module("mlflow")
    if "MLFLOW_EXPERIMENT_NAME" not in os.environ and "MLFLOW_EXPERIMENT_ID" not in os.environ:
        module.set_experiment(PROJECT)
    logger = _MLflow(module, {"run_id": id, "run_name": _title(run)}, config)
    return logger, str(logger.run.info.run_id)


OPEN: dict[str, Callable[[Path, Mapping[str, Any], str | None], tuple[ExperimentLogger, str]]] = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


def open_loggers(
    names: tuple[Name, ...], run: Path, config: Mapping[str, Any]
) -> list[ExperimentLogger]:
    """The loggers of these names; a run that resumes continues its logs in them as well.

    Args:
        config: All settings, which they show.

    Raises:
        UserError: Where one is not installed, or refuses the run.
    """
    path = run / IDS
    ids: dict[str, str] = storage.read_json(str(path)) if path.exists() else {}
    loggers = []
    for name in names:
        try:
            logger, ids[name] = OPEN[name](run, config, ids.get(name))
        except ImportError as error:
            raise UserError(
                f"loop.loggers: {name} is not installed ({error})",
                extras.install(name),
            ) from None
        except Exception as error:  # each has types of its own
            reason = first_line(error).rstrip(".")
            raise UserError(
                f"loop.loggers: {name}: {reason}", "Log in, or leave it out of loop.loggers"
            ) from None
        loggers.append(logger)
    if names:
        storage.write_json(str(path), ids)
    return loggers


def _title(run: Path) -> str:
    """The end of the run's path: names alone, such as `stage2`, are the same in many folders."""
    return "/".join(run.absolute().parts[-2:]).strip("/")
