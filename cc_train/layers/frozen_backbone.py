"""The frozen backbone of the shards' features: located by name, kept in the run, never trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones, library_backbones
from cc_prep.models.cpu import image_by_image, use_kernels
from cc_prep.models.library_backbones import LibraryBackbone
from cc_prep.records import Preprocessing
from cc_prep.steps.imported_features import UNKNOWN
from cc_prep.weights import networks
from cc_train.data.collate import FeatureSource, digest_in_words
from cc_train.data.split import Split
from cc_train.layers import named_weights
from cc_train.text import TextCodec

FILE = "backbone.safetensors"
HALF = "float16"  # what features are stored in unless the settings name another precision
NO_NETWORK = (
    "Give shards with features; or train with backbone_weights, or import with --backbone-weights"
)


@dataclass(frozen=True)
class BackboneSpec:
    """The backbone of some features, as a run's settings hold it under `backbone`.

    Attributes:
        name: Of the backbone.
        sha256: As `Features` has it; UNKNOWN where features were imported without it, None where a
            run was.
        grid: Channels, rows and columns of the features of an image.
        precision: `float16` or `float32`, in which shards hold them.
        preprocessing: That of a library's backbone.
    """

    name: str
    sha256: str | None
    grid: tuple[int, int, int]
    precision: str = HALF
    preprocessing: Preprocessing | None = None

    @property
    def source(self) -> FeatureSource | None:
        """Backbone of the features; None for a run that was imported without its backbone, which
        then takes any of its grid.
        """
        return None if self.sha256 is None else FeatureSource(self.name, self.sha256)

    @classmethod
    def of(cls, features: Features) -> BackboneSpec:
        """The backbone of stored features."""
        channels, rows, columns = features.values.shape[1:]
        grid = (channels, rows, columns)
        precision = features.values.dtype.name
        return cls(features.backbone, features.sha256, grid, precision, features.preprocessing)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> BackboneSpec:
        """The backbone in the JSON of `to_json`, whose other keys are ignored.

        Raises KeyError and ValueError.
        """
        channels, rows, columns = value["grid"]
        grid = (channels, rows, columns)
        stated = value.get("preprocessing")
        preprocessing = None if stated is None else Preprocessing.model_validate(stated)
        return cls(value["name"], value["sha256"], grid, value["precision"], preprocessing)

    def to_json(self) -> dict[str, Any]:
        """For a run's settings."""
        values: dict[str, Any] = {
            "name": self.name,
            "sha256": self.sha256,
            "grid": list(self.grid),
            "precision": self.precision,
        }
        if self.preprocessing is not None:
            values["preprocessing"] = self.preprocessing.model_dump(mode="json")
        return values

    def matches(self, other: BackboneSpec) -> bool:
        """Whether both have one network, shape and precision; a digest of None fits any."""
        if (self.name, self.grid, self.precision) != (other.name, other.grid, other.precision):
            return False
        return None in (self.sha256, other.sha256) or self.sha256 == other.sha256

    def __str__(self) -> str:
        shape = " × ".join(map(str, self.grid))
        return f"{self.name} ({digest_in_words(self.sha256)}, {shape}, {self.precision})"


class FrozenBackbone(nn.Module):
    """Images → the features that shards hold of them; stored features as they are. Never trained.

    A captioner does not register it as a submodule (see `WithFrozen`): its tensors are in a file of
    the run and in no checkpoint.

    Args:
        network: None where only stored features can be read (an imported run).
    """

    def __init__(self, network: nn.Module | None, spec: BackboneSpec) -> None:
        super().__init__()
        self.network, self.spec = network, spec
        use_kernels(self.requires_grad_(False).eval())

    @property
    def folded(self) -> int:
        """How many of the first channels are squares of 2 × 2 of a finer grid."""
        return backbones.folded(self.network)

    def train(self, mode: bool = True) -> FrozenBackbone:
        """Stays in evaluation mode: it never trains."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenBackbone:
        return self  # an average of the network beside it shares it

    def forward(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w] of images uint8 [B, 2, H, W, 3] RGB, or of stored ones.

        Raises:
            UserError: For features of another grid, and for images where there is no network.
        """
        features = before_after
        if before_after.dtype == torch.uint8:
            pixels = before_after.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
            features = self.compute(pixels).unflatten(0, before_after.shape[:2])
        self.check(features.shape[2:])
        return features.float()

    @torch.no_grad()
    def compute(self, images: Tensor) -> Tensor:
        """Features [N, C, h, w] of images [N, 3, H, W] in [0, 1], in the precision of the spec.

        As `cc_prep.steps.features` stores them, so a captioner sees the same either way.

        Raises:
            UserError: Where there is no network.
        """
        if self.network is None:
            raise UserError(
                f"this captioner has no weights of {self.spec.name} for images", NO_NETWORK
            )
        with torch.autocast(images.device.type, enabled=False):
            features = image_by_image(self.network, images)
        return features.to(getattr(torch, self.spec.precision))

    def check(self, grid: torch.Size) -> None:
        """Raises UserError unless channels, rows and columns are those of the spec."""
        if tuple(grid) != self.spec.grid:
            raise UserError(
                f"features of the shape {list(grid)}, where those of "
                f"{list(self.spec.grid)} are wanted",
                "Build all shards with one backbone and one image_size",
            )

    def files(self) -> dict[str, bytes]:
        """The network as a file of a run, which then needs no other; none without a network."""
        if self.network is None:
            return {}
        tensors = self.network.state_dict()
        metadata = None
        if isinstance(self.network, LibraryBackbone):
            metadata = {"settings": json.dumps(dict(self.network.config), sort_keys=True)}
        return {FILE: save({name: t.contiguous() for name, t in tensors.items()}, metadata)}


