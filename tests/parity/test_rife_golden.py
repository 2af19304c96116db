"""Our RIFE gives the public package's frames, with the real pretrained weights."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep import weights
from cc_prep.manifest import Interpolate
from cc_prep.models.rife import SCALES
from cc_prep.steps.interpolate import RifeInterpolator
from tests.conftest import golden

FOLDERS = golden("rife")


def clips(folder: Path) -> list[str]:
    with np.load(folder / "io.npz") as arrays:
        return sorted(name.removesuffix("_mid") for name in arrays if name.endswith("_mid"))


CASES = [(folder, clip) for folder in FOLDERS for clip in clips(folder)]


def test_there_are_golden_vectors() -> None:
    assert CASES


@pytest.mark.parametrize(("folder", "clip"), CASES, ids=lambda value: getattr(value, "name", value))
def test_same_frames_as_the_package(folder: Path, clip: str, rife_weights: dict) -> None:
    """Keeps away: any slip in layers, scales, flow units, padding or warping."""
    meta = json.loads((folder / "meta.json").read_text())
    assert weights.locate("rife-v4.0").sha256 == meta["flownet_sha256"]
    tolerance = float(re.search(r"mid: ([0-9.e-]+)", meta["tolerance"])[1])
    with np.load(folder / "io.npz") as arrays:
        before, after, middle, sequence = (
            arrays[f"{clip}_{part}"] for part in ("before", "after", "mid", "sequence_uint8")
        )
    interpolator = RifeInterpolator(rife_weights, Interpolate(pad_multiple=128))
    with torch.inference_mode():
        pair = (torch.from_numpy(x)[None].float() / 255 for x in (before, after))
        ours = interpolator.network(*pair)[0].numpy()
    assert np.abs(ours - middle.astype(np.float32)).max() <= tolerance
    ends = [x.transpose(1, 2, 0)[None] for x in (before, after)]
    depth = (len(sequence) - 1).bit_length() - 1
    frames = interpolator.interpolate_batch(*ends, depth)[0].transpose(0, 3, 1, 2)
    assert frames.shape == sequence.shape
    off = np.abs(frames.astype(int) - sequence.astype(int))
    assert np.mean(off <= 1) >= 0.999


@torch.inference_mode()
def test_a_vector_moves_far(rife_weights: dict) -> None:
    """Keeps away: a rule for large motion that no vector reaches, so that any arithmetic passes."""
    network = RifeInterpolator(rife_weights, Interpolate(pad_multiple=128)).network
    far = []
    for folder, clip in CASES:
        with np.load(folder / "io.npz") as arrays:
            before, after = (
                torch.from_numpy(arrays[f"{clip}_{end}"])[None].float() / 255
                for end in ("before", "after")
            )
        height, width = before.shape[-2:]
        before, after = (network._pad(x, 128) for x in (before, after))
        if network._coarse(before, after, SCALES[:2], (height, width))[2]:
            assert (height % 128, width % 128) == (0, 0), "the release looks at its padding too"
            far.append(clip)
    assert far
