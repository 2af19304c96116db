"""All settings of all systems with their defaults and bounds, as `settings.txt` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from rich.console import Console

from cc_prep.errors import UserError
from cc_train import configs, systems
from cc_train.training.settings import Loop

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


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for n in SYSTEMS for line in lines(settings(n), n)))
