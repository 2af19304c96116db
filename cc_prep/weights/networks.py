"""Networks by the name or file of their weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from torch import Tensor, nn

from cc_prep import storage, strict_json, weights
from cc_prep.errors import UserError, first_line
from cc_prep.models import backbones, library_backbones
from cc_prep.models.backbones import BACKBONES
from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.models.vqgan import VQGAN
from cc_prep.weights.registry import Located

if TYPE_CHECKING:
    from cc_prep.manifest import Features

REFERENCE_INTRA_LAYERS = 9
DECIDE_ATTENTION = ("resolution", "attn_resolutions")  # of taming-transformers' `ddconfig`
TOKENIZER_CONFIG = "tokenizer_config"  # in a sample's JSON


def clip4idc(name_or_file: str, intra_layers: int | None = None) -> tuple[CLIP4IDC, Located]:
    """A CLIP4IDC for scoring.

    Raises UserError.

    Args:
        intra_layers: How many blocks see one image alone; None takes what our training wrote into
            the file, else the reference's 9.
    """
    file = weights.locate(name_or_file)

    def make(tensors: Mapping[str, Tensor]) -> CLIP4IDC:
        layers = intra_layers
        if layers is None:
            layers = trained_intra_layers(file.path) or REFERENCE_INTRA_LAYERS
        return CLIP4IDC.from_tensors(tensors, layers)

    network = weights.build(file, make)
    if not 0 < network.config.intra_layers < network.config.vision_layers:
        raise UserError(
            f"{file.path}: {network.config.vision_layers} visual blocks, of which "
            f"{network.config.intra_layers} cannot see one image alone",
            "Set score.intra_layers",
        )
    return network, file


def trained_intra_layers(path: Path) -> int | None:
    """How many blocks of a CLIP4IDC see one image alone, if our training wrote it into the file."""
    network_settings = trained_settings(path).get("network")
    layers = network_settings.get("intra_layers") if isinstance(network_settings, dict) else None
    return layers if type(layers) is int else None


def vqgan(
    name_or_file: str, config: str | Mapping[str, Any] | None = None
) -> tuple[VQGAN, Located, list[str]]:
    """A VQGAN and the names in its file that were not used.

    Raises UserError.

    Args:
        config: taming-transformers' YAML, the same as JSON, or the content of either; it must fit
            the tensors, and decides which attention is used. None uses every attention that the
            file holds.
    """
    file = weights.locate(name_or_file)
    values = read_config(config) if config is not None else {}
    source = config if isinstance(config, str) else "tokenize.config"
    make = partial(VQGAN.from_tensors, ddconfig=values.get("ddconfig"))
    network, unused = weights.build(file, make)
    sizes = {"n_embed": network.config.codes, "embed_dim": network.config.code_width}
    for key, size in sizes.items():
        if key in values and values[key] != size:
            raise UserError(
                f"{source}: {key} is {values[key]}, in {file.path} it is {size}",
                "Give the YAML that belongs to these weights",
            )
    return network, file, unused


def tokenizer_digest(network: VQGAN, file: Located, unused: Sequence[str]) -> str:
    """What tells a VQGAN from others by its file and its attention: SHA-256, in hex.

    Args:
        unused: As `vqgan` returns it. The file's own digest, unless attention that is in the file
            was dropped: then the network computes other features and tokens than the file alone
            would.
    """
    if not any(name.startswith("encoder.down.") and ".attn." in name for name in unused):
        return file.sha256
    identity = {"file": file.sha256, "attention": list(network.config.attention)}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def tokenizer_meta(
    network: VQGAN,
    file: Located,
    unused: Sequence[str],
    config: str | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a training sample says of the VQGAN that made its tokens: see docs/formats.md.

    Raises UserError.

    Args:
        config: As `vqgan` took it. Where it drops attention, the digest of the file and the part of
            the configuration that does so are in there, so that a training makes the same network
            of the same file.
    """
    digest = tokenizer_digest(network, file, unused)
    meta: dict[str, Any] = {"tokenizer": file.name, "tokenizer_sha256": digest}
    meta["codes"] = network.config.codes
    if config is not None and digest != file.sha256:
        ddconfig = read_config(config)["ddconfig"]
        settings = {key: ddconfig[key] for key in DECIDE_ATTENTION}
        meta[TOKENIZER_CONFIG] = {"sha256": file.sha256, **settings}
    return meta


