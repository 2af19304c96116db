"""`cc-train export --onnx`: the networks of a captioner for other programs and for browsers.

    DIR/NAME.onnx        its networks
    DIR/captioner.json   what a program needs besides: sizes, words, calibration
    DIR/index.html, …    of the pair captioner: a page that captions, without a server behind it

Each network is run by onnxruntime on the rendered pairs of the package, and compared with torch.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cc_prep import storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.storage import outputs
from cc_train import loading, systems
from cc_train.data import image_pairs
from cc_train.runs import stored_run
from cc_train.sharing import hub
from cc_train.sharing.onnx_graph import Graph

OPSET = 20
ABOUT = "captioner.json"
MAX_ERROR = 1e-4  # of outputs, and of their largest value where that is above 1
MAX_BATCH = 1024  # pairs; of the exporter, which wants a bound
EXAMPLES = 6  # pairs of the package


def export(run: str, out: Path) -> list[Path]:
    """Writes a captioner's networks into the new folder `out`; its files.

    Raises:
        UserError: For what is no captioner, or one of a system that is not exported so, and for a
            folder that is there.
        JobFailed: Where onnxruntime does not compute what torch does.
    """
    outputs.check_folder(str(out.parent), "")
    if out.exists():
        raise UserError(f"{out}: already exists", "Give another folder, or remove it")
    stored = stored_run.read(hub.locate(run))
    recipe = systems.recipe(stored.system)
    if not hasattr(recipe, "graphs"):
        raise UserError(f"{run}: a run of {stored.system} has no ONNX form", "Leave out --onnx")
    captioner = loading.of_run(stored, run)
    made = recipe.graphs(captioner, example_pairs(captioner.inputs.size))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        for name, graph in made.graphs.items():
            write(graph, folder / f"{name}.onnx")
            check(graph, folder / f"{name}.onnx")
        about = {"name": hub.name_of(run), "system": stored.system, **made.about}
        storage.write_json(str(folder / ABOUT), about)
        if made.page:
            for file in (resources.files("cc_train.sharing") / "onnx_page").iterdir():
                with resources.as_file(file) as source:
                    shutil.copyfile(source, folder / source.name)
        folder.replace(out)
    return sorted(out.iterdir())


def example_pairs(size: tuple[int, int]) -> Tensor:
    """The rendered pairs of the package, uint8 [EXAMPLES, 2, H, W, 3]."""
    with resources.as_file(resources.files("cc_train.serve") / "examples") as folder:
        names = [(folder / f"scene{n}_before.jpg", folder / f"scene{n}_after.jpg")
                 for n in range(1, EXAMPLES + 1)]  # fmt: skip
        return torch.from_numpy(image_pairs.stack(names, size))


def write(graph: Graph, file: Path) -> None:
    """A network as one ONNX file, with its weights."""
    lengths = {
        name: torch.export.Dim(name, min=1, max=MAX_BATCH)
        for name in {"batch", *(axis for axes in graph.free.values() for axis in axes.values())}
    }
    shapes = tuple(
        {axis: lengths[length] for axis, length in graph.free.get(name, {0: "batch"}).items()}
        for name in graph.inputs
    )
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about its own library
        program = torch.onnx.export(
            graph.network.eval(),
            tuple(graph.inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=shapes,
        )
    assert program is not None
    program.save(file)


def check(graph: Graph, file: Path) -> None:
    """Raises JobFailed unless onnxruntime gives what torch does, of all examples and of one."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (None, 1):
        inputs = {name: value[:count] for name, value in graph.inputs.items()}
        with torch.inference_mode():
            expected = graph.network(*inputs.values())
        expected = expected if isinstance(expected, tuple) else (expected,)
        given = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        for name, own, other in zip(graph.outputs, expected, given, strict=True):
            values = own.numpy()
            error = float(np.abs(values - other).max())
            if not error <= MAX_ERROR * max(1.0, float(np.abs(values).max())):
                raise JobFailed(f"{file.name}: {name} of onnxruntime is off by {error:.2g}")
