"""The VQGAN that made the shards' tokens: located by name, copied into the run, never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN
from cc_prep.weights import networks
from cc_train.data import shard_index
from cc_train.data.split import Split
from cc_train.systems.procap.frame_features import FrameFeatures, Kind

FILE = "vqgan.safetensors"
ADVICE = "Give shards that `cc-prep build` wrote"


def check(data: Split) -> None:
    """Raises UserError if not all samples hold tokens of the same VQGAN."""
    first = data.first
    required = ("tokenizer", "tokenizer_sha256", "height", "width", "frames")
    if any(first.get(name) is None for name in required):
        raise UserError(
            "the shards hold no tokens", "Build them with tokenize.weights, such as vqgan-mini"
        )
    used = [*data.train, *data.valid]
    shard_index.require_tokenizer(used, first["tokenizer_sha256"], first["tokenizer"])


def about(data: Split) -> dict[str, Any]:
    """The VQGAN of the shards' tokens, for a run's settings."""
    return {name: data.first[name] for name in ("tokenizer", "tokenizer_sha256")}


def find(data: Split, file: str | None) -> VQGAN:
    """The VQGAN that made the shards' tokens. Raises UserError for another one.

    file: where it has no name of its own.
    """
    check(data)
    made_with = str(data.first["tokenizer"])
    if file is None and not weights.is_known(made_with):
        raise UserError(
            f"the tokens were made with {made_with}, which is a file of somebody's",
            "Name that file with --set vqgan=FILE",
        )
    network, located, _ = networks.vqgan(file or made_with)
    if located.sha256 != data.first["tokenizer_sha256"]:
        raise UserError(
            f"the tokens were made with {made_with}, not with {located.name}: their digests differ",
            "Name the file that they were made with: --set vqgan=FILE",
        )
    return network


def grid(first: dict[str, Any], vqgan: VQGAN) -> tuple[int, int]:
    """Rows and columns of a frame's tokens."""
    factor = vqgan.config.factor
    return int(first["height"]) // factor, int(first["width"]) // factor


def files(vqgan: VQGAN) -> dict[str, bytes]:
    """The VQGAN as a file of a run, which then needs no other."""
    return {FILE: save({name: t.contiguous() for name, t in vqgan.state_dict().items()})}


def read(run: Path, kind: Kind, reference_quirks: bool) -> FrameFeatures:
    """The frozen VQGAN of a run. Raises UserError."""
    place = run / FILE
    if not place.exists():
        raise UserError(f"{place}: not there", "Give the --out of a training")
    tensors = {name: t.float() for name, t in weights.read_tensors(place).items()}
    network, _ = VQGAN.from_tensors(tensors)
    return FrameFeatures(network, kind, reference_quirks).eval()