def of_training(data: Split, codec: TextCodec, features: Features) -> dict[str, Any]:
    """What identifies the training of a captioner that reads features, for a run's settings."""
    return {
        "samples": data.about(),
        "text": codec.describe(),
        "size": data.size,
        "backbone": BackboneSpec.of(features).to_json(),
    }


def require_same(
    init: Path, trained: BackboneSpec, stored: BackboneSpec, otherwise: str = "leave out --init"
) -> None:
    """Raises UserError where a run to start from was trained on other features than are stored."""
    if not trained.matches(stored):
        raise UserError(
            f"{init} was trained on features of {trained}, these shards hold those of {stored}",
            f"Use shards made with the same backbone and image_size, or {otherwise}",
        )


def find(spec: BackboneSpec, file: str | None) -> FrozenBackbone:
    """The backbone of the shards' features.

    Args:
        file: Where its weights have no name of their own. Of imported features it is believed.

    Raises:
        UserError: For other weights.
    """
    name, preprocessing = spec.name, spec.preprocessing
    of_library = library_backbones.of_library(name) and preprocessing is not None
    if not of_library and not backbones.is_known(name):
        raise UserError(
            f"the shards hold features of {name}, which is no backbone of ours",
            f"Known: {', '.join(backbones.BACKBONES)}",
        )
    if file is None and spec.sha256 == UNKNOWN:
        raise UserError(
            f"the shards hold imported features of {name}, of weights that are not known",
            "Set backbone_weights to the file that they were made with",
        )
    if file is None and (of_library or not backbones.has_weights(name)):
        raise UserError(
            f"{name} comes without weights",
            "Set backbone_weights to the file or folder that the shards' features were made with",
        )
    read = () if preprocessing is None else (preprocessing.layers, preprocessing.input_size)
    network, located = networks.backbone(name, file, *read)
    if spec.sha256 not in (UNKNOWN, backbones.identity(name, network, located.sha256)[1]):
        raise UserError(
            f"the shards hold features of other weights of {name} than {located.path}",
            "Set backbone_weights to the file that they were made with",
        )
    return FrozenBackbone(network, spec)


def by_name(run: Path, spec: BackboneSpec) -> dict[str, dict[str, str]]:
    """The backbone of a run, if it comes with the package: see `named_weights`."""
    backbone = backbones.BACKBONES.get(spec.name)
    if backbone is None or backbone.weights not in weights.SHIPPED or not (run / FILE).exists():
        return {}
    return named_weights.named(run / FILE, *networks.backbone(spec.name))


def read(
    run: Path, spec: BackboneSpec, settings: Mapping[str, Any] = MappingProxyType({})
) -> FrozenBackbone:
    """The backbone of a run with these settings. Raises UserError."""
    if named_weights.of(settings, FILE) is not None:
        return FrozenBackbone(networks.backbone(spec.name)[0], spec)
    path = run / FILE
    if not path.exists():
        raise UserError(f"{path}: not there", "Give the --out of a training")
    try:
        tensors, config = weights.read_tensors(path), networks.trained_settings(path)
        network = backbones.rebuild(spec.name, tensors, spec.preprocessing, config)
    except RuntimeError:
        raise UserError(
            f"{path}: not the weights of {spec.name}", "Restore it, or train again"
        ) from None
    return FrozenBackbone(network, spec)
