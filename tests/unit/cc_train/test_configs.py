"""Every YAML that we ship is read by what it is for."""

from __future__ import annotations

import io
import re
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel
from rich.console import Console

from cc_prep import manifest, settings
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train import cli, configs, options, systems
from cc_train.systems.chain import recipe as chain
from cc_train.systems.clip4idc import recipe as clip4idc
from cc_train.systems.pair import recipe as pair
from cc_train.systems.procap import batches, stage1, stage2
from cc_train.systems.scorer import recipe as scorer
from cc_train.systems.vqgan import recipe as vqgan
from cc_train.text import Vocabulary
from cc_train.training.settings import Loop
from tests.conftest import ROOT

QUIET = Console(quiet=True)


@pytest.mark.parametrize(
    ("name", "system", "model"),
    [
        ("vqgan-mini", "vqgan", vqgan.Settings),
        ("vqgan-mini-f8", "vqgan", vqgan.Settings),
        ("clip4idc-mini", "clip4idc", clip4idc.Settings),
        ("pairs", "pair", pair.Settings),
        ("pairs", "chain", chain.Settings),
    ],
)
def test_shipped_settings(name: str, system: str, model: type[Section]) -> None:
    assert configs.load(model, system, name, [], QUIET) != model()


@pytest.mark.parametrize("name", manifest.names())
def test_every_manifest_s_training_keys(name: str) -> None:
    """Keeps away: a typo in a manifest that `cc-prep` does not read."""
    sections = yaml.safe_load(manifest.text_of(name)).get("train", {})
    for section in {"stage1", "stage2", *sections}:
        model = systems.recipe(section).Settings
        assert configs.load(model, section, name, ["loop.steps=3"], QUIET).loop.steps == 3


def test_levir_mci_has_the_words_of_its_paper() -> None:
    """Keeps away: `count > 5` of the paper as "at least 5"."""
    chosen = configs.load(chain.Settings, "chain", "levir_mci", [], QUIET)
    words = Vocabulary.of([*["six five"] * 5, "six"], chosen.min_word_count)
    assert "six" in words.words
    assert "five" not in words.words


@pytest.mark.parametrize("name", systems.names())
def test_a_key_alone_leaves_the_others_at_their_defaults(name: str) -> None:
    """Keeps away: --steps that sets the learning rate back to that of another system."""
    model = systems.recipe(name).Settings
    loop = configs.load(model, name, None, ["loop.steps=7", "loop.seed=3"], QUIET).loop
    expected = model().loop.model_copy(update={"steps": 7, "epochs": None, "seed": 3})
    assert loop == expected


def test_a_number_of_steps_beats_the_default_s_share(tmp_path: Path) -> None:
    """Keeps away: stage 2 for 40 epochs where a YAML file says how many steps."""
    file = tmp_path / "mine.yaml"
    for text, overrides, expected in (
        ("loop: {steps: 7}", [], (7, None, 100, 0.1)),
        ("loop: {steps: 7, epochs: 3}", [], (7, 3, 100, 0.1)),
        ("loop: {steps: 7, epochs: 3}", ["loop.steps=8"], (8, None, 100, 0.1)),
        ("loop: {warmup_steps: 9}", [], (1000, 40, 9, None)),
        ("loop: {warmup_ratio: 0.2}", ["loop.warmup_steps=9"], (1000, 40, 9, None)),
        ("loop: {steps: 7}", ["loop.epochs=2"], (7, 2, 100, 0.1)),
        ("decoder: {width: 8}", [], (1000, 40, 100, 0.1)),
    ):
        file.write_text(text)
        loop = configs.load(stage2.Settings, "stage2", str(file), overrides, QUIET).loop
        values = (loop.steps, loop.epochs, loop.warmup_steps, loop.warmup_ratio)
        assert values == expected, (text, overrides)


def test_steps_of_the_decay_beat_epochs() -> None:
    """Keeps away: SCORER's 15 epochs where somebody sets steps."""
    from cc_train.systems.scorer import recipe

    loop = configs.load(recipe.Settings, "scorer", None, ["loop.decay_steps=10"], QUIET).loop
    assert (loop.decay_steps, loop.decay_epochs) == (10, None)


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".1e-2", "+1e-3"])
def test_numbers_as_everybody_writes_them(text: str) -> None:
    """Keeps away: YAML 1.1's reading of 1e-3 as a string."""
    settings = configs.load(vqgan.Settings, "vqgan", None, [f"loop.learning_rate={text}"], QUIET)
    assert settings.loop.learning_rate == 0.001


