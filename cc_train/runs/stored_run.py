"""A run read back from its folder, or from a packed one: its settings and its trained network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cc_prep import storage, strict_json
from cc_prep.errors import UserError, first_line
from cc_prep.settings import S
from cc_prep.unspaced import Words
from cc_train import systems, text
from cc_train.runs import run_folder

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Run:
    """The best network of a training, read from its folder or from a packed one.

    Attributes:
        system: Its name in the table of systems.
        settings: The content of settings.json.
        tensors: The network's, by name, float32 where they are floating point.
        step: The step of the checkpoint; 0 for a packed network.
        sha256: Of the file that they were read from.
    """

    folder: Path
    system: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    step: int
    sha256: str = ""

    @property
    def words(self) -> Words:
        """How its captions are split for scores."""
        return text.words_of_scores(self.settings.get(text.WORDS))


def read(folder: Path, system: str | None = None) -> Run:
    """The best network of a run, or a packed one.

    Args:
        system: The name that the run's system must have; None for any.

    Raises:
        UserError: For a folder that is no run, is damaged, is of another system or names files
            outside itself.
    """
    model, step = run_folder.best_model(folder)
    try:
        with safe_open(model, "pt") as file:
            settings = _settings(file)
        stored, sha256 = load_file(model), storage.sha256(model)
    except (SafetensorError, ValueError) as error:
        raise _damaged(model, error) from None
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in stored.items()}
    name = str(settings.get("system"))
    if system is not None and name != system:
        remedy = systems.start_instead(name, system) or f"Give one of {system}"
        raise UserError(f"{folder}: a run of {name}, not of {system}", remedy)
    files = settings.get("files", [])
    if not isinstance(files, list) or any(Path(str(file)).name != file for file in files):
        raise UserError(f"{model}: its settings name files elsewhere", "Do not trust this run")
    return Run(folder, name, settings, tensors, step, sha256)


def system_of(folder: Path) -> str:
    """The system of a run's folder, or of a packed one, without reading its tensors.

    Raises:
        UserError: For a folder that is no run, or is damaged.
    """
    model, _ = run_folder.best_model(folder)
    try:
        with safe_open(model, "pt") as file:
            return str(_settings(file).get("system"))
    except (SafetensorError, ValueError) as error:
        raise _damaged(model, error) from None


def _settings(file: Any) -> dict[str, Any]:
    """The settings in the metadata of an opened file. Raises ValueError."""
    settings = strict_json.loads((file.metadata() or {}).get("settings", "{}"))
    if not isinstance(settings, dict):
        raise ValueError("its settings are no object")
    return settings


def _damaged(model: Path, error: Exception) -> UserError:
    return UserError(f"{model}: damaged ({error})", "Restore it, or train again")


def settings_of(run: Run, model: type[S]) -> S:
    """The settings of a run's system.

    Raises:
        KeyError: A key is not there.
        ValueError: Its values are no settings.
    """
    return model.model_validate({name: run.settings[name] for name in model.model_fields})


def network_of(run: Run, build: Callable[[Run], Network], device: str) -> Network:
    """The trained network of a run, in evaluation.

    Args:
        build: Makes the network of a run's settings and files, with nothing learned.

    Raises:
        UserError: Where that fails, or its tensors are not the run's.
    """
    try:
        network = build(run)
        network.load_state_dict(run.tensors)
    except KeyError as error:
        reason = f"no {error.args[0]} in it"
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        reason = first_line(error)
    else:
        return network.to(device).eval()
    what = "encoder" if run.system == "stage1" else "captioner"
    raise UserError(f"{run.folder}: no {what} ({reason})", "Train it again")
