"""Every YAML that we ship is read by what it is for."""

from __future__ import annotations

import io
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from cc_prep import manifest, settings
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train import configs, systems
from cc_train.cli import cli, options, train
from cc_train.systems.chain import recipe as chain
from cc_train.systems.clip4idc import recipe as clip4idc
from cc_train.systems.pair import recipe as pair
from cc_train.systems.procap import batches, stage1, stage2
from cc_train.systems.vqgan import recipe as vqgan
from cc_train.text import Vocabulary

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
    assert ", ".join(configs.recipes()) == train.RECIPES
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
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and option.metavar == "SHARDS":
                assert option.multiple, name
                assert options.SHARDS in (option.help or ""), (name, option.name)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("loop.learnig_rate", "loop.learning_rate"),
        ("loop.lr", "loop.learning_rate"),
        ("lop.lr", "loop.learning_rate"),
        ("learning_rate", "loop.learning_rate"),
        ("lr", "loop.learning_rate"),
        ("encodr.width", "encoder.width"),
    ],
)
def test_the_key_that_is_meant(key: str, meant: str, tmp_path: Path) -> None:
    """Keeps away: a list of thirty keys for somebody who only forgot the section."""
    file = tmp_path / "mine.yaml"
    file.write_text("loop: {batch_size: 3}")
    expected = f'^--set {key}: unknown key. Did you mean "{meant}"'
    with pytest.raises(UserError, match=expected):
        configs.load(pair.Settings, "pair", str(file), ["loop.steps=2", f"{key}=1"], QUIET)
