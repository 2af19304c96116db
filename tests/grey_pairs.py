"""Training shards of pairs of plain grey images, which a stand-in of a model can tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from cc_prep.formats import training_shards
from cc_prep.media.images import encode_image
from tests.arrays import npy

SIDE = 32


def write(
    folder: Path, count: int, split: str = "test", dataset: str = "spot", **meta: object
) -> str:
    """A shard of so many pairs: number n goes from grey 2n to 2n + 1. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{split}-000000"
    with training_shards.write_shard(str(folder / f"{name}.tar")) as (writer, written):
        for number in range(count):
            own = {"dataset": dataset, "split": split, "id": str(number), "kind": "change",
                   "captions": [f"from {2 * number} to {2 * number + 1}"], "frames": 2,
                   "height": SIDE, "width": SIDE, "before": f"{number}.png",
                   "after": f"{number}_2.png", **meta}  # fmt: skip
            greys = [np.full((SIDE, SIDE, 3), 2 * number + n, np.uint8) for n in (0, 1)]
            members = {
                "json": json.dumps(own).encode(),
                "tokens.npy": npy(np.zeros((2, 0, 0), np.int16)),
                "scores.npy": npy(np.zeros((2, 1, 2), np.float32)),
                **{f"f0{n}.png": encode_image(grey, "png", 0) for n, grey in enumerate(greys)},
            }
            writer.add(f"{dataset}-{split}-{number:06d}-change", members)
    training_shards.write_index(str(folder), {name: written.index})
    return str(folder / f"{name}.tar")
