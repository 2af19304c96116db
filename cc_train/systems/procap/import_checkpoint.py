"""ProCap's published checkpoints → ours: tensors only, every name accounted for.

Stage 1 (`dalle.pt`): {"weights": tensors, …}. Stage 2 (`model.chkpt`): {"model": tensors, …}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN
from cc_prep.weights import networks
from cc_train.layers import caption_decoder
from cc_train.runs import origin, run_folder
from cc_train.systems.procap import frozen_networks, procedure_encoder
from cc_train.systems.procap.captioner import Decoder, ProCap
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.text import Vocabulary

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
    """Sorts a checkpoint's tensors into parts.

    Axial tables are named `weights.0` or `weights_0`, depending on the version of a library.

    Raises:
        UserError: For tensors that ProCap lacks.
    """
    parts = Parts({}, {}, {}, {}, [])
    foreign = []
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
            foreign.append(name)
    if foreign or not parts.encoder or not parts.vqgan:
        what = f"{', '.join(foreign[:5])} are foreign" if foreign else "encoder or VQGAN missing"
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
    """Our name for a tensor of the reference's encoder."""
    name = name.replace("transformer.transformer.", "transformer.")
    return re.sub(r"target_pos_emb\.weights_(\d)", r"target_pos_emb.weights.\1", name)


def make_run(
    file: str, run: Path, word2idx: str | None, heads: int, length: int, config: str | None
) -> Iterator[str]:
    """Writes a run folder from a checkpoint, and yields lines about it. Raises UserError."""
    run_folder.check_new(run)
    if not Path(file).is_file():
        raise UserError(f"{file}: no such file", "Give dalle.pt or model.chkpt")
    # A file of a name that weights of ours have is meant, not those weights.
    located = weights.locate(f"./{file}" if weights.is_known(file) else file)
    parts = weights.build(located, split)
    ddconfig = networks.read_config(config)["ddconfig"] if config is not None else None
    vqgan, unused = VQGAN.from_tensors(parts.vqgan, ddconfig)
    shapes = {name: tuple(t.shape) for name, t in parts.encoder.items()}
    try:
        encoder = ProcedureEncoder(procedure_encoder.Config.of(shapes))
        encoder.load_state_dict(parts.encoder)
    except (KeyError, RuntimeError) as error:
        raise _foreign(file, error) from None
    settings: dict[str, Any] = {
        "frames": "pixels",
        "tokenizer": located.name,
        "tokenizer_sha256": located.sha256,
        "network": {"width": encoder.config.width, "layers": encoder.config.layers},
        "reference_quirks": True,
        "losses": {"reference_quirks": True},
        origin.IMPORTED: {"file": Path(file).name, "sha256": located.sha256},
    }
    files = frozen_networks.files(vqgan)
    if parts.decoder:
        if word2idx is None:
            raise UserError(f"{file} is a captioner", "Give its vocabulary with --word2idx")
        words = Vocabulary.read(word2idx)
        features = FrameFeatures(vqgan, "pixels", reference_quirks=True)
        tensors, more = _captioner(
            file, parts, encoder=encoder, features=features, words=words, heads=heads, length=length
        )
        settings |= more
        files |= words.files()
    else:
        tensors, settings = encoder.state_dict(), {"system": "stage1", **settings}
    settings["files"] = sorted(files)
    run_folder.write_imported(run, files, settings, tensors)
    yield f"{settings['system']}: {len(tensors)} tensors of {file} are in {run}"
    yield f"VQGAN: {len(parts.vqgan) - len(unused)} tensors"
    for name in (*parts.unused, *unused):
        yield f"not used: {name}"


def _captioner(
    file: str,
    parts: Parts,
    *,
    encoder: ProcedureEncoder,
    features: FrameFeatures,
    words: Vocabulary,
    heads: int,
    length: int,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a captioner and its settings."""
    shapes = {name: tuple(t.shape) for name, t in parts.decoder.items()}
    try:
        known, sizes = shapes["out.weight"][0], caption_decoder.sizes_of(shapes)
        if known != len(words):
            raise UserError(
                f"{file} knows {known} words, the vocabulary has {len(words)}",
                "Give the word2idx.json that belongs to it",
            )
        if sizes["width"] % heads:
            raise UserError(
                f"the decoder's width ({sizes['width']}) is not divisible by --heads ({heads})",
                "Give another --heads",
            )
        decoder = Decoder(**sizes, heads=heads, length=length, reference_quirks=True)
        captioner = ProCap(
            encoder,
            decoder,
            features=features,
            codec=words,
            queries="shared",
            reference_quirks=True,
        )
        captioner.mlp.load_state_dict(parts.bridge)
        captioner.decoder.load_state_dict(parts.decoder)
    except (KeyError, RuntimeError, ValueError) as error:
        raise _foreign(file, error) from None
    return captioner.state_dict(), {
        "system": "stage2",
        "text": words.describe(),
        "queries": {"k": encoder.config.frames - 2, "kind": "shared"},
        "decoder": decoder.model_dump(mode="json"),
        "encoder": {"frames": "pixels", "reference_quirks": True},
        "reference_quirks": True,
        "comparison": None,
    }


def _foreign(file: str, error: Exception) -> UserError:
    lines = str(error).strip().splitlines()
    reason = lines[1].strip() if len(lines) > 1 else lines[0]
    return UserError(
        f"{file}: not a whole ProCap checkpoint ({reason})",
        "Give its dalle.pt or its model.chkpt",
    )
