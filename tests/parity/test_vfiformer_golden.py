"""VFIformer gives the flows, features and frames of golden vectors.

Every folder of golden vectors whose name begins with `vfiformer`, with the weights that its
`recipe.py` makes. The one in the repository has small networks, and the numbers of our own network
on a day on which it equalled the public code's vectors (`make_vfiformer_golden`). The public code's
own vectors are read where GOLDEN_DIR names a folder of them.
"""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch

from cc_prep.manifest import Interpolate
from cc_prep.models.vfiformer.network import VARIANTS, VFIformer
from cc_prep.steps import interpolate
from tests.conftest import golden
from tests.parity.vfiformer_cases import METHODS, Case, cases

FOLDERS = golden("vfiformer")
CASES = [case for folder in FOLDERS for case in cases(folder)]
TABLES = [path for folder in FOLDERS for path in sorted(folder.glob("params_*.json"))]


def test_there_are_golden_vectors() -> None:
    assert {case.method for case in CASES} == set(METHODS.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.folder.name}/{case.file}")
def test_same_numbers_in_the_whole_network(case: Case) -> None:
    """Keeps away: any slip in layers, windows, masks, flow units, padding or warping."""
    stored = case.stored()
    arrays = case.arrays(stored)
    outputs = stored.keys() - {"flow_pre"}
    assert "pred" in outputs
    assert outputs <= arrays.keys()
    for name in sorted(outputs):
        assert arrays[name].shape == stored[name].shape, name
        off = np.abs(arrays[name].astype(np.float64) - stored[name]).max()
        assert off <= case.tolerances[name], f"{name} is off by {off}"


PADDED = [case for case in CASES if case.frames()]


@pytest.mark.parametrize("case", PADDED, ids=lambda case: f"{case.folder.name}/{case.file}")
def test_same_frames_of_padded_images(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: padding at the wrong side, and red taken for blue."""
    frames = case.frames()
    images = [frames[f"in{number}_u8"] for number in (0, 1)]
    with torch.inference_mode():
        ours = case.network()(*(torch.from_numpy(image).float() / 255 for image in images))
    assert np.abs(ours.numpy() - frames["out"]).max() <= case.tolerances["pred"]
    monkeypatch.setitem(VARIANTS, case.method, case.empty_network().config)
    method = interpolate.make(Interpolate(method=case.method), case.weights(), "cpu")
    rgb = [image[:, ::-1].transpose(0, 2, 3, 1) for image in images]
    middle = method.interpolate_batch(*rgb, 1)[0, 1].astype(int)
    expected = np.rint(frames["out"][0, ::-1].transpose(1, 2, 0) * 255)
    assert np.abs(middle - expected).max() <= 1
    assert np.mean(middle == expected) >= 0.999


# Number of parameters, and CRC-32 of their names and shapes in the published checkpoints.
PUBLISHED = {"vfiformer": (24_166_930, 4121334343), "vfiformer-small": (17_024_426, 1696605921)}


@pytest.mark.parametrize("method", METHODS.values())
def test_every_tensor_of_the_published_networks(method: str) -> None:
    """Keeps away: a public checkpoint whose tensors do not load by name."""
    with torch.device("meta"):
        network = VFIformer(VARIANTS[method])
    ours = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    text = "\n".join(f"{name} {shape}" for name, shape in sorted(ours.items()))
    count = sum(tensor.numel() for tensor in network.state_dict().values())
    assert (count, zlib.crc32(text.encode())) == PUBLISHED[method]
    for path in TABLES:
        if path.stem == f"params_{method.replace('-', '_')}":
            rows = json.loads(path.read_text())
            assert ours == {n: tuple(shape) for n, shape, _, kind in rows if kind == "param"}
