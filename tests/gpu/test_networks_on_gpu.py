"""Each frozen network of the preparation on a GPU as on a CPU, and how long it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cc_prep import devices
from cc_prep.devices import set_tf32
from cc_prep.models.rife import RIFE
from cc_prep.steps.score import FrameScorer
from cc_prep.steps.tokenization import Tokenizer
from cc_prep.weights import networks
from cc_train.training.settings import pick_device
from tests.gpu.conftest import Timed

Row = Callable[[str, str, str], None]
SIDE, FRAMES = 224, 9


@pytest.fixture(autouse=True)
def float32() -> None:
    assert pick_device("cuda") == "cuda"


def frames() -> np.ndarray:
    """uint8 [T, H, W, 3]: smooth shapes that move, and no noise."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    waves = [np.sin(9 * (x + 0.05 * t)) * np.cos(7 * y) for t in range(FRAMES)]
    shades = [np.stack([w, np.roll(w, 20, 0), -w], -1) for w in waves]
    return (127.5 + 100 * np.stack(shades)).astype(np.uint8)


@pytest.mark.parametrize("tf32", [False, True])
def test_rife(row: Row, seconds: Timed, tf32: bool) -> None:
    torch.manual_seed(0)
    network = RIFE().eval()
    images = torch.from_numpy(frames()).permute(0, 3, 1, 2).float() / 255
    gpu = copy.deepcopy(network).cuda()
    set_tf32(tf32)
    with torch.inference_mode():
        expected = network(images[:1], images[-1:])
        before, after = images[:1].cuda(), images[-1:].cuda()
        apart = float((gpu(before, after).cpu() - expected).abs().mean()) * 255
        took = seconds(lambda: gpu(before, after))
    most = 2.0 if tf32 else 0.1
    assert apart <= most
    kind = "TF32" if tf32 else "float32"
    row(f"RIFE, 224 px, {kind}", f"mean {most} of 255", f"{apart:.4f}; {1e3 * took:.1f} ms a frame")


def test_vqgan(row: Row, seconds: Timed) -> None:
    network = networks.vqgan("vqgan-mini")[0]
    expected = Tokenizer(copy.deepcopy(network))(frames())
    tokenizer = Tokenizer(network, "cuda")
    same = float((tokenizer(frames()) == expected).mean())
    took = seconds(lambda: tokenizer(frames()))
    assert same >= 0.99
    row("VQGAN, codes of 9 frames", "99 % the same", f"{same:.2%}; {1e3 * took:.1f} ms a sequence")


def test_clip4idc(row: Row, seconds: Timed) -> None:
    network = networks.clip4idc("clip4idc-mini")[0]
    captions = ["the cube moved to the left"]
    expected = FrameScorer(copy.deepcopy(network))(frames(), captions)
    scorer = FrameScorer(network, "cuda")
    scores = scorer(frames(), captions)
    pairs = zip(vars(scores).values(), vars(expected).values(), strict=True)
    apart = max(float(np.abs(np.asarray(one) - np.asarray(other)).max()) for one, other in pairs)
    took = seconds(lambda: scorer(frames(), captions))
    assert apart <= 1e-3
    row("CLIP4IDC, scores of 9 frames", "0.001", f"{apart:.1e}; {1e3 * took:.1f} ms a sequence")


def test_running_out_of_memory_is_known() -> None:
    """Keeps away: an error of the device that no step takes for what it is."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert devices.is_out_of_memory(caught.value)
    assert not devices.is_broken_device(caught.value)
    assert float(torch.ones(3, device="cuda").sum()) == 3.0, "and the device goes on"
