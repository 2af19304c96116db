"""`photos-mini`: how a captioner of photographs is read from its run. It is not trained."""

from __future__ import annotations

from torch import Tensor

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.nanodet import NanoDet
from cc_train import systems
from cc_train.layers import named_weights
from cc_train.runs import run_folder, stored_run
from cc_train.runs.stored_run import Run
from cc_train.sharing.onnx_graph import Graphs
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.systems.photos import onnx_graphs
from cc_train.systems.photos.captioner import PhotoCaptioner

COMPARISON = "comparison"  # in a run's settings: `{"name": …, "sha256": …}` of a captioner of ours
DETECTOR = "detector.safetensors"  # in a run's `by_name`


def load(run: Run, device: str) -> PhotoCaptioner:
    """The captioner of a run. Raises UserError."""
    return stored_run.network_of(run, _unfitted, device)


def graphs(captioner: PhotoCaptioner, pairs: Tensor) -> Graphs:
    """The captioner as ONNX graphs; see `onnx_graphs.of`."""
    return onnx_graphs.of(captioner, pairs)


def _unfitted(run: Run) -> PhotoCaptioner:
    located = named_weights.of(run.settings, DETECTOR)
    if located is None:
        raise KeyError(named_weights.KEY)
    detector = NanoDet.from_tensors(weights.read_tensors(located.path))
    return PhotoCaptioner(_comparison(run), detector)


def _comparison(run: Run) -> PairTrunk:
    """The captioner of pairs that a run names, which comes with the package. Raises UserError."""
    name, sha256 = run.settings[COMPARISON]["name"], run.settings[COMPARISON]["sha256"]
    if name not in run_folder.shipped():
        raise UserError(
            f"{run.folder}: no captioner of the package is named {name}",
            "Install the version of the package that exported it",
        )
    named = stored_run.read(run_folder.locate(name))
    if named.sha256 != sha256:
        raise UserError(
            f"{run.folder}: {name} has another SHA-256 here",
            "Install the version of the package that exported it",
        )
    captioner = systems.recipe(named.system).load(named, "cpu")
    assert isinstance(captioner, PairTrunk), named.system
    return captioner
