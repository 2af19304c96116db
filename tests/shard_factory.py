"""Training shards without any build: of random tokens, and of plain grey pairs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep.formats import training_shards
from cc_prep.media.images import encode_image
from cc_prep.records import Facts
from cc_prep.storage import sha256

CHANNELS = 8
FRAMES, GRID, FACTOR = 4, (2, 2), 4
KINDS = ("change", "nochange")
GREY_SIDE = 32


def npy(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def write_tokens(
    folder: Path,
    scenes: int,
    split: str = "train",
    backbone: Path | None = None,
    images: bool = False,
    facts: Facts | None = None,
    tokenizer: dict[str, Any] | None = None,
    fine: int = 2,
) -> tuple[str, Path]:
    """Shards of so many scenes of two pairs each: the pattern that names them, and the VQGAN.

    Args:
        folder: Of the shards, and of the VQGAN that the tokens would come from.
        scenes: How many.
        split: Of all of them.
        backbone: The file of a VQGAN whose features of all frames they are said to hold, random
            ones.
        images: They hold noise as the images of before and after.
        facts: What all of them say truly changed.
        tokenizer: What they say of a VQGAN that lies there already.
        fine: How many rows and columns of features fall on one of the tokens.
    """
    from tests import weight_factory  # which imports torch

    folder.mkdir(parents=True, exist_ok=True)
    vqgan = folder / "vqgan.safetensors"
    if tokenizer is None:
        weight_factory.write_vqgan(vqgan)
    rng = np.random.default_rng(0)
    meta = {"frames": FRAMES, "height": GRID[0] * FACTOR, "width": GRID[1] * FACTOR,
            "tokenizer": "vqgan", "tokenizer_sha256": sha256(vqgan),
            **(tokenizer or {})}  # fmt: skip
    with training_shards.write_shard(str(folder / f"{split}-000000.tar")) as (writer, written):
        for scene in range(scenes):
            for kind in KINDS:
                tokens = rng.integers(0, weight_factory.CODES, (FRAMES, *GRID)).astype(np.int16)
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
                    shape = (FRAMES, CHANNELS, fine * GRID[0], fine * GRID[1])
                    values = rng.normal(3, 2, shape).astype(np.float16)
                    members["features.npy"] = npy(values)
                writer.add(f"set-{split}-{scene:06d}-{kind}", members)
    training_shards.write_index(str(folder), {f"{split}-000000": written.index})
    return str(folder / f"{split}-*.tar"), vqgan


def write_greys(
    folder: Path, count: int, split: str = "test", dataset: str = "spot", **meta: object
) -> str:
    """A shard of so many pairs: number n goes from grey 2n to 2n + 1. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{split}-000000"
    with training_shards.write_shard(str(folder / f"{name}.tar")) as (writer, written):
        for number in range(count):
            own = {"dataset": dataset, "split": split, "id": str(number), "kind": "change",
                   "captions": [f"from {2 * number} to {2 * number + 1}"], "frames": 2,
                   "height": GREY_SIDE, "width": GREY_SIDE, "before": f"{number}.png",
                   "after": f"{number}_2.png", **meta}  # fmt: skip
            greys = [np.full((GREY_SIDE, GREY_SIDE, 3), 2 * number + n, np.uint8) for n in (0, 1)]
            members = {
                "json": json.dumps(own).encode(),
                "tokens.npy": npy(np.zeros((2, 0, 0), np.int16)),
                "scores.npy": npy(np.zeros((2, 1, 2), np.float32)),
                **{f"f0{n}.png": encode_image(grey, "png", 0) for n, grey in enumerate(greys)},
            }
            writer.add(f"{dataset}-{split}-{number:06d}-change", members)
    training_shards.write_index(str(folder), {name: written.index})
    return str(folder / f"{name}.tar")
