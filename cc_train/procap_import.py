"""ProCap's published checkpoints → ours: tensors only, every name accounted for.

Stage 1 (`dalle.pt`): {"weights": tensors, …}. Stage 2 (`model.chkpt`): {"model": tensors, …}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from cc_prep.errors import UserError

ENCODER, BRIDGE, DECODER = "intermediate_generator.", "mlp.", "text_decoder.decoder."
VQGAN_PREFIX = "vae.model."
# What the reference stores and never uses, or can be computed.
UNUSED = re.compile(r"(.*\.)?(image_emb\.weight|attn_mask|text_decoder\.loss_func\.one_hot)")
VQGAN_LOSS = "vae.model.loss."


@dataclass(frozen=True)
class Parts:
    """A checkpoint's tensors under our names. bridge and decoder are empty for stage 1."""

    encoder: dict[str, Tensor]
    vqgan: dict[str, Tensor]
    bridge: dict[str, Tensor]
    decoder: dict[str, Tensor]
    unused: list[str]


def split(tensors: Mapping[str, Tensor]) -> Parts:
    """Sorts a checkpoint's tensors. Raises UserError for what is none of ProCap's.

    Axial tables may be named `weights.0` or `weights_0`, by the version of a library.
    """
    parts = Parts({}, {}, {}, {}, [])
    strange = []
    for name, tensor in tensors.items():
        inner = name.removeprefix(ENCODER)
        if UNUSED.fullmatch(name) or inner.startswith(VQGAN_LOSS):
            parts.unused.append(name)
        elif inner.startswith(VQGAN_PREFIX):
            parts.vqgan[inner.removeprefix(VQGAN_PREFIX)] = tensor
        elif name.startswith(BRIDGE):
            parts.bridge[name.removeprefix(BRIDGE)] = tensor
        elif name.startswith(DECODER):
            parts.decoder[name.removeprefix(DECODER)] = tensor
        elif re.match(ENCODER_NAMES, inner):
            parts.encoder[renamed(inner)] = tensor
        else:
            strange.append(name)
    if strange or not parts.encoder or not parts.vqgan:
        what = f"{', '.join(strange[:5])} are foreign" if strange else "encoder or VQGAN missing"
        raise UserError(
            f"these are no ProCap weights: {what}", "Give its dalle.pt or its model.chkpt"
        )
    return parts


ENCODER_NAMES = (
    r"(image_mask$|conv_to_embedding\.|target_pos_emb\.|text_emb\.|text_pos_emb\.|special_emb\."
    r"|special_pos_emb\.|transformer\.transformer\.resblocks\.|to_logits\.|to_logits_rel\."
    r"|to_logits_vid\.)"
)


def renamed(name: str) -> str:
    """Our name of a tensor of the reference's encoder."""
    name = name.replace("transformer.transformer.", "transformer.")
    return re.sub(r"target_pos_emb\.weights_(\d)", r"target_pos_emb.weights.\1", name)
