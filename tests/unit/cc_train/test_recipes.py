"""Every YAML that we ship is read by what it is for."""

from __future__ import annotations

import pytest

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.systems.clip4idc import recipe as clip4idc
from cc_train.systems.procap import batches, stage1, stage2
from cc_train.systems.vqgan import recipe as vqgan
from cc_train.training import configs
from cc_train.training.loop import Loop
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "model"), [("vqgan-mini", vqgan.Settings), ("clip4idc-mini", clip4idc.Settings)]
)
def test_shipped_settings(name: str, model: type[Section]) -> None:
    found = configs.load(model, name, [], None)
    assert found != model()


@pytest.mark.parametrize("name", manifest.names())
@pytest.mark.parametrize(
    ("section", "model"), [("stage1", stage1.Settings), ("stage2", stage2.Settings)]
)
def test_every_manifest_s_training_keys(name: str, section: str, model: type[Section]) -> None:
    """Keeps away: a typo in a manifest that `cc-prep` does not read."""
    assert configs.load(model, name, ["loop.steps=3"], section).loop.steps == 3


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".1e-2", "+1e-3"])
def test_numbers_as_everybody_writes_them(text: str) -> None:
    """Keeps away: YAML 1.1's reading of 1e-3 as a string."""
    found = configs.load(vqgan.Settings, None, [f"loop.learning_rate={text}"], None)
    assert found.loop.learning_rate == 0.001


def test_defaults_in_the_docs() -> None:
    """Keeps away: a table of defaults that lies, or a key that it lacks."""
    lines = (ROOT / "docs" / "training.md").read_text().splitlines()
    rows = {line.split("`")[1]: line.split("|")[2:6] for line in lines if line.startswith("| `")}
    recipes = (vqgan, clip4idc, stage1, stage2)
    assert rows.keys() == Loop.model_fields.keys()
    for name, said in rows.items():
        for text, recipe in zip(said, recipes, strict=True):
            value = getattr(recipe.Settings().loop, name)
            given = f"[{text}]" if "," in text else text.strip()
            found = configs.load(Loop, None, [f"{name}={given}"], None)
            assert getattr(found, name) == value, (name, text)


def test_no_such_file() -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        configs.load(vqgan.Settings, "nowhere.yaml", [], None)


@pytest.mark.parametrize("name", manifest.names())
def test_pixels_that_are_drawn_have_their_images(name: str) -> None:
    """Keeps away: the paper's settings, and shards that hold the fixed keyframes alone."""
    settings = manifest.load(name)
    read = configs.load(stage1.Settings, name, [], "stage1")
    if read.frames == "pixels" and read.keyframes.strategy in batches.DRAWING:
        assert settings.keyframes.images == "all"


def test_the_paper_s_settings_draw_among_pixels() -> None:
    for name in ("clevr", "spot", "edit"):
        given = manifest.load(name).stage1
        assert given["frames"] == "pixels"
        assert given["keyframes"]["strategy"] == "confidence"
