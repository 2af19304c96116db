"""`photos-mini` wherever a captioner is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_prep.storage import sha256
from cc_train import Captioner
from cc_train.data.pair_lists import read_pairs
from cc_train.runs import run_folder
from cc_train.serve.server import make, shipped_examples
from tests.commands import cc_train
from tests.conftest import ROOT

EXAMPLES = ROOT / "cc_train/serve/examples"
PAIR = (EXAMPLES / "scene1_before.jpg", EXAMPLES / "scene1_after.jpg")


def test_the_card_belongs_to_the_file() -> None:
    folder = run_folder.locate("photos-mini")
    assert sha256(folder / "model.safetensors") in (folder / "README.md").read_text()


def test_what_it_has_no_name_for_is_something() -> None:
    captioner = Captioner.from_pretrained("photos-mini", device="cpu")
    scenes = [(EXAMPLES / f"scene{n}_before.jpg", EXAMPLES / f"scene{n}_after.jpg")
              for n in range(1, 7)]  # fmt: skip
    captions = captioner(scenes)
    assert not re.search("sphere|cube|cylinder", " ".join(map(str, captions)))
    assert any(one.changes for one in captions)
    for one in captions:
        assert one.confidence is not None
        assert one.mask is not None
        assert bool(one.mask.any()) <= bool(one.changes)


def test_equal_images_and_other_views() -> None:
    captioner = Captioner.from_pretrained("photos-mini", device="cpu")
    generator = np.random.default_rng(0)
    noise = [
        cv2.resize(generator.integers(0, 255, (30, 40, 3), dtype=np.uint8), (320, 240))
        for _ in range(2)
    ]
    same = captioner(noise[0], noise[0].copy())
    assert (same.text, same.changes, same.confidence) == ("the two images are equal", (), 1.0)
    other = captioner(noise[0], noise[1])
    assert other.text.startswith("not sure: ")
    assert other.confidence is not None
    assert other.confidence < 0.05


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "mine"
    done = cc_train("export", "photos-mini", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("run", ["photos-mini", "exported"])
def test_the_command_says_it_as_json(run: str, exported: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"before": str(PAIR[0]), "after": str(PAIR[1])}) + "\n")
    name = str(exported) if run == "exported" else run
    done = cc_train("caption", name, "--pairs", pairs, "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    captioner = Captioner.from_pretrained("photos-mini", device="cpu")
    one = captioner(*PAIR)
    assert row["caption"] == one.text
    assert one.changes is not None
    assert [change["kind"] for change in row["changes"]] == [change.kind for change in one.changes]
    for change in row["changes"]:
        for end in {"before", "after"} & change.keys():
            assert len(change[end]) == 4
            assert all(0 <= edge <= 1 for edge in change[end])


def test_the_page_of_photographs_offers_photographs() -> None:
    """Keeps away: spheres and cubes as the examples of a captioner that knows none."""
    captioner = Captioner.from_pretrained("photos-mini", device="cpu")
    pairs = list(read_pairs(shipped_examples("photos-mini")))
    assert [str(one) for one in captioner([(Path(b), Path(a)) for b, a in pairs])] == [
        "a person appeared at the top left",
        "a person disappeared on the left",
        "a person moved from the top left to the top right",
        "nothing changed",
        "the picture became darker",
        "not sure: the two images seem to show different views",
    ]
    with make("photos-mini", host="127.0.0.1", port=0, examples=None, pairs=None, collect=None,
              fetch=False, device="cpu") as server:  # fmt: skip
        assert server.application.lists["examples"] == pairs
