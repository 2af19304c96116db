"""`cc-train export --by-name`: frozen networks that the package has are named, not copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.storage import sha256
from cc_prep.weights import registry
from cc_prep.weights.registry import Shipped
from cc_train import Captioner
from cc_train.systems.procap import frozen_networks
from tests.commands import cc_train
from tests.unit.cc_train.report.test_strips import K, task_of
from tests.unit.cc_train.systems.test_stage2 import write_run

NAME = "small-vqgan"
rng = np.random.default_rng(0)
PAIR = tuple(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(2))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A captioner whose VQGAN comes with the package, under a name of its own."""
    network = {"width": 64, "layers": 1, "text_length": 4}
    decoder = {"width": 16, "heads": 2, "hidden": 16, "layers": 1, "length": 8}
    quirks = {"reference_quirks": False}
    sizes = {"queries": {"k": K, "kind": "shared"}, "decoder": {**decoder, **quirks}, **quirks}
    sizes["comparison"] = None
    task = task_of(tmp_path, "stage2", network=network, **sizes)
    (tmp_path / "assets").mkdir()
    weights = tmp_path / "assets" / f"{NAME}.safetensors"
    shutil.copyfile(tmp_path / "vqgan.safetensors", weights)
    shipped = Shipped(sha256(weights), weights.stat().st_size, "MIT", "for this test")
    monkeypatch.setattr(registry, "ASSETS", tmp_path / "assets")
    monkeypatch.setitem(registry.SHIPPED, NAME, shipped)
    return write_run(tmp_path, "stage2", task, {**sizes, "tokenizer": NAME})


def test_the_same_captions_without_the_file(run: Path, tmp_path: Path) -> None:
    expected = Captioner.from_pretrained(run)(*PAIR)
    path = tmp_path / "small"
    done = cc_train("export", run, path, "--by-name")
    assert done.returncode == 0, done.stderr
    assert not (path / frozen_networks.FILE).exists()
    captioner = Captioner.from_pretrained(path)
    assert captioner(*PAIR).text == expected.text
    card = (path / "README.md").read_text()
    assert f"`{frozen_networks.FILE}` is not included: it is `{NAME}` of the toolkit" in card
    again = captioner.save_pretrained(tmp_path / "again")
    assert Captioner.from_pretrained(again)(*PAIR).text == expected.text


def test_weights_of_another_package_are_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: captions by other tokens than those that were trained on."""
    path = tmp_path / "small"
    assert cc_train("export", run, path, "--by-name").returncode == 0
    file = tmp_path / f"assets/{NAME}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    other = Shipped(sha256(file), len(content), "MIT", "another version")
    monkeypatch.setitem(registry.SHIPPED, NAME, other)
    with pytest.raises(UserError, match=f"is left out, and {NAME} has another SHA-256 here"):
        Captioner.from_pretrained(path)
    monkeypatch.delitem(registry.SHIPPED, NAME)
    with pytest.raises(UserError, match=f"no weights are named {NAME}"):
        Captioner.from_pretrained(path)


def test_networks_of_ones_own_are_copied(run: Path, tmp_path: Path) -> None:
    """Keeps away: a name for a network that is another one, tensor by tensor."""
    file = run / frozen_networks.FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    done = cc_train("export", run, tmp_path / "small", "--by-name")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "none of its files is a network that the package has by name" in done.stderr
    assert not (tmp_path / "small").exists()
    assert cc_train("export", run, tmp_path / "whole").returncode == 0
    assert (tmp_path / "whole" / frozen_networks.FILE).read_bytes() == bytes(content)
    assert "by_name" not in json.loads((tmp_path / "whole/settings.json").read_text())


def test_a_captioner_without_frozen_files(tmp_path: Path) -> None:
    done = cc_train("export", "captioner-mini", tmp_path / "small", "--by-name")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Leave out --by-name" in done.stderr