def test_a_digest_is_no_number() -> None:
    """Keeps away: a SHA-256 that begins like 9e3179, which no float is made of."""
    values = settings.parse("sha256: 9e3179a3163cb976\nrate: -1.5e+3", "test")
    assert values == {"sha256": "9e3179a3163cb976", "rate": -1500.0}


def test_defaults_in_the_docs() -> None:
    """Keeps away: a table of defaults that lies, or a key that it lacks."""
    lines = (ROOT / "docs" / "training.md").read_text().splitlines()
    rows = {line.split("`")[1]: line.split("|")[2:7] for line in lines if line.startswith("| `")}
    assert pair.Settings().loop == chain.Settings().loop, "they share a column"
    recipes = (vqgan, clip4idc, stage1, stage2, pair)
    assert rows.keys() == Loop.model_fields.keys()
    for name, cells in rows.items():
        for text, recipe in zip(cells, recipes, strict=True):
            value = getattr(recipe.Settings().loop, name)
            written = f"[{text}]" if "," in text else text.strip()
            loop = configs.load(Loop, "vqgan", None, [f"{name}={written}"], QUIET)
            assert getattr(loop, name) == value, (name, text)


SETTINGS_TABLES = {
    "stage1": ("procap.md", "### Settings of stage 1"),
    "stage2": ("procap.md", "### Settings of stage 2"),
    "pair": ("pair.md", "## Settings"),
    "chain": ("chain.md", "## Settings"),
    "scorer": ("scorer.md", "## Settings"),
    "mllm": ("mllm.md", "## Settings"),
}


def documented(page: str, heading: str) -> dict[str, str]:
    """Keys of the table below a heading, with their defaults as written; "" where prose stands.

    A row may hold several keys, later ones by their last parts, and as many defaults.
    """
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = re.split(r"^#+ ", text.partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]
    defaults: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, written = (cell.strip() for cell in line.split("|")[1:3])
            keys = re.findall(r"`([^`]+)`", names)
            prefix = keys[0].rpartition(".")[0]
            cells = [written] if len(keys) == 1 else written.split(", ")
            cells = cells if len(cells) == len(keys) else [""] * len(keys)
            for key, cell in zip(keys, cells, strict=True):
                name = prefix + key if key.startswith(".") else key
                whole = re.match(r"`([^`]+)`(?:, and those of .*)?$", cell)
                value = whole[1] if whole else "" if " " in cell else cell
                defaults[name] = value.replace("−", "-")
    return defaults


def effective(settings: BaseModel) -> BaseModel:
    """With what SCORER's `reference_quirks` stands for written out."""
    if not isinstance(settings, scorer.Settings):
        return settings
    ways = dict.fromkeys(("matching", "cbr", "sentence", "validation"))
    values = {**ways, "words": settings.split_words}
    return Effective(settings=settings.model_copy(update=values), ways=settings.ways)


class Effective(BaseModel):
    settings: scorer.Settings
    ways: scorer.Ways


@pytest.mark.parametrize("name", SETTINGS_TABLES)
def test_defaults_in_a_captioner_s_table(name: str) -> None:
    """Keeps away: a page whose table of settings has other defaults than the captioner."""
    model = systems.recipe(name).Settings
    defaults = documented(*SETTINGS_TABLES[name])
    checked = {key: value for key, value in defaults.items() if value}
    assert len(checked) >= 7
    for key, value in checked.items():
        settings = configs.load(model, name, None, [f"{key}={value}"], QUIET)
        assert effective(settings) == effective(model()), (key, value)


@pytest.mark.parametrize("name", ["stage1", "stage2"])
def test_the_tables_of_procap_have_every_key(name: str) -> None:
    """Keeps away: a setting that a user can only find in the code."""

    def leaves(section: BaseModel, prefix: str = "") -> set[str]:
        keys = set()
        for key in type(section).model_fields:
            value = getattr(section, key)
            nested = isinstance(value, BaseModel)
            keys |= leaves(value, f"{prefix}{key}.") if nested else {prefix + key}
        return keys

    every_key = {key for key in leaves(systems.recipe(name).Settings()) if key[:5] != "loop."}
    assert documented(*SETTINGS_TABLES[name]).keys() == every_key