def backbone(
    name: str,
    name_or_file: str | None = None,
    layers: tuple[int, ...] = (-1,),
    input_size: tuple[int, int] | None = None,
) -> tuple[nn.Module, Located]:
    """A frozen backbone for features, and its weights. Raises UserError.

    Args:
        name: One of BACKBONES, several joined by `+`, or of a library: see
            `library_backbones.load`.
        name_or_file: Of its weights; None takes the backbone's own, as those that are joined do.
        layers: Of a library's backbone.
        input_size: Likewise, in px.
    """
    of_library = library_backbones.of_library(name)
    if len(parts := backbones.parts_of(name)) > 1:
        return _joined(name, parts, name_or_file)
    if name_or_file is None and not of_library:
        name_or_file = BACKBONES[name].weights
    if name_or_file is None:
        raise UserError(
            f"features.backbone {name} comes without weights",
            "Set features.weights to a local file with "
            + ("the tensors that timm publishes" if of_library else "torchvision's tensors"),
        )
    if of_library:
        return library_backbones.load(name, name_or_file, layers, input_size)
    located = weights.locate(name_or_file)
    return weights.build(located, BACKBONES[name].make), located


def _joined(name: str, parts: Sequence[str], name_or_file: str | None) -> tuple[nn.Module, Located]:
    if name_or_file is not None:
        raise UserError(
            f"features.weights {name_or_file}: {name} takes the weights of its backbones",
            "Leave it out",
        )
    found = [backbone(part) for part in parts]
    digests = "\n".join(located.sha256 for _, located in found)
    sha256 = hashlib.sha256(digests.encode()).hexdigest()
    return backbones.Joined([one for one, _ in found]), Located(name, found[0][1].path, sha256)


def features_backbone(settings: Features) -> tuple[nn.Module, Located]:
    """The backbone that the settings name, and its weights. Raises UserError."""
    return backbone(settings.backbone, settings.weights, settings.layers, settings.size)


def read_config(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """`ddconfig`, with `n_embed` and `embed_dim` if they are given, as values of JSON.

    Raises UserError.

    Args:
        config: A YAML or JSON file, or its content.
    """
    file = config if isinstance(config, str) else "tokenize.config"
    try:
        values: Any = config
        if isinstance(config, str):
            text = storage.read_bytes(storage.with_home(config)).decode()
            values = yaml.safe_load(text)  # JSON is YAML
        values = json.loads(json.dumps(values))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(
            f"{file}: {first_line(error)}", "Give the YAML beside the checkpoint"
        ) from None
    for key in ("model", "params"):
        if isinstance(values, dict) and isinstance(values.get(key), dict):
            values = values[key]
    known = values.get("ddconfig") if isinstance(values, dict) else None
    if not isinstance(known, dict) or not known.keys() >= set(DECIDE_ATTENTION):
        raise UserError(
            f"{file}: no ddconfig with resolution and attn_resolutions in it",
            "Give the YAML beside the checkpoint",
        )
    size, listed = (known[key] for key in DECIDE_ATTENTION)
    if type(size) is not int or type(listed) is not list or {*map(type, listed)} - {int}:
        raise UserError(
            f"{file}: resolution has to be a number, and attn_resolutions a list of numbers",
            "Give the YAML beside the checkpoint",
        )
    return {name: values[name] for name in ("ddconfig", "n_embed", "embed_dim") if name in values}


def trained_settings(path: Path) -> dict[str, Any]:
    """What our training wrote into a safetensors file; nothing for other files."""
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        words = (file.metadata() or {}).get("settings", "{}")
    try:
        settings = strict_json.loads(words)
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}
