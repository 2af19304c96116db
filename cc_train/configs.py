"""Settings of a training: from a manifest's section, from a YAML file, from our recipes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cc_prep import manifest, settings, storage, text_files
from cc_prep.errors import UserError
from cc_prep.settings import S
from cc_train import systems

RECIPES = Path(__file__).parent / "recipes"


def load(
    model: type[S], system: str, config: str | None, overrides: Sequence[str], console: Console
) -> S:
    """The settings of a training. Raises UserError.

    Args:
        config: The name of one of our recipes; or a manifest, by name or file, whose section
            `train.<system>` is taken; or a YAML file of settings. What they leave out is the
            system's default. `loop.steps` in overrides beats `loop.epochs` in the file, and
            `loop.steps` in the file beats the default's epochs; `warmup_steps` and `warmup_ratio`
            likewise.
    """
    values, source = _read(config, system, console) if config is not None else ({}, "--set")
    _prefer_absolute(values, [])
    settings.override(values, overrides)
    _prefer_absolute(values, overrides)
    return settings.build(model, values, source, f"cc-train {system} --settings", overrides)


def _prefer_absolute(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Clears what would beat a number of steps that is written at the same place, or nearer."""
    loop = values.get("loop")
    if not isinstance(loop, dict):
        return
    changed = {change.partition("=")[0] for change in overrides}
    for steps, relative in (
        ("steps", "epochs"),
        ("warmup_steps", "warmup_ratio"),
        ("decay_steps", "decay_epochs"),
    ):
        if f"loop.{steps}" in changed and f"loop.{relative}" not in changed:
            loop[relative] = None
        elif steps in loop:
            loop.setdefault(relative, None)


def recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _read(config: str, system: str, console: Console) -> tuple[dict[str, Any], str]:
    """Values and their location."""
    if config in recipes():
        config = str(RECIPES / f"{config}.yaml")
    if not config.endswith((".yaml", ".yml")):
        loaded = manifest.load(config, other_names=recipes())
        return _section(loaded.train, loaded.source, system, console)
    try:
        data = storage.read_bytes(config)
    except OSError as error:
        raise UserError(f"{config}: {error.strerror}", "Give a YAML file with --config") from None
    values = settings.parse(text_files.decode(data, config), config)
    if "layout" not in values:
        return values, config
    return _section(values.get("train") or {}, config, system, console)


def _section(
    sections: Any, source: str, system: str, console: Console
) -> tuple[dict[str, Any], str]:
    """A system's section of a manifest's `train`."""
    if not isinstance(sections, dict):
        raise UserError(f"{source}: train is no mapping", "Give a section for each system")
    for name in sections:
        if name not in systems.names():
            near = difflib.get_close_matches(str(name), systems.names(), 1)
            known = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(systems.names())}"
            raise UserError(f"{source}: train.{name}: no system of that name", known)
    if system not in sections:
        note = f"{source} has no train.{system}: the defaults are used"
        console.print(note)
    section = sections.get(system) or {}
    if not isinstance(section, dict):
        remedy = f"See cc-train {system} --settings"
        raise UserError(f"{source}: train.{system} is no mapping", remedy)
    return dict(section), f"{source}: train.{system}"
