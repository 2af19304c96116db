"""A file of VFIformer's golden vectors: its network with the folder's weights, and its images."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cc_prep.models.vfiformer.network import VARIANTS, VFIformer
from tests.parity import vfiformer_arrays

METHODS = {"VFIformer": "vfiformer", "VFIformerSmall": "vfiformer-small"}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A file in a folder, and what the folder's `meta.json` says of it."""

    folder: Path
    file: str
    description: dict[str, Any]

    @property
    def method(self) -> str:
        return METHODS[self.description["net"]]

    @property
    def tolerances(self) -> dict[str, float]:
        tolerances: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        return dict(tolerances["tolerances"][self.file])

    def stored(self) -> Arrays:
        """What the file holds."""
        with np.load(self.folder / self.file) as arrays:
            return dict(arrays)

    def frames(self) -> Arrays | None:
        """Arrays of padded images: the images in 8 bits and the frame, before and after padding."""
        path = self.folder / self.file.replace(".npz", "_io.npz")
        if not path.exists():
            return None
        with np.load(path) as arrays:
            return dict(arrays)

    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters by name, as the folder's `recipe.py` makes them."""
        recipe = load_recipe(self.folder)
        shapes = {name: tuple(t.shape) for name, t in self.empty_network().state_dict().items()}
        seed = self.description["seed"]
        return {
            name: torch.from_numpy(recipe.value(name, shape, seed))
            for name, shape in shapes.items()
        }

    def network(self) -> VFIformer:
        """With those weights."""
        network = self.empty_network()
        network.load_state_dict(self.weights(), assign=True)
        return network.to(memory_format=torch.channels_last).eval()

    def empty_network(self) -> VFIformer:
        sizes = {
            name: tuple(size) if isinstance(size, list) else size
            for name, size in self.description.get("sizes", {}).items()
        }
        with torch.device("meta"):
            return VFIformer(replace(VARIANTS[self.method], **sizes))

    def arrays(self, stored: Arrays) -> Arrays:
        """What happens in the network, by the names of the golden vectors; inputs of `stored`."""
        images = [stored[f"img{number}"] for number in (0, 1)]
        flow = torch.from_numpy(stored["flow_pre"]) if "flow_pre" in stored else None
        return vfiformer_arrays.arrays(self.network(), *map(torch.from_numpy, images), flow)


def cases(folder: Path) -> list[Case]:
    """All files of a folder that hold golden vectors."""
    meta = json.loads((folder / "meta.json").read_text())
    return [Case(folder, file, description) for file, description in meta["cases"].items()]


def load_recipe(folder: Path) -> ModuleType:
    """The folder's program that makes weights and images."""
    spec = importlib.util.spec_from_file_location("recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
