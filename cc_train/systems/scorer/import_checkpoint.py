"""SCORER's published checkpoints → runs: tensors and sizes only, every tensor used or named.

A file is {"change_detector_state": tensors, "speaker_state": tensors, "model_cfg": sizes}. The
sizes are a nested dict of a class of its own, in whose place torch's safe reader takes a dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cc_prep.errors import UserError, named_line
from cc_prep.storage import sha256
from cc_prep.weights import networks
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import origin, run_folder
from cc_train.systems.scorer import recipe
from cc_train.systems.scorer.encoder import POSITIONS
from cc_train.systems.scorer.words import ScorerWords

CLASS = "utils.attr_dict.AttrDict"
ENCODER, DECODER, SIZES = "change_detector_state", "speaker_state", "model_cfg"
BACKBONE = "resnet101"
IMAGE_SIDE = 224
GIVE = "Give a checkpoint of SCORER's public code"


def make_run(
    file: str,
    run: Path,
    vocabulary: str,
    heads: int | None = None,
    decoder_heads: int | None = None,
    backbone_weights: str | None = None,
) -> Iterator[str]:
    """Writes a run folder from a checkpoint, and yields lines about it. Raises UserError.

    Args:
        heads, decoder_heads: For files that do not hold them.
        backbone_weights: Torchvision's of ResNet-101; without them the run captions only stored
            features.
    """
    run_folder.check_new(run)
    content = read(Path(file))
    codec = ScorerWords.read(vocabulary)
    encoder, decoder = content[ENCODER], content[DECODER]
    of_encoder = heads or _heads(content, "transformer_encoder", file, "--heads")
    of_decoder = decoder_heads or _heads(content, "transformer_decoder", file, "--decoder-heads")
    resnet, digest = None, None
    if backbone_weights is not None:
        resnet, located = networks.backbone(BACKBONE, backbone_weights)
        digest = located.sha256
    try:
        settings, grid = settings_of(encoder, decoder, of_encoder, of_decoder, file)
        if grid[1:] != (POSITIONS, POSITIONS):
            raise UserError(
                f"{file} has positions for features of {grid[1]} × {grid[2]}",
                f"Only {POSITIONS} × {POSITIONS} are read, which is what the public code has",
            )
        backbone = FrozenBackbone(resnet, BackboneSpec(BACKBONE, digest, grid))
        about = {
            "size": [IMAGE_SIDE, IMAGE_SIDE],
            "backbone": backbone.spec.to_json(),
            "text": codec.describe(),
        }
        if len(decoder["core.embed.weight"]) != len(codec):
            raise UserError(
                f"{file} knows {len(decoder['core.embed.weight'])} words, {vocabulary} has "
                f"{len(codec)}",
                "Give the vocab.json that belongs to it",
            )
        network = recipe.make(settings, about, codec, backbone)
        network.change_detector.load_state_dict(encoder)
        network.speaker.load_state_dict(decoder)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Names and shapes of a file are anybody's: whatever does not fit is no checkpoint.
        lines = str(error).strip().splitlines() or [repr(error)]
        reason = lines[1].strip() if len(lines) > 1 else lines[0]
        raise UserError(f"{file}: not a whole SCORER checkpoint ({reason})", GIVE) from None
    _write(run, file, network, settings, about, {**codec.files(), **backbone.files()})
    yield f"scorer: {len(encoder) + len(decoder)} tensors of {file} are in {run}"
    for name in sorted(content.keys() - {ENCODER, DECODER, SIZES}):
        yield f"not used: {name}"


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint: tensors by name under ENCODER and DECODER, plain sizes.

    Nothing in the file is executed. Raises UserError.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file", GIVE)
    try:
        # A name for a class that is not there; what the file builds of it is a plain dict.
        with torch.serialization.safe_globals([(dict, CLASS)]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise nearly anything
        raise UserError(
            f"{path}: not a checkpoint of tensors ({named_line(error)})",
            GIVE,
        ) from None
    for name in (ENCODER, DECODER):
        tensors = content.get(name) if isinstance(content, dict) else None
        if not isinstance(tensors, Mapping) or not all(
            isinstance(one, Tensor) for one in tensors.values()
        ):
            raise UserError(f"{path}: no tensors under {name}", GIVE)
    return {str(name): value for name, value in content.items()}


def _heads(content: Mapping[str, Any], part: str, file: str, option: str) -> int:
    """Number of heads from the sizes in a checkpoint; shapes do not show it. Raises UserError."""
    sizes: Any = content.get(SIZES)
    for name in ("model", part):
        sizes = sizes.get(name) if isinstance(sizes, Mapping) else None
    heads = sizes.get("att_head") if isinstance(sizes, Mapping) else None
    if type(heads) is not int or heads < 1:
        raise UserError(f"{file} does not say its {part}'s heads", f"Give {option}")
    return heads


def settings_of(
    encoder: Mapping[str, Tensor],
    decoder: Mapping[str, Tensor],
    heads: int,
    decoder_heads: int,
    file: str,
) -> tuple[recipe.Settings, tuple[int, int, int]]:
    """The settings of a checkpoint, and channels and grid of its features.

    Raises:
        KeyError: For a missing tensor.
        UserError: For heads that do not divide the width.
    """
    width, channels = encoder["img.0.weight"].shape[:2]
    for option, count in (("--heads", heads), ("--decoder-heads", decoder_heads)):
        if width % count:
            raise UserError(
                f"{file}: its width {width} is not divisible into {count} heads",
                f"Give another {option}",
            )
    side = len(encoder["w_embedding.weight"])
    length, word_width = decoder["core.position_enc.pe"].shape
    values = {
        "reference_quirks": True,
        "encoder": {"width": width, "heads": heads, "layers": _layers(encoder, "scorer.")},
        "decoder": {
            "word_width": word_width,
            "heads": decoder_heads,
            "layers": _layers(decoder, "core.layer."),
            "length": length,
        },
    }
    return recipe.Settings.model_validate(values), (channels - 2, side, side)


def _layers(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """Number of layers: of different numbers that follow a prefix in the tensors' names."""
    return len({n[len(prefix) :].partition(".")[0] for n in tensors if n.startswith(prefix)})


def _write(
    run: Path,
    file: str,
    network: nn.Module,
    settings: recipe.Settings,
    about: Mapping[str, Any],
    files: Mapping[str, bytes],
) -> None:
    config = {
        "system": "scorer",
        "files": sorted(files),
        **about,
        **settings.model_dump(mode="json"),
        origin.IMPORTED: {"file": Path(file).name, "sha256": sha256(Path(file))},
    }
    run_folder.write_imported(run, files, config, network.state_dict())
