"""A run's folder, or a packed one, as others read it: settings, tensors, files beside them.

RUN/settings.json                 all settings, and what identifies the training
RUN/training_keys.txt             keys of the samples that it was trained on, one a line
RUN/<file> …                      what the network needs besides, named in settings["files"]
RUN/checkpoints/000500/           see `cc_train.training.checkpoints`
PACKED/model.safetensors          in place of the checkpoints; settings in the file's metadata
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.settings import S
from cc_prep.storage import sha256
from cc_prep.weights.folders import first_line
from cc_train.training import checkpoints

SETTINGS = "settings.json"
KEYS = "training_keys.txt"
IMPORTED = "imported"  # the key of the file of others that the weights of a run were taken from
INIT = "init"  # the key of what a training started from, see `started_from`
ASSETS = Path(__file__).parents[1] / "assets"  # packed captioners that come with the package
SHIPPED = "captioner-mini"  # the one that stands where a captioner is wanted and none is named

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Run:
    """The best network of a training, read from its folder or from a packed one.

    system: its name in the table of systems. settings: the content of settings.json. tensors: the
    network's, by name, float32 where they are floating point. step: the step of the checkpoint; 0
    for a packed network.
    """

    folder: Path
    system: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    step: int


def shipped() -> list[str]:
    """Names of the captioners that come with the package, which stand for a run's folder."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{checkpoints.MODEL}"))


def is_shipped(place: str | Path) -> bool:
    """Whether this is the name of such a captioner, and no folder here."""
    return str(place) in shipped() and not Path(place).exists()


def locate(place: str | Path) -> Path:
    """The folder of a run, or of a captioner that comes with the package, by its name."""
    return ASSETS / str(place) if is_shipped(place) else Path(place)


def started_from(init: Path | None, name: str | None) -> dict[str, str] | None:
    """What a run's settings say of the weights that --init names; None where there are none.

    init: a run, a packed captioner or a file of weights. name: what the user calls it, which stands
    where it is no place on this machine. `place` is a digest of the whole path, which tells two
    folders of one name apart and is nobody else's concern. Raises UserError for a folder without a
    network.
    """
    if init is None:
        return None
    shown = _without_folders(init) if name is None or Path(name) == init else name
    place = name if name is not None and Path(name) != init else str(init.resolve())
    digest = hashlib.sha256(place.encode()).hexdigest()[:16]
    return {"name": shown, "place": digest, "sha256": sha256(weights_file(init))}


def _without_folders(place: Path) -> str:
    """What cards call a place on this machine: `run`, `ViT-B-32.pt`, or
    `run/checkpoints/001000/model.safetensors`.
    """
    parts = place.resolve().parts
    if place.name != checkpoints.MODEL:
        return parts[-1]
    return "/".join(parts[-4:] if parts[-3] == checkpoints.FOLDER else parts[-2:])


def weights_file(place: Path) -> Path:
    """The file of a run's best network, or of a packed one; a file of weights as it is.

    Raises UserError for a folder without a network.
    """
    folder = locate(place)
    return best_model(folder)[0] if folder.is_dir() else folder


def start_in_words(start: Mapping[str, str] | None) -> str:
    """What a training started from, as messages and cards have it."""
    return "new weights" if start is None else f"{start['name']} (SHA-256 {start['sha256'][:12]})"


