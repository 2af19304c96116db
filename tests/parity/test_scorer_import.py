"""SCORER's checkpoints become runs: nothing run, every tensor used, the same words."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_train import loading
from cc_train.cli import cli
from cc_train.decoding.search import greedy
from cc_train.systems.scorer import recipe
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.import_checkpoint import CLASS
from cc_train.systems.scorer.words import END, MARKS, NULL
from tests.conftest import golden
from tests.weight_factory import Payload

FOLDER = golden("scorer")[0]
META = json.loads((FOLDER / "meta.json").read_text())
SIZES = META["config"]


def vectors() -> dict[str, torch.Tensor]:
    with np.load(FOLDER / "vectors.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


VECTORS = vectors()


def save(path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool = False, **more: Any) -> Path:
    """A file as the public code writes it: its sizes are of a class that is not here."""
    module_name, _, name = CLASS.rpartition(".")
    parent, module = types.ModuleType("utils"), types.ModuleType(module_name)
    cls = type(name, (dict,), {"__module__": module_name})
    setattr(module, name, cls)
    parent.attr_dict = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "utils", parent)
    monkeypatch.setitem(sys.modules, module_name, module)
    sizes = {
        "transformer_encoder": cls(att_head=SIZES["enc_heads"], att_layer=2),
        "transformer_decoder": cls(att_head=SIZES["dec_heads"], att_layer=2),
    }

    def below(prefix: str) -> dict[str, torch.Tensor]:
        return {n[len(prefix) :]: t for n, t in VECTORS.items() if n.startswith(prefix)}

    content = {
        "change_detector_state": below("w/change_detector/"),
        "speaker_state": below("w/speaker/"),
        "model_cfg": cls(model=cls(sizes)),
        **more,
    }
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    for name in ("utils", module_name):
        monkeypatch.delitem(sys.modules, name)
    return path


def vocabulary(folder: Path, count: int = SIZES["vocab_size"]) -> Path:
    path = folder / "vocab.json"
    words = [*MARKS, *(f"w{i}" for i in range(count - len(MARKS)))]
    path.write_text(json.dumps({word: number for number, word in enumerate(words)}))
    return path


def run_import(*arguments: object) -> None:
    cli.main(["import-scorer", *map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("legacy", [False, True])
@torch.inference_mode()
def test_a_captioner_says_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    file = save(tmp_path / "scorer.pt", monkeypatch, legacy)
    run_import(file, "--vocabulary", vocabulary(tmp_path), "--out", tmp_path / "run")
    captioner = loading.load(tmp_path / "run")
    assert isinstance(captioner, ScorerCaptioner)
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert captioner.inputs.backbone is None, "its name is not known, so any of its grid are taken"
    assert settings["reference_quirks"] is True
    assert recipe.Settings.model_validate(
        {name: settings[name] for name in recipe.Settings.model_fields}
    ).ways.slots
    # The position tables are for 14 × 14 places, the vectors for fewer.
    side = SIZES["grid"]
    before_after = torch.stack((VECTORS["in/d_feats"], VECTORS["in/sc_feats"]), dim=1)
    memory = captioner.change_detector(*before_after.unbind(1)).difference
    ids = greedy(captioner.next_word(), memory, captioner.codec.marks)
    assert (ids.masked_fill(ids == END, NULL) == VECTORS["greedy/pos/ids"]).all()
    images = torch.zeros(1, 2, 224, 224, 3, dtype=torch.uint8)
    with pytest.raises(UserError, match="has no weights of resnet101 for images"):
        captioner.caption(images)
    with pytest.raises(UserError, match="features of the shape"):
        captioner.caption(before_after[:, :, :, :side, :side].half())
    with pytest.raises(UserError, match="already holds a run"):
        run_import(file, "--vocabulary", tmp_path / "vocab.json", "--out", tmp_path / "run")


@pytest.mark.parametrize("option", ["--heads", "--decoder-heads"])
def test_heads_that_do_not_divide_the_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Keeps away: a remedy that names a setting which an import does not have."""
    file = save(tmp_path / "scorer.pt", monkeypatch)
    with pytest.raises(
        UserError, match=rf"scorer.pt: its width .* into 5 heads\. Give another {option}"
    ):
        run_import(file, "--vocabulary", vocabulary(tmp_path), "--out", tmp_path / "run", option, 5)


def test_nothing_in_it_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(tmp_path / "scorer.pt", monkeypatch, extra=Payload(tmp_path / "ran"))
    with pytest.raises(UserError, match="not a checkpoint of tensors"):
        run_import(file, "--vocabulary", vocabulary(tmp_path), "--out", tmp_path / "run")
    assert not (tmp_path / "ran").exists(), "a payload ran"


def test_what_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out = vocabulary(tmp_path), ("--out", tmp_path / "run")
    file = save(tmp_path / "more.pt", monkeypatch, optimizer={"lr": 1.0})
    run_import(file, "--vocabulary", words, "--out", tmp_path / "more")
    assert "not used: optimizer" in capsys.readouterr().out
    file = save(tmp_path / "bare.pt", monkeypatch, model_cfg={})
    with pytest.raises(UserError, match="does not say its transformer_encoder's heads"):
        run_import(file, "--vocabulary", words, *out)
    heads = ("--heads", SIZES["enc_heads"], "--decoder-heads", SIZES["dec_heads"])
    file = save(tmp_path / "less.pt", monkeypatch, speaker_state={})
    with pytest.raises(UserError, match=r"not a whole SCORER checkpoint.*core\.position_enc"):
        run_import(file, "--vocabulary", words, *heads, *out)
    foreign = {**torch.load(save(tmp_path / "x.pt", monkeypatch, model_cfg={}))["speaker_state"],
               "visual.proj": torch.zeros(1)}  # fmt: skip
    file = save(tmp_path / "foreign.pt", monkeypatch, speaker_state=foreign)
    with pytest.raises(UserError, match=r"visual\.proj"):
        run_import(file, "--vocabulary", words, *out)
    scalar = {**foreign, "core.embed.weight": torch.zeros(())}
    scalar.pop("visual.proj")
    file = save(tmp_path / "scalar.pt", monkeypatch, speaker_state=scalar)
    with pytest.raises(UserError, match="not a whole SCORER checkpoint"):
        run_import(file, "--vocabulary", words, *out)
    file = save(tmp_path / "whole.pt", monkeypatch)
    with pytest.raises(UserError, match="knows 20 words"):
        run_import(file, "--vocabulary", vocabulary(tmp_path, 19), *out)
    with pytest.raises(UserError, match="no such file"):
        run_import(tmp_path / "nowhere.pt", "--vocabulary", words, *out)
    assert not (tmp_path / "run/checkpoints").exists()
