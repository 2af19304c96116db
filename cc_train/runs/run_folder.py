"""The files of a run's folder, or of a packed run, and the runs that names refer to.

RUN/settings.json                 all settings, and what identifies the training
RUN/training_keys.txt             keys of the samples that it was trained on, one a line
RUN/<file> …                      what the network needs besides, named in settings["files"]
RUN/checkpoints/000500/           see `cc_train.runs.checkpoints`
PACKED/model.safetensors          in place of the checkpoints; settings in the file's metadata
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.storage import outputs, sha256
from cc_train.runs import checkpoints

SETTINGS = "settings.json"
KEYS = "training_keys.txt"
EVALUATION = "evaluation"  # the folder of its scores
EXAMPLES = "examples"  # pairs that its page offers
# What a packed captioner brings for people: the pairs, and the authors of what it learned from.
FOR_PEOPLE = (EXAMPLES, "licences.csv")
ASSETS = Path(__file__).parents[1] / "assets"  # packed captioners that come with the package
SHIPPED = "captioner-mini"  # used if a command needs a captioner and none is named
# Those of the package that know rendered scenes alone.
OF_RENDERED_SCENES = (SHIPPED, "captioner-multi", "chain-mini", "procap-mini")


def shipped() -> list[str]:
    """Names of the captioners in the package; they can be given instead of a run's folder."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{checkpoints.MODEL}"))


def is_shipped(path: str | Path) -> bool:
    """Whether this is the name of such a captioner, and no folder here."""
    return str(path) in shipped() and not Path(path).exists()


def locate(path: str | Path) -> Path:
    """The folder of a run, or of a captioner that comes with the package, by its name."""
    return ASSETS / str(path) if is_shipped(path) else Path(path)


def default_evaluation(run: str) -> str:
    """The folder for an evaluation of a run: RUN/evaluation, or NAME.evaluation in the current
    folder for a captioner that comes with the package or from the hub.
    """
    if is_shipped(run) or not Path(run).is_dir():
        return f"{Path(run).name}.{EVALUATION}"
    return f"{run}/{EVALUATION}"


def weights_file(path: Path) -> Path:
    """The file of a run's best network, or of a packed one; a file of weights as it is.

    Raises:
        UserError: For a folder without a network.
    """
    folder = locate(path)
    return best_model(folder)[0] if folder.is_dir() else folder


def best_model(folder: Path) -> tuple[Path, int]:
    """The file of a run's best network, and its step; 0 for a packed one.

    Before the first validation it is the last network.

    Raises:
        UserError: If there is none, or it is damaged.
    """
    packed = folder / checkpoints.MODEL
    if packed.is_file():
        return packed, 0
    if not checkpoints.steps(folder):
        raise UserError(f"{folder}: no checkpoint of a run", _likely(folder))
    step, _ = checkpoints.best_step(folder)
    model = folder / checkpoints.FOLDER / f"{step:06d}" / checkpoints.MODEL
    state = checkpoints.read_state(folder, step)
    if sha256(model) != state["sha256"][checkpoints.MODEL]:
        raise UserError(f"{model}: damaged", checkpoints.DAMAGED)
    return model, step


def is_validated(folder: Path) -> bool:
    """Whether the best network of a run is known, or is the only one: a packed one."""
    return (folder / checkpoints.MODEL).is_file() or checkpoints.best_step(folder)[1]


def _likely(folder: Path) -> str:
    """What may be meant in place of a folder that is no run: a name of ours, or a run in it."""
    near = [] if folder.exists() else difflib.get_close_matches(str(folder), shipped(), 1)
    parts = (checkpoints.FOLDER, checkpoints.MODEL)
    inside = [str(path.parent) for part in parts for path in sorted(folder.glob(f"*/{part}"))]
    likely = [*near, *inside]
    return f'Did you mean "{likely[0]}"?' if likely else "Give the --out of a training"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a run. A run that resumes has them already; they stay as they are.

    Without checkpoints no step is kept: the files are replaced, as settings.json is.
    """
    begun = bool(checkpoints.steps(folder))
    for name, content in files.items():
        if not begun or not (folder / name).exists():
            storage.write_bytes(str(folder / name), content)


def begun_file(folder: Path, name: str) -> Path | None:
    """A file of a run in a folder; None where the run took no step, or has no such file."""
    path = folder / name
    return path if path.exists() and checkpoints.steps(folder) else None


def check_new(folder: Path) -> None:
    """Raises UserError for the folder of a run, also of one that broke off before a checkpoint, and
    where there can be no folder.
    """
    outputs.check_folder(str(folder))
    if (folder / SETTINGS).exists() or checkpoints.steps(folder):
        raise UserError(f"{folder}: already holds a run", "Give another --out")


def write_imported(
    folder: Path,
    files: Mapping[str, bytes],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Writes a run of step 0 from a checkpoint of others, whole or not at all. Raises UserError."""
    check_new(folder)
    with storage.write_folder(folder) as new:
        for name, content in files.items():
            storage.write_bytes(str(new / name), content)
        storage.write_json(str(new / SETTINGS), settings)
        best = {"metrics": {}, "best": {"step": 0}}
        checkpoints.write(new, 0, tensors, settings, {}, best)


def write_keys(folder: Path, keys: Sequence[str], anew: bool) -> None:
    """Writes the keys of the training samples of a run; `anew` replaces a file that exists."""
    if keys and (anew or not (folder / KEYS).exists()):
        storage.write_bytes(str(folder / KEYS), ("\n".join(keys) + "\n").encode())


def scored_instead(folder: Path, step: int, scores: Mapping[str, Any]) -> str | None:
    """What scores are of, in words, where it is not the best checkpoint of a run.

    Args:
        step: Of that checkpoint.
        scores: The content of scores.json.
    """
    scored = scores.get("step")  # those of predictions in files have none
    if scored != step:
        return "no known step" if scored is None else f"step {scored:,}"
    if scores.get("weights") != sha256(best_model(folder)[0]):
        return f"other weights of step {step:,}"
    return None


def trained_on(folder: Path, keys: Collection[str]) -> int:
    """How many of these samples the run in a folder was trained on; 0 where it does not say.

    An exported folder does not say it.
    """
    try:
        content = storage.read_bytes(str(folder / KEYS))
    except FileNotFoundError:
        return 0
    return len(set(keys) & set(content.decode(errors="replace").split()))
