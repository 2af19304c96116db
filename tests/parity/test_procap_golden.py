"""Our encoder, decoder and losses give what ProCap's public code gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cc_prep.models.vqgan import VQGAN
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import greedy
from cc_train.layers import caption_decoder
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.procap import import_checkpoint, procedure_encoder
from cc_train.systems.procap import stage1_objective as stage1
from cc_train.systems.procap.captioner import Decoder, ProCap
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder, attention_mask
from cc_train.text import MARKS, Vocabulary
from tests.conftest import golden

STAGE1, STAGE2 = golden("procap_stage1"), golden("procap_stage2")


def load(folder: Path) -> tuple[import_checkpoint.Parts, dict[str, torch.Tensor], dict[str, Any]]:
    meta = json.loads((folder / "meta.json").read_text())
    with np.load(folder / "io.npz") as arrays:
        io = {name: torch.from_numpy(arrays[name]) for name in arrays}
    return import_checkpoint.split(load_file(folder / "weights.safetensors")), io, meta


def build(parts: import_checkpoint.Parts, meta: dict[str, Any]) -> tuple[ProcedureEncoder, VQGAN]:
    shapes = {name: tuple(t.shape) for name, t in parts.encoder.items()}
    encoder = ProcedureEncoder(procedure_encoder.Config.of(shapes))
    encoder.load_state_dict(parts.encoder)
    vqgan, unused = VQGAN.from_tensors(parts.vqgan, meta.get("vqgan", {}).get("ddconfig"))
    assert not unused
    return encoder.eval(), vqgan


def test_there_are_golden_vectors() -> None:
    assert STAGE1
    assert STAGE2


@pytest.mark.parametrize("folder", STAGE1, ids=lambda f: f.name)
@torch.inference_mode()
def test_stage1(folder: Path) -> None:
    parts, io, meta = load(folder)
    encoder, vqgan = build(parts, meta["config"])
    close = {"atol": meta["tolerance"], "rtol": 1e-4}
    features = FrameFeatures(vqgan, "pixels", reference_quirks=True)
    control = encoder.control(io["text"])
    torch.testing.assert_close(control, io["control"], **close)
    seen = features(io["frames"])
    embedded = encoder.conv_to_embedding(seen).flatten(1, 2)
    torch.testing.assert_close(embedded, io["frame_embedding"], **close)
    tokens = features.indices(io["frames"])
    assert (tokens.flatten(1) == io["tokens"]).all()
    hidden = encoder(control, encoder.frames(seen, io["keep"]))
    torch.testing.assert_close(hidden, io["hidden"], **close)
    count = control.shape[1]
    torch.testing.assert_close(encoder.to_logits(hidden[:, count:]), io["logits_msm"], **close)
    torch.testing.assert_close(encoder.to_logits_rel(hidden[:, 0])[:, 0], io["logit_rel"], **close)
    vid = encoder.to_logits_vid(hidden[:, count - 1])[:, 0]
    torch.testing.assert_close(vid, io["logit_vid"], **close)
    mask = attention_mask(hidden.shape[1], (count - 2, count - 1), torch.device("cpu"))
    assert (mask == (io["attention_mask"] == 0)).all()


@pytest.mark.parametrize("folder", STAGE1, ids=lambda f: f.name)
@pytest.mark.parametrize("ignored", [False, True])
def test_stage1_losses(folder: Path, ignored: bool) -> None:
    parts, io, meta = load(folder)
    encoder, vqgan = build(parts, meta["config"])
    features = FrameFeatures(vqgan, "pixels", reference_quirks=True)
    half, count = len(io["text"]) // 2, io["frames"].shape[1]
    batch = stage1.Batch(
        text=io["text"],
        frames=features(torch.cat((io["frames"], io["warped_frames"]), dim=1)),
        damaged=torch.arange(count, 2 * count).expand(2 * half, -1),
        tokens=io["tokens"],
        visible=io["keep"],
        negative_index=torch.arange(2 * half).roll(half),
        negative_is_valid=torch.ones(2 * half, dtype=torch.bool),
    )
    settings = stage1.Losses(ignore_fully_masked=ignored, reference_quirks=True)
    with torch.no_grad():
        sums = stage1.sums(encoder, batch, settings)
    terms = stage1.denominators(batch.visible, batch.negative_is_valid, settings)
    losses = torch.stack([sums[name] / terms[name] for name in stage1.NAMES])
    expected = io["losses_ignore_fully_masked" if ignored else "losses_plain"]
    torch.testing.assert_close(losses.double(), expected, atol=meta["tolerance"], rtol=1e-4)


def captioner_of(
    folder: Path, dropout: float = 0.1
) -> tuple[ProCap, dict[str, torch.Tensor], dict[str, Any]]:
    """The captioner of stage 2's golden vectors, the vectors, and what is said of them."""
    parts, io, meta = load(folder)
    sizes = meta["config"]["decoder_param"]
    encoder, vqgan = build(parts, {})
    shapes = {name: tuple(t.shape) for name, t in parts.decoder.items()}
    decoder = Decoder(
        **caption_decoder.sizes_of(shapes),
        heads=sizes["num_attention_heads"],
        length=sizes["max_t_len"],
        dropout=dropout,
        reference_quirks=True,
    )
    features = FrameFeatures(vqgan, "pixels", reference_quirks=True)
    words = Vocabulary([*MARKS, *map(str, range(shapes["out.weight"][0] - len(MARKS)))])
    captioner = ProCap(
        encoder, decoder, features=features, codec=words, queries="shared", reference_quirks=True
    )
    captioner.mlp.load_state_dict(parts.bridge)
    captioner.decoder.load_state_dict(parts.decoder)
    return captioner.eval(), io, meta


@pytest.mark.parametrize("folder", STAGE2, ids=lambda f: f.name)
@torch.inference_mode()
def test_stage2(folder: Path) -> None:
    captioner, io, meta = captioner_of(folder)
    sizes, features = meta["config"]["decoder_param"], captioner.features
    close = {"atol": meta["tolerance"], "rtol": 1e-4}
    before_after = features(torch.stack((io["before"], io["after"]), dim=1))
    torch.testing.assert_close(captioner.procedure(before_after), io["procedure"], **close)
    memory = captioner.mlp(captioner.procedure(before_after))
    torch.testing.assert_close(memory, io["encoder_output"], **close)
    logits = captioner.logits(io["input_ids"], memory)
    torch.testing.assert_close(logits, io["logits"], **close)
    loss = caption_loss(logits, io["labels"], sizes["label_smoothing"]).double()
    torch.testing.assert_close(loss, io["loss"], atol=1e-2, rtol=1e-5)
    ids = greedy(CachedDecoder(captioner.decoder), memory, stop=False)
    assert (ids == io["greedy"]).all()
