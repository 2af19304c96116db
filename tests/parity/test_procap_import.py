"""ProCap's checkpoints become runs: every name accounted for, nothing run, the same captions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cc_prep.errors import UserError
from cc_prep.models import vqgan
from cc_train import loading
from cc_train.cli import cli
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import greedy
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings, sizes_of
from cc_train.systems.procap import import_checkpoint, procedure_encoder
from cc_train.systems.procap.captioner import ProCap
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.systems.procap.stage1 import read_encoder
from cc_train.text import MARKS
from tests.conftest import golden
from tests.weight_factory import Payload

KEYS = [path for folder in golden("procap_keys") for path in sorted(folder.glob("*.json"))]
STAGE1, STAGE2 = golden("procap_stage1"), golden("procap_stage2")


def published(folder: Path, path: Path, wrapper: str, extra: object = None) -> Path:
    """A file as the reference writes it: tensors among configuration objects."""
    tensors = load_file(folder / "weights.safetensors")
    torch.save({wrapper: tensors, "opt": argparse.Namespace(a=1), "epoch": 3, "x": extra}, path)
    return path


@pytest.mark.parametrize("file", KEYS, ids=lambda f: f.stem)
def test_every_name_of_the_full_size_checkpoints(file: Path) -> None:
    shapes = {name: tuple(shape) for name, shape in json.loads(file.read_text()).items()}
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        parts = import_checkpoint.split(tensors)
        inner = {name: tuple(t.shape) for name, t in parts.encoder.items()}
        encoder = ProcedureEncoder(procedure_encoder.Config.of(inner))
        ours = {name: tuple(t.shape) for name, t in encoder.state_dict().items()}
        assert ours == inner
        network = vqgan.VQGAN(
            vqgan.Config.of({name: tuple(t.shape) for name, t in parts.vqgan.items()})
        )
        assert network.state_dict().keys() == parts.vqgan.keys()
        if parts.decoder:
            below = {name: tuple(t.shape) for name, t in parts.decoder.items()}
            sizes = DecoderSettings(**sizes_of(below), heads=8, length=24)
            decoder = CaptionDecoder(below["out.weight"][0], sizes)
            assert {n: tuple(t.shape) for n, t in decoder.state_dict().items()} == below
    counted = [*parts.encoder, *parts.vqgan, *parts.bridge, *parts.decoder, *parts.unused]
    assert len(counted) == len(tensors)


def test_there_are_key_lists() -> None:
    assert KEYS


@pytest.mark.parametrize("folder", STAGE2, ids=lambda f: f.name)
@torch.inference_mode()
def test_a_captioner_says_what_it_said(folder: Path, tmp_path: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    sizes = meta["config"]["decoder_param"]
    file = published(folder, tmp_path / "model.chkpt", "model", Payload(tmp_path / "ran"))
    words = [*MARKS, *(f"w{i}" for i in range(sizes["vocab_size"] - len(MARKS)))]
    ids_of = tmp_path / "word2idx.json"
    ids_of.write_text(json.dumps({word: number for number, word in enumerate(words)}))
    arguments = ["import-procap", file, "--out", tmp_path / "run", "--word2idx", ids_of,
             "--heads", sizes["num_attention_heads"], "--length", sizes["max_t_len"]]  # fmt: skip
    cli.main([str(part) for part in arguments], standalone_mode=False)
    assert not (tmp_path / "ran").exists(), "a payload ran"
    captioner = loading.load(tmp_path / "run")
    assert isinstance(captioner, ProCap)
    with np.load(folder / "io.npz") as io:
        pairs = torch.from_numpy(np.stack((io["before"], io["after"]), axis=1))
        expected = torch.from_numpy(io["greedy"])
    memory = captioner.mlp(captioner.procedure(captioner.features(pairs)))
    ids = greedy(CachedDecoder(captioner.decoder), memory, stop=False)
    assert (ids == expected).all()


@pytest.mark.parametrize("folder", STAGE1, ids=lambda f: f.name)
def test_stage_1_becomes_a_run(folder: Path, tmp_path: Path) -> None:
    file = published(folder, tmp_path / "dalle.pt", "weights")
    arguments = ["import-procap", file, "--out", tmp_path / "run"]
    cli.main([str(part) for part in arguments], standalone_mode=False)
    encoder, settings = read_encoder(tmp_path / "run")
    assert (settings["frames"], settings["losses"]) == ("pixels", {"reference_quirks": True})
    assert settings["reference_quirks"] is True
    tensors = load_file(folder / "weights.safetensors")
    assert torch.equal(encoder.image_mask, tensors["image_mask"])
    with pytest.raises(UserError, match="already holds a run"):
        cli.main([str(part) for part in arguments], standalone_mode=False)


@pytest.mark.parametrize("folder", STAGE2[:1], ids=lambda f: f.name)
def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    del tensors["mlp.0.bias"]
    torch.save({"model": tensors}, tmp_path / "model.chkpt")
    (tmp_path / "words.json").write_text(json.dumps([*MARKS, *map(str, range(22))]))
    arguments = ["import-procap", tmp_path / "model.chkpt", "--out", tmp_path / "run", "--heads", 4]
    with pytest.raises(UserError, match="Give its vocabulary"):
        cli.main([str(part) for part in arguments], standalone_mode=False)
    arguments += ["--word2idx", tmp_path / "words.json"]
    with pytest.raises(UserError, match=r"0\.bias"):
        cli.main([str(part) for part in arguments], standalone_mode=False)
    assert not (tmp_path / "run/checkpoints").exists()


def test_older_names_of_the_axial_tables() -> None:
    assert import_checkpoint.renamed("target_pos_emb.weights_2") == "target_pos_emb.weights.2"
