"""Golden vectors of VFIformers small enough for every run, in `tests/golden/vfiformer_tiny`.

The numbers are our own network's, of a day on which it equalled the public code's golden vectors
at the published sizes. So they hold the parity where those vectors are not at hand.

    python -m tests.parity.make_vfiformer_golden
"""

from __future__ import annotations

import json

import numpy as np
import torch

from tests.conftest import ROOT
from tests.parity.vfiformer_cases import Arrays, Case, load_recipe

FOLDER = ROOT / "tests" / "golden" / "vfiformer_tiny"
TINY = {"width": 12, "flow_widths": [8, 8, 8], "contexts": [4, 6, 8, 10]}
CASES = {
    "full_pad_53x64.npz": {"net": "VFIformer", "sizes": TINY, "h": 53, "w": 64, "seed": 1},
    "full_64x64_flow.npz": {"net": "VFIformer", "sizes": TINY, "h": 64, "w": 64, "seed": 2},
    "small_64x128.npz": {"net": "VFIformerSmall", "sizes": TINY, "h": 64, "w": 128, "seed": 3},
}
STORED = (
    "F3", "refine4_corr0", "flow", "level0_group1_block1", "level2_group1_block1_attn_out",
    "attn_mask_x_level2", "attn_mask_y_level2", "warpctx1_1", "down2", "up1", "mask", "pred",
)  # fmt: skip
# Of the largest number: what float32 sums round on one processor or another.
TOLERANCE = 2e-5


def main() -> None:
    """Writes the vectors and their description."""
    tolerances = {}
    for file, description in CASES.items():
        case = Case(FOLDER, file, description)
        stored, frames = inputs(case)
        arrays = case.arrays(stored)
        stored |= {part: arrays[part] for part in STORED if part in arrays}
        np.savez_compressed(FOLDER / file, **stored)
        if frames:
            np.savez_compressed(FOLDER / file.replace(".npz", "_io.npz"), **frames)
        tolerances[file] = {
            part: round(TOLERANCE * max(1.0, float(np.abs(values).max())), 7)
            for part, values in stored.items()
        }
    meta = {"what": __doc__.splitlines()[0], "cases": CASES, "tolerances": tolerances}
    (FOLDER / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def inputs(case: Case) -> tuple[Arrays, Arrays]:
    """The images, padded, and a flow if the case has one; of padded ones 8 bits and the frame."""
    height, width, seed = (case.description[key] for key in ("h", "w", "seed"))
    images = load_recipe(case.folder).images(height, width, seed)
    if "flow" in case.file:
        coarse = np.random.RandomState(seed).uniform(-4, 4, (1, 4, height // 8, width // 8))
        flow = coarse.astype(np.float32).repeat(8, 2).repeat(8, 3)
        return {"img0": images[0], "img1": images[1], "flow_pre": flow}, {}
    if "pad" not in case.file:
        return {"img0": images[0], "img1": images[1]}, {}
    levels = [np.rint(image * 255).astype(np.uint8) for image in images]
    exact = [torch.from_numpy(level).float() / 255 for level in levels]
    missing = -height % 64
    padding = (0, 0, missing // 2, missing - missing // 2)
    padded = [torch.nn.functional.pad(image, padding).numpy() for image in exact]
    with torch.inference_mode():
        frame = case.network()(*exact).numpy()
    return (
        {"img0": padded[0], "img1": padded[1]},
        {"in0_u8": levels[0], "in1_u8": levels[1], "out": frame},
    )


if __name__ == "__main__":
    main()
