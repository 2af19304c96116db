"""Training shards of tokens, with the VQGAN that they would come from, without any build.

They may hold random features of all frames besides, on a grid twice as fine as the tokens'.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep.formats import training_shards
from cc_prep.media.images import encode_image
from cc_prep.records import Facts
from cc_prep.storage import sha256
from tests import small_weights
from tests.arrays import npy

CHANNELS = 8
FRAMES, GRID, FACTOR = 4, (2, 2), 4
KINDS = ("change", "nochange")


def write(
    folder: Path,
    scenes: int,
    split: str = "train",
    backbone: Path | None = None,
    images: bool = False,
    facts: Facts | None = None,
    tokenizer: dict[str, Any] | None = None,
) -> tuple[str, Path]:
    """Shards of so many scenes of two pairs each: the pattern that names them, and the VQGAN.

    backbone: the file of a VQGAN whose features they are said to hold. images: they hold noise as
    the images of before and after. facts: what all of them say truly changed. tokenizer: what they
    say of a VQGAN that lies there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vqgan = folder / "vqgan.safetensors"
    if tokenizer is None:
        small_weights.write_vqgan(vqgan)
    rng = np.random.default_rng(0)
    meta = {"frames": FRAMES, "height": GRID[0] * FACTOR, "width": GRID[1] * FACTOR,
            "tokenizer": "vqgan", "tokenizer_sha256": sha256(vqgan),
            **(tokenizer or {})}  # fmt: skip
    with training_shards.write_shard(str(folder / f"{split}-000000.tar")) as (writer, written):
        for scene in range(scenes):
            for kind in KINDS:
                tokens = rng.integers(0, small_weights.CODES, (FRAMES, *GRID)).astype(np.int16)
                own = {**meta, "kind": kind, "captions": [f"caption {scene} {kind}"]}
                if facts is not None:
                    own["facts"] = facts.to_json()
                members = {
                    "json": json.dumps(own).encode(),
                    "tokens.npy": npy(tokens),
                    "scores.npy": npy(np.zeros((2, 1, FRAMES), np.float32)),
                }
                if images:
                    for frame in (0, FRAMES - 1):
                        noise = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
                        members[f"f{frame:02}.jpg"] = encode_image(noise, "jpg", 90)
                if backbone is not None:
                    own["features"] = {"backbone": "vqgan", "sha256": sha256(backbone),
                                       "frames": list(range(FRAMES))}  # fmt: skip
                    members["json"] = json.dumps(own).encode()
                    shape = (FRAMES, CHANNELS, 2 * GRID[0], 2 * GRID[1])
                    values = rng.normal(3, 2, shape).astype(np.float16)
                    members["features.npy"] = npy(values)
                writer.add(f"set-{split}-{scene:06d}-{kind}", members)
    training_shards.write_index(str(folder), {f"{split}-000000": written.index})
    return str(folder / f"{split}-*.tar"), vqgan