def with_start_of(before: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that say of a run's start what its earlier ones did, which may be nothing."""
    start = {INIT: before[INIT]} if INIT in before else {}
    return {**without_start(settings), **start}


def without_start(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that do not say what the training started from."""
    return {name: value for name, value in settings.items() if name != INIT}


def read(folder: Path, system: str | None = None) -> Run:
    """The best network of a run, or a packed one.

    system: the name that the run's system must have; None for any. Raises UserError for a folder
    that is no run, is damaged, is of another system or names files outside itself.
    """
    model, step = best_model(folder)
    try:
        with safe_open(model, "pt") as file:
            settings = json.loads((file.metadata() or {}).get("settings", "{}"))
        if not isinstance(settings, dict):
            raise ValueError("its settings are no object")
        stored = load_file(model)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{model}: damaged ({error})", "Restore it, or train anew") from None
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in stored.items()}
    name = str(settings.get("system"))
    if system is not None and name != system:
        raise UserError(f"{folder}: a run of {name}, not of {system}", f"Give one of {system}")
    files = settings.get("files", [])
    if not isinstance(files, list) or any(Path(str(file)).name != file for file in files):
        raise UserError(f"{model}: its settings name files elsewhere", "Do not trust this run")
    return Run(folder, name, settings, tensors, step)


def best_model(folder: Path) -> tuple[Path, int]:
    """The file of a run's best network, and its step; 0 for a packed one.

    Raises UserError if there is none, or it is damaged.
    """
    packed = folder / checkpoints.MODEL
    if packed.is_file():
        return packed, 0
    if not checkpoints.steps(folder):
        raise UserError(f"{folder}: no checkpoint of a run", _likely(folder))
    step = checkpoints.best_step(folder)
    model = folder / checkpoints.FOLDER / f"{step:06d}" / checkpoints.MODEL
    state = checkpoints.read_state(folder, step)
    if sha256(model) != state["sha256"][checkpoints.MODEL]:
        raise UserError(f"{model}: damaged", "Restore it, or train on from the one before")
    return model, step


def _likely(folder: Path) -> str:
    """What may be meant in place of a folder that is no run: a name of ours, or a run in it."""
    near = [] if folder.exists() else difflib.get_close_matches(str(folder), shipped(), 1)
    parts = (checkpoints.FOLDER, checkpoints.MODEL)
    inside = [str(place.parent) for part in parts for place in sorted(folder.glob(f"*/{part}"))]
    likely = [*near, *inside]
    return f'Did you mean "{likely[0]}"?' if likely else "Give the --out of a training"


def settings_of(run: Run, model: type[S], without: Collection[str] = ()) -> S:
    """The settings of a run's system.

    without: keys that runs of an older version lack, and that have their default here. Raises
    KeyError for another key that is not there, and ValueError for values that are no settings.
    """
    names = [name for name in model.model_fields if name not in without]
    return model.model_validate({name: run.settings[name] for name in names})


def network_of(run: Run, build: Callable[[Run], Network], device: str) -> Network:
    """The trained network of a run, in evaluation.

    build: makes the network of a run's settings and files, with nothing learned. Raises UserError
    where that fails, or its tensors are not the run's.
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
    raise UserError(f"{run.folder}: no {what} ({reason})", "Train it anew")


def require_same(run: Run, name: str, value: Any, own_name: str = "") -> None:
    """Refuses a run with another value of a setting that the shapes of its tensors do not show.

    name: of the setting, such as `encoder.heads`. value: that of the new network, where the setting
    is called own_name if not the same. Raises UserError.
    """
    section, key = name.split(".")
    theirs = run.settings[section][key]
    if theirs != value:
        raise UserError(
            f"{run.folder} has {name}={theirs}, not {value}", f"Set {own_name or name}={theirs}"
        )


def take_over(network: nn.Module, tensors: Mapping[str, Tensor], init: Path) -> None:
    """Loads what the run at `init` learned into a new network. Raises UserError for other sizes."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise UserError(f"{init} has other sizes: {reason}", "Use its settings") from None


def with_rows(
    tensors: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    names: Sequence[str],
    rows: Sequence[int | None],
) -> dict[str, Tensor]:
    """The tensors of a run with the rows of its words in the order of another vocabulary.

    names: the tensors with a row for each word. rows: of each word of the new vocabulary the run's
    row; None where the run does not know it, and the row is that of `own`, the new network's. A
    tensor whose rows have another shape there stays as it is.
    """
    moved = dict(tensors)
    for name in names:
        if own[name].shape[1:] == tensors[name].shape[1:]:
            moved[name] = torch.stack(
                [own[name][i] if row is None else tensors[name][row] for i, row in enumerate(rows)]
            )
    return moved


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a run. Those of a run that goes on are there already, and stay.

    Without settings.json and checkpoints a run never began: what lies in the folder is replaced.
    """
    begun = (folder / SETTINGS).exists() or bool(checkpoints.steps(folder))
    for name, content in files.items():
        if not begun or not (folder / name).exists():
            storage.write_bytes(str(folder / name), content)


def write_keys(folder: Path, keys: Sequence[str], anew: bool) -> None:
    """Writes the keys of the samples that a run is trained on; `anew` also where they are there."""
    if keys and (anew or not (folder / KEYS).exists()):
        storage.write_bytes(str(folder / KEYS), ("\n".join(keys) + "\n").encode())


def trained_on(folder: Path, keys: Collection[str]) -> int:
    """How many of these samples the run in a folder was trained on; 0 where it does not say.

    An exported folder, and a run from before its keys were kept, do not say it.
    """
    try:
        content = storage.read_bytes(str(folder / KEYS))
    except FileNotFoundError:
        return 0
    return len(set(keys) & set(content.decode(errors="replace").split()))
