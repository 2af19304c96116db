"""Loads trained captioners: it finds the system of a run, or of an exported one, by its settings.

A system's package does not import this module, which reaches it through the table of systems.
"""

from __future__ import annotations

from pathlib import Path

from cc_prep.errors import UserError
from cc_prep.terminal import echo
from cc_train import systems
from cc_train.calibration import Calibration
from cc_train.captioner import CaptionModel, EncoderDecoder
from cc_train.runs import run_folder, stored_run
from cc_train.runs.stored_run import Run
from cc_train.sharing import hub


def load(path: str | Path, device: str = "cpu", revision: str | None = None) -> CaptionModel:
    """The captioner of a run's folder (its best network) or of an exported one, in evaluation.

    Args:
        path: Also the name of a captioner that comes with the package, or an id on the hub, of
            which `revision` names a branch, tag or commit.

    Raises:
        UserError: For a folder that is no run, is damaged, or is no captioner's, and for a revision
            of what is no id on the hub.
    """
    return of_run(stored_run.read(hub.locate(str(path), revision)), path, device)


def of_run(run: Run, path: object, device: str = "cpu") -> CaptionModel:
    """The captioner of a run, as `load` gives it.

    Args:
        path: What messages call it.

    Raises:
        UserError: For the run of a system that is no captioner, and for a damaged one.
    """
    if not run_folder.is_validated(run.folder):
        echo(f"note: {path} has no validation yet; step {run.step:,} is its last one", err=True)
    recipe = systems.recipe(run.system)
    if not hasattr(recipe, "load"):
        raise UserError(f"{path}: a run of {run.system} is no captioner", "Give a captioner's run")
    captioner: CaptionModel = recipe.load(run, device)
    calibration = run.settings.get("calibration")
    if calibration is not None and isinstance(captioner, EncoderDecoder):
        captioner.calibration = Calibration.of(calibration, str(path))
    return captioner
