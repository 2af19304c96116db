"""Captioners go to the hub and come back, against a stand-in of its server on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from cc_prep.errors import UserError
from cc_train import Captioner
from cc_train.sharing import hub, model_card
from tests.commands import cc_train
from tests.server_factory import COMMIT, Hub, serving

ID = "someone/mine"
FILES = {"README.md", "model.safetensors", "backbone.safetensors", "settings.json",
         "vocabulary.json"}  # fmt: skip
NOISE = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained("captioner-mini", device="cpu")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub, and an empty folder for what is fetched; other places are not reached."""
    with serving(Hub()) as running:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another service, and protocol
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        monkeypatch.chdir(tmp_path)
        yield running


def test_a_captioner_goes_to_the_hub_and_comes_back(
    server: Hub, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert captioner.push_to_hub(ID) == f"{server.address}/{ID}"
    files = server.repositories[ID]
    assert files.keys() == FILES
    assert f'Captioner.from_pretrained("{ID}")' in files["README.md"].decode()
    fetched = Captioner.from_pretrained(ID, device="cpu")
    assert fetched(NOISE[0], NOISE[1]) == captioner(NOISE[0], NOISE[1])
    # What was fetched once is there without a network.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(server.requests)
    assert hub.locate(f"{ID}@{COMMIT}") == hub.locate(ID) == fetched.folder
    assert len(server.requests) == before
    with pytest.raises(UserError, match=r"someone/other: no folder here, and the hub says: .*"):
        hub.locate("someone/other")


def test_an_id_stands_where_a_run_does(server: Hub, tmp_path: Path) -> None:
    """Keeps away: commands of which each knows other places; files written into the cache."""
    done = cc_train("export", "captioner-mini", "first", "--push", ID)
    assert done.stdout.split() == ["first", f"{server.address}/{ID}"], done.stderr
    done = cc_train("report", ID)
    assert (done.returncode, done.stdout.strip()) == (0, "mine.report.html"), done.stderr
    assert "pair: mine" in (tmp_path / "mine.report.html").read_text()
    done = cc_train("export", ID, "again")
    assert done.returncode == 0, done.stderr
    assert "cc-train caption again before.png" in (tmp_path / "again/README.md").read_text()
    done = cc_train("pair", "--init", ID, "--shards", "no.tar", "--out", "run")
    assert done.stderr.endswith("quote the pattern\n"), done.stderr


def test_files_of_other_kinds_are_not_fetched(server: Hub, captioner: Captioner) -> None:
    """Keeps away: a pickle or a program of a stranger on the disk."""
    captioner.push_to_hub(ID)
    server.repositories[ID] |= {"model.bin": b"pickle", "run.py": b"print()"}
    folder = hub.locate(ID)
    assert {path.name for path in folder.iterdir()} == FILES


def test_an_upload_replaces_an_earlier_one_whole(
    server: Hub, captioner: Captioner, tmp_path: Path
) -> None:
    """Keeps away: scores of the old weights beside the new ones; a file of the user's that goes."""
    settings = json.dumps({"files": ["words.json", "backbone.safetensors", "README.md"]}).encode()
    old = dict.fromkeys(("words.json", "evaluation/scores.json", "evaluation/items.jsonl"), b"old")
    names = ("notes.md", "evaluation/plot.png", "evaluation/notes.md", ".gitattributes")
    own = dict.fromkeys(names, b"mine")
    server.repositories[ID] = {"settings.json": settings, **old, **own}
    captioner.push_to_hub(ID)
    assert server.repositories[ID].keys() == FILES | own.keys()
    assert server.commits == 1
    server.repositories[ID]["settings.json"] = b"[1]"
    captioner.push_to_hub(ID)
    assert server.repositories[ID].keys() == FILES | own.keys()


def test_a_public_repository_is_not_private(server: Hub, captioner: Captioner) -> None:
    """Keeps away: weights that everybody sees, where --private was given."""
    captioner.push_to_hub(ID, private=True)
    assert server.private == {ID}
    captioner.push_to_hub(ID, private=True)
    assert server.commits == 2
    server.private.clear()
    with pytest.raises(UserError, match=f"^{ID}: a public repository, and it is .* Make it priv"):
        captioner.push_to_hub(ID, private=True)
    assert server.commits == 2


def test_only_captioners_are_uploaded(server: Hub, tmp_path: Path) -> None:
    """Keeps away: a repository that nothing can load, and one that is empty."""
    network = tmp_path / "network"
    network.mkdir()
    save_file(
        {"w": torch.zeros(1)},
        network / "model.safetensors",
        {"settings": json.dumps({"system": "stage1"})},
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"network: a run of stage1 is no captioner, .* --push$"):
        hub.upload(network, ID)
    with pytest.raises(UserError, match=r"empty: no exported captioner\. Export it first"):
        hub.upload(tmp_path / "empty", ID)
    done = cc_train("export", network, "small", "--push", ID)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "a run of stage1 is no captioner" in done.stderr
    assert server.repositories == {}
    done = cc_train("export", "captioner-mini", "small", "--private")
    assert (done.returncode, "--private without --push" in done.stderr) == (2, True)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("path", ["captioner-mini", "mine", "out/mine", f"{ID}@v2"])
def test_a_revision_is_that_of_an_id(tmp_path: Path, monkeypatch: Any, path: str) -> None:
    """Keeps away: other weights than those of the revision that was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=rf"^{path}: .*v1.*\. Give ") as error:
        Captioner.from_pretrained(path, revision="v1")
    assert "\n" not in str(error.value)


def test_mistakes_are_one_line(server: Hub, tmp_path: Path) -> None:
    server.repositories[ID] = {"README.md": b"# nothing"}
    for path, message in {
        "someone/none": "someone/none: no folder here, and the hub says: .*Check the name",
        f"{ID}@v2": "the hub says: .*Check the name and the revision",
        ID: f"{ID}: no captioner on the hub",
    }.items():
        with pytest.raises(UserError, match=message) as error:
            Captioner.from_pretrained(path)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="a/b/c: no name of a repository"):
        hub.upload(tmp_path, "a/b/c")


def test_a_hub_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"someone/mine: no folder here.*Check the net") as error:
        Captioner.from_pretrained(ID)
    assert "\n" not in str(error.value)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"not installed\. .* checkout: pip install '\.\[hub\]'"):
        Captioner.from_pretrained(ID)


def test_paths_are_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a mistyped path below OUT that is looked up on the network."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    paths = ("out/missing", "mine", "a/b/c", "/a/b", "./a", "../a", "captioner-mini")
    assert not any(map(hub.is_id, paths))
    assert hub.is_id("runs/a")


def test_a_card_is_of_its_place() -> None:
    card = 'Captioner.from_pretrained("mine")\n    cc-train caption mine a.png b.png\nmine\n'
    assert model_card.with_path(card, ID) == (
        f'Captioner.from_pretrained("{ID}")\n    cc-train caption {ID} a.png b.png\nmine\n'
    )