def test_what_an_empty_section_of_stage_2_is() -> None:
    """Keeps away: a table that says what `facts={}` takes, and takes something else."""
    text = (ROOT / "docs/procap.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `null` \|.* `{}` is `([^`]+)`", text, re.MULTILINE)
    assert [key for key, _ in rows] == ["comparison", "facts"]
    needed = ("comparison={}", "pairs_per_scene=2")  # by facts
    for key, written in rows:
        empty, full = (
            configs.load(stage2.Settings, "stage2", None, [*needed, f"{key}={value}"], QUIET)
            for value in ("{}", written)
        )
        assert empty == full
        keys = getattr(full, key).model_fields_set
        assert keys == getattr(full, key).model_dump().keys()


def test_no_such_file() -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        configs.load(vqgan.Settings, "vqgan", "nowhere.yaml", [], QUIET)


@pytest.mark.parametrize("name", manifest.names())
def test_pixels_that_are_drawn_have_their_images(name: str) -> None:
    """Keeps away: the paper's settings, and shards that hold the fixed keyframes alone."""
    settings = manifest.load(name)
    read = configs.load(stage1.Settings, "stage1", name, [], QUIET)
    if read.frames == "pixels" and read.keyframes.strategy in batches.DRAWING:
        assert settings.keyframes.images == "all"


def test_the_paper_s_settings_draw_among_pixels() -> None:
    for name in ("clevr", "spot", "edit"):
        section = manifest.load(name).train["stage1"]
        assert section["frames"] == "pixels"
        assert section["keyframes"]["strategy"] == "confidence"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("train: {stage3: {}}", "train.stage3: no system of that name"),
        ("train: [stage1]", "train is no mapping"),
        ("train: {stage1: 5}", "train.stage1 is no mapping"),
        ("train: {stage1: {widht: 5}}", "widht"),
    ],
)
def test_mistakes_in_a_manifest_s_sections(tmp_path: Path, written: str, expected: str) -> None:
    """Keeps away: a section under a wrong name that is left out without a word."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"layout: folders\nroot: data\n{written}\n")
    with pytest.raises(UserError, match=expected):
        configs.load(stage1.Settings, "stage1", str(file), [], QUIET)


def test_a_manifest_without_a_section_says_so(tmp_path: Path) -> None:
    """Keeps away: defaults in place of what somebody believes to have set."""
    file = tmp_path / "mine.yaml"
    file.write_text("layout: folders\nroot: data\n")
    console = Console(record=True, soft_wrap=True, file=io.StringIO())
    assert configs.load(stage1.Settings, "stage1", str(file), [], console) == stage1.Settings()
    assert "no train.stage1" in console.export_text()


def test_recipes_are_named_where_a_name_is_unknown() -> None:
    """Keeps away: a list of known names, and a help, without the recipes of the package."""
    assert ", ".join(configs.recipes()) == cli.RECIPES
    with pytest.raises(UserError, match=r"Known: .*whu_cdc, clip4idc-mini, .*, or a YAML file"):
        configs.load(vqgan.Settings, "vqgan", "nosuch", [], QUIET)
    with pytest.raises(UserError, match='Did you mean "vqgan-mini"'):
        configs.load(vqgan.Settings, "vqgan", "vqgan-mni", [], QUIET)


@pytest.mark.parametrize(("name", "device"), [("gpu", "cuda"), ("cuda", "cuda"), ("auto", "auto")])
def test_a_gpu_has_both_names(name: str, device: str) -> None:
    """Keeps away: `--device gpu`, as cc-prep has it, that cc-train refuses."""
    command = click.command()(options.device_option(lambda device: click.echo(device)))
    assert CliRunner().invoke(command, ["--device", name]).output == f"{device}\n"


def test_every_help_says_that_shards_are_several_patterns() -> None:
    """Keeps away: `--shards` that takes several patterns and does not say so."""
    for name in cli.cli.list_commands(click.Context(cli.cli)):
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and option.metavar == "SHARDS":
                assert option.multiple, name
                assert options.SHARDS in (option.help or ""), (name, option.name)
