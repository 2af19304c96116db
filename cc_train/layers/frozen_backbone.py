"""The frozen backbone of the shards' features: located by name, kept in the run, never trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones
from cc_prep.models.cpu.convolution import image_by_image
from cc_prep.steps.imported_features import UNKNOWN
from cc_prep.weights import networks
from cc_train.data.split import Split
from cc_train.layers import named_weights
from cc_train.text import TextCodec

FILE = "backbone.safetensors"
HALF = "float16"  # what features are stored in unless it is said


def about(features: Features) -> dict[str, Any]:
    """Whose features these are, for a run's settings. grid: channels, rows, columns."""
    precision = features.values.dtype.name
    return {
        "name": features.backbone,
        "sha256": features.sha256,
        "grid": list(features.values.shape[1:]),
        **({} if precision == HALF else {"precision": precision}),
    }


def of_training(data: Split, text: TextCodec, features: Features) -> dict[str, Any]:
    """What identifies the training of a captioner that reads features, for a run's settings."""
    return {
        "samples": data.about(),
        "text": text.describe(),
        "size": data.size,
        "backbone": about(features),
    }


def other_than_shards(init: Path) -> UserError:
    """The error of a run to start from whose features are not those of the shards."""
    return UserError(
        f"{init} has another backbone or image size than these shards",
        "Build the shards as it was trained, or leave out --init",
    )


def words(known: Mapping[str, Any]) -> str:
    """What `about` tells, for a message."""
    shape = " × ".join(map(str, known["grid"]))
    return f"{known['name']} (SHA-256 {known['sha256'][:12]}…, {shape})"


def find(known: Mapping[str, Any], file: str | None) -> nn.Module:
    """The backbone that `about` tells of. Raises UserError for other weights.

    file: where its weights have no name of their own. Of imported features it is believed.
    """
    name = known["name"]
    if name not in backbones.BACKBONES:
        raise UserError(
            f"the shards hold features of {name}, which is no backbone of ours",
            f"Known: {', '.join(backbones.BACKBONES)}",
        )
    if file is None and known["sha256"] == UNKNOWN:
        raise UserError(
            f"the shards hold imported features of {name}, of weights that are not known",
            "Set backbone_weights to the file that they were made with",
        )
    if file is None and backbones.BACKBONES[name].weights is None:
        raise UserError(
            f"{name} comes without weights",
            "Set backbone_weights to the file that the shards' features were made with",
        )
    network, located = networks.backbone(name, file)
    if known["sha256"] not in (UNKNOWN, located.sha256):
        raise UserError(
            f"the shards hold features of other weights of {name} than {located.path}",
            "Set backbone_weights to the file that they were made with",
        )
    return network


def files(network: nn.Module) -> dict[str, bytes]:
    """The backbone as a file of a run, which then needs no other."""
    return {FILE: save({name: t.contiguous() for name, t in network.state_dict().items()})}


def by_name(run: Path, known: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The backbone of a run, if it is one that the package fetches by name: see `named_weights`."""
    backbone = backbones.BACKBONES.get(known["name"])
    if backbone is None or backbone.weights is None or not (run / FILE).exists():
        return {}
    return named_weights.named(run / FILE, *networks.backbone(known["name"]))


def read(run: Path, name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> nn.Module:
    """The backbone of a run with these settings. Raises UserError."""
    if named_weights.of(settings, FILE) is not None:
        return networks.backbone(name)[0]
    place = run / FILE
    if not place.exists():
        raise UserError(f"{place}: not there", "Give the --out of a training")
    try:
        return backbones.rebuild(name, weights.read_tensors(place))
    except RuntimeError:
        raise UserError(
            f"{place}: not the weights of {name}", "Restore it, or train anew"
        ) from None


@torch.no_grad()
def compute(network: nn.Module, known: Mapping[str, Any], images: Tensor) -> Tensor:
    """Features [N, C, h, w] of images [N, 3, H, W] in [0, 1].

    As `cc_prep.steps.features` stores them, so a captioner sees the same either way. known: what
    `about` tells of the stored ones.
    """
    with torch.autocast(images.device.type, enabled=False):
        return image_by_image(network, images).to(getattr(torch, known.get("precision", HALF)))
