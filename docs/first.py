r"""Makes docs/images/first.jpg, the README's first picture: a rendered pair, frames that RIFE puts
between its images, the true change mask, and what captioner-mini says of the pair.

    .venv/bin/python docs/first.py synth-train-000001-change
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cc_prep import datasets, manifest, weights
from cc_prep.steps import interpolate
from cc_prep.synth import dataset
from cc_train import Captioner

SIDE, GAP, BELOW = 176, 4, 30
MASK_COLOUR = (255, 60, 160)


def pair_of(key: str) -> datasets.LoadedPair:
    """The pair of four rendered scenes that has this key."""
    with tempfile.TemporaryDirectory() as root:
        settings = dataset.Settings(seed=42, size=224, wording="plain", truth=True)
        list(dataset.make(root, 4, settings))
        for split in manifest.load("synth").splits:
            for pair in datasets.open("synth", root=root, split=split):
                if pair.record.key == key:
                    return pair
    raise SystemExit(f"no {key}")


def frames(pair: datasets.LoadedPair) -> np.ndarray:
    """before, three frames in between, after: uint8 [5, H, W, 3]."""
    settings = manifest.load("synth").interpolate
    tensors = weights.read_tensors(weights.locate(settings.weights).path)
    network = interpolate.make(settings, tensors, "cpu")
    return network.interpolate_batch(pair.before[None], pair.after[None], 2)[0]


def with_mask(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The image, grey but where something changed."""
    grey = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2) * 0.5 + 110
    colour = 0.5 * image + 0.5 * np.array(MASK_COLOUR)
    return np.where(mask[..., None] > 0, colour, grey).astype(np.uint8)


def main() -> None:
    """Draws the picture."""
    pair = pair_of(sys.argv[1])
    assert pair.mask is not None
    cells = [*frames(pair), with_mask(pair.after, pair.mask)]
    width = len(cells) * (SIDE + GAP) - GAP
    picture = Image.new("RGB", (width, SIDE + BELOW), "white")
    for number, cell in enumerate(cells):
        small = Image.fromarray(np.ascontiguousarray(cell)).resize((SIDE, SIDE))
        picture.paste(small, (number * (SIDE + GAP), 0))
    caption = Captioner.from_pretrained("captioner-mini")(pair.before, pair.after)
    font = ImageFont.load_default(size=18)
    ImageDraw.Draw(picture).text((0, SIDE + 5), f"“{caption}”", "black", font)
    picture.save(Path(__file__).parent / "images/first.jpg", quality=88)


if __name__ == "__main__":
    main()
