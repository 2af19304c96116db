"""All settings of all systems with their defaults and bounds, as `settings.txt` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from rich.console import Console

from cc_prep import settings as section_files
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train import configs, systems
from cc_train.training.settings import Loop
from tests.commands import cc_train

SYSTEMS = ("vqgan", "clip4idc", "pair", "chain", "scorer", "mllm", "stage1", "stage2")
LISTED = Path(__file__).with_name("settings.txt")
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "multiple_of": "multiple of",
          "min_length": "at least so many:", "max_length": "at most so many:"}  # fmt: skip


def lines(model: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from lines(value, f"{prefix}.{name}")
            continue
        bounds = [
            f"{sign} {getattr(rule, attribute)}"
            for rule in field.metadata
            for attribute, sign in BOUNDS.items()
            if getattr(rule, attribute, None) is not None
        ]
        yield f"{prefix}.{name} = {value}" + (f"  ({', '.join(bounds)})" if bounds else "")


def settings(name: str) -> BaseModel:
    defaults = systems.recipe(name).Settings()
    assert isinstance(defaults, BaseModel)
    return defaults


def test_settings_are_as_listed() -> None:
    """Keeps away: a default or a bound that changes unnoticed, and with it everyone's next run.

    Where a change is meant, the list is written anew: python -m tests.unit.cc_train.test_settings
    """
    current = [line for name in SYSTEMS for line in lines(settings(name), name)]
    assert current == LISTED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SYSTEMS)
def test_defaults_are_within_their_own_bounds(name: str) -> None:
    """Keeps away: a default that the settings file of the run itself may not have."""
    one = settings(name)
    assert type(one).model_validate(one.model_dump()) == one
    assert type(one).model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes(seed: int) -> None:
    """Keeps away: numpy's or torch's traceback after the shards have been read."""
    with pytest.raises(UserError, match="seed") as caught:
        configs.load(Loop, "vqgan", None, [f"seed={seed}"], Console(quiet=True))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("betas", ["[0.9, 1]", "[-0.1, 0.9]", "[0.9]"])
def test_betas_that_no_optimiser_takes(betas: str) -> None:
    """Keeps away: torch's traceback after all shards were read, or an average that stays 0."""
    with pytest.raises(UserError, match="betas") as caught:
        configs.load(Loop, "vqgan", None, [f"betas={betas}"], Console(quiet=True))
    assert "\n" not in str(caught.value)


def sections(model: type[BaseModel], key: str = "") -> Iterator[str]:
    """The dotted keys of all sections below a model, those that may be null among them."""
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield f"{key}{name}."
                yield from sections(kind, f"{key}{name}.")


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_unknown_key_of_every_section(name: str) -> None:
    """Keeps away: an AttributeError for a typo below a section that may be null."""
    model = type(settings(name))
    keys = ["", *sections(model)]
    assert name not in ("stage2", "scorer", "clip4idc") or "facts." in keys
    for key in keys:
        with pytest.raises(UserError, match=f"--set {key}typo: unknown key"):
            configs.load(model, name, None, [f"{key}typo=1"], Console(quiet=True))


def test_a_key_below_a_section_that_the_file_says_is_null(tmp_path: Path) -> None:
    """Keeps away: "comparison has no keys below it", where a recipe of ours has it null."""
    file = tmp_path / "mine.yaml"
    file.write_text("comparison: null")
    model = type(settings("stage2"))
    chosen = configs.load(model, "stage2", str(file), ["comparison.heads=8"], Console(quiet=True))
    assert chosen.comparison.heads == 8


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_setting_has_a_meaning(name: str) -> None:
    """Keeps away: a setting that a user can only find in the code."""

    def without(kind: type[Section], above: str = "") -> Iterator[str]:
        meanings = section_files.meanings_of(kind)
        for key, field in kind.model_fields.items():
            if not meanings.get(key, "").endswith("."):
                yield above + key
            inner = section_files.section(field)
            yield from () if inner is None else without(inner, f"{above}{key}.")

    assert list(without(systems.recipe(name).Settings)) == []


CHANGES = {
    "stage2": ("comparison={heads: 8}", "facts={}", "pairs_per_scene=3", "network={width: 128}"),
    "scorer": ("facts={look: 0.25}", "pairs_per_scene=2", "words=characters"),
    "mllm": ("prompt.text='say: #1'", "lora.targets='.*[qv]_proj'", "attention.layer=-2"),
    "vqgan": ("network.attention=[1, 2]", "loop.loggers=[wandb]", "loop.betas=[0, 1e-5]"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_settings_that_are_printed_can_be_given_back(name: str, tmp_path: Path) -> None:
    """Keeps away: a printed file that another training comes of, or that is refused."""
    model, quiet = systems.recipe(name).Settings, Console(quiet=True)
    for changes in ((), CHANGES.get(name, ("loop.learning_rate=3e-5",))):
        done = cc_train(name, "--settings", *(part for one in changes for part in ("--set", one)))
        assert done.returncode == 0, done.stderr
        file = tmp_path / "mine.yaml"
        file.write_text(done.stdout)
        expected = configs.load(model, name, None, changes, quiet)
        assert configs.load(model, name, str(file), [], quiet) == expected


def test_what_is_printed_of_a_setting() -> None:
    """Keeps away: a range that only the code has, and a section of which no key is known."""
    lines = cc_train("stage2", "--settings").stdout.splitlines()
    length = lines.index("  length: 24")
    assert lines[length - 1].endswith("(whole number ≥ 3)")
    comparison = lines.index("comparison: null")
    assert "#   heads: 4" in lines[comparison:]


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for n in SYSTEMS for line in lines(settings(n), n)))
