"""What both stages of ProCap share: the shards, their VQGAN, what is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN
from cc_prep.settings import Section
from cc_prep.storage import sha256
from cc_prep.weights import networks
from cc_train.data import order, shard_index
from cc_train.data.shard_index import Entry
from cc_train.systems.procap import procedure_encoder
from cc_train.systems.procap.frame_features import FrameFeatures, Kind
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.training import checkpoints

VQGAN_FILE = "vqgan.safetensors"
FIRST_ADVICE = "Give shards that `cc-prep build` wrote"


class HoldOut(Section):
    """What is validated on where no --valid is given: whole scenes, chosen by a digest."""

    share: float = Field(0.05, gt=0, lt=1)
    pairs: int = Field(500, ge=1)


@dataclass(frozen=True)
class Data:
    """Samples to train on and to validate on, and the JSON of one of them."""

    train: list[Entry]
    held_out: list[Entry]
    first: dict[str, Any]


def read(shards: Sequence[str], valid: Sequence[str], hold_out: HoldOut, console: Console) -> Data:
    """Raises UserError."""
    entries = shard_index.read(shards)
    if valid:
        train, held_out = entries, shard_index.read(valid)
        shared = {entry.key for entry in train} & {entry.key for entry in held_out}
        if shared:
            raise UserError(
                f"{len(shared)} samples are in --shards and in --valid, such as {min(shared)}",
                "Validate on what is not trained on",
            )
    else:
        ids = [entry.scene for entry in entries]
        train, held_out = order.hold_out(entries, ids, hold_out.share)
    if not train:
        raise UserError("fewer than two scenes", "Give more shards, or --valid")
    held_out = held_out[: hold_out.pairs]
    first = train[0].meta()
    wanted = ("tokenizer", "tokenizer_sha256", "height", "width", "frames")
    if any(first[name] is None for name in wanted):
        raise UserError(f"{train[0].shard}: no tokens in it", FIRST_ADVICE)
    used = [*train, *held_out]
    shard_index.require_tokenizer(used, first["tokenizer_sha256"], first["tokenizer"])
    console.print(f"{len(train):,} pairs, {len(held_out):,} to validate on", highlight=False)
    return Data(train, held_out, first)


def tokenizer(first: dict[str, Any], given: str | None) -> VQGAN:
    """The VQGAN that made the shards' tokens. Raises UserError for another one."""
    made = str(first.get("tokenizer"))
    if given is None and not weights.is_known(made):
        raise UserError(
            f"the tokens were made with {made}, which is a file of somebody's",
            "Name that file with --set vqgan=FILE",
        )
    network, found, _ = networks.vqgan(given or made)
    if found.sha256 != first["tokenizer_sha256"]:
        raise UserError(
            f"the tokens were made with {made}, not with {found.name}: their digests differ",
            "Name the file that they were made with: --set vqgan=FILE",
        )
    return network


def grid(first: dict[str, Any], vqgan: VQGAN) -> tuple[int, int]:
    """Rows and columns of a frame's tokens."""
    factor = vqgan.config.factor
    return int(first["height"]) // factor, int(first["width"]) // factor


def write_vqgan(run: Path, vqgan: VQGAN) -> None:
    """Puts the VQGAN into the run, which then needs no other file."""
    run.mkdir(parents=True, exist_ok=True)
    if not (run / VQGAN_FILE).exists():
        temporary = run / f".{VQGAN_FILE}.tmp"
        save_file({n: t.contiguous() for n, t in vqgan.state_dict().items()}, temporary)
        temporary.chmod(0o644)
        temporary.replace(run / VQGAN_FILE)


def read_features(run: Path, kind: Kind, compatible: bool) -> FrameFeatures:
    """The frozen VQGAN of a run. Raises UserError."""
    place = run / VQGAN_FILE
    if not place.exists():
        raise UserError(f"{place}: not there", "Give the --out of a training")
    network, _ = VQGAN.from_tensors(weights.read_tensors(place))
    return FrameFeatures(network, kind, compatible).eval()


def best_model(run: Path) -> tuple[Path, int]:
    """The best checkpoint's network and its step. Raises UserError."""
    step = checkpoints.best_step(run)
    model = run / checkpoints.FOLDER / f"{step:06d}" / checkpoints.MODEL
    state = checkpoints.read_state(run, step)
    if sha256(model) != state["sha256"][checkpoints.MODEL]:
        raise UserError(f"{model}: damaged", "Restore it, or train on from the one before")
    return model, step


def read_run(run: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Tensors and settings of a run's best network, and its step. Raises UserError.

    kind: `stage1` or `stage2`, which the run must be.
    """
    model, step = best_model(run)
    with safe_open(model, "pt") as file:
        settings = json.loads((file.metadata() or {}).get("settings", "{}"))
    if settings.get("kind") != kind:
        raise UserError(
            f"{run}: a run of {settings.get('kind')}, not of {kind}", f"Give one of {kind}"
        )
    return load_file(model), settings, step


def read_encoder(run: Path) -> tuple[ProcedureEncoder, dict[str, Any]]:
    """A stage-1 run's encoder and its settings. Raises UserError."""
    tensors, settings, _ = read_run(run, "stage1")
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    encoder = ProcedureEncoder(procedure_encoder.Config.of(shapes))
    encoder.load_state_dict(tensors)
    return encoder, settings
