"""Settings of a training: from a manifest's section, from a YAML file, from our defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cc_prep import manifest, settings
from cc_prep.errors import UserError
from cc_prep.settings import S

HELP = "docs/training.md"


def load(model: type[S], config: str | None, overrides: Sequence[str], section: str | None) -> S:
    """The settings of a training. Raises UserError.

    config: a manifest, by name or file, whose `section` is taken, a YAML file of settings, or, for
        a training that has no section, the name of one of ours.
        `loop.steps` in overrides beats `loop.epochs` in the file.
    """
    values, source = {}, "--set"
    if config is not None and not config.endswith((".yaml", ".yml")):
        if section is None:
            return load(model, str(_ours(config)), overrides, None)
        found = manifest.load(config)
        values, source = dict(getattr(found, section)), f"{found.source}: {section}"
    elif config is not None:
        try:
            values = settings.parse(Path(config).read_text(encoding="utf-8"), config)
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise UserError(f"{config}: {said}", "Give a YAML file with --config") from None
        source = config
        if section is not None and "layout" in values:
            values, source = dict(values.get(section) or {}), f"{config}: {section}"
    if any(given.startswith("loop.steps=") for given in overrides):
        loop = values.setdefault("loop", {})
        if isinstance(loop, dict):
            loop["epochs"] = None
    settings.override(values, overrides)
    return settings.build(model, values, source, HELP)


def _ours(name: str) -> Path:
    """The settings that come with the package under a name. Raises UserError."""
    folder = Path(__file__).parents[1] / "recipes"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UserError(f"--config {name}: no settings of that name", f"Known: {', '.join(known)}")
    return folder / f"{name}.yaml"
