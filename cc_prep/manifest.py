"""A manifest: everything a run depends on, read from YAML and checked before any work.

`load("clevr", ["interpolate.depth=2"])` finds `manifests/clevr.yaml` below the current folder, or
the one that came with the package, or takes a path. Every mistake is a `UserError` that names
file, key and remedy.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cc_prep.errors import UserError

Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the manifest: unknown keys are errors, values never change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Video(Section):
    """How the `video` layout makes pairs: frames `gap` apart, a new pair every `stride` frames."""

    gap: Positive = 8
    stride: Positive = 8
    max_pairs_per_video: Positive | None = None


class Interpolate(Section):
    """How frames are interpolated; every key changes the bytes that are written."""

    method: Literal["rife", "dis", "dissolve"] = "rife"
    weights: str = "rife-v4.0"
    depth: Annotated[int, Field(ge=1, le=6)] = 3
    pad_multiple: Annotated[int, Field(ge=32, multiple_of=32)] = 32
    refine: bool = False
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Positive = 2
    pairs_per_batch: Positive | None = None
    codec: Literal["png", "jpg", "webp"] = "png"
    quality: Annotated[int, Field(ge=1, le=100)] = 95
    keep_truth: bool = True


class Shards(Section):
    """How pairs are grouped into shards."""

    pairs_per_shard: Positive = 256
    shuffle_seed: int | None = 0


class Manifest(Section):
    """A data set and the settings of every step."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    layout: Literal["clevr_change", "video"]
    root: str
    splits: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("train", "val", "test")
    image_size: Annotated[int, Field(ge=16, le=8192)] | None = 224
    video: Video = Video()
    interpolate: Interpolate = Interpolate()
    shards: Shards = Shards()
    source: str = Field(default="", exclude=True)

    @field_validator("splits")
    @classmethod
    def _plain_splits(cls, splits: tuple[str, ...]) -> tuple[str, ...]:
        for split in splits:
            if not re.fullmatch(r"[A-Za-z0-9_]+", split):
                raise ValueError(f"{split!r}: a split is named in letters, digits and _")
        if len(set(splits)) < len(splits):
            raise ValueError("a split is named twice")
        return splits


def load(dataset: str, overrides: Sequence[str] = (), root: str | None = None) -> Manifest:
    """The manifest of `dataset` (a name or a YAML file) with `key=value` overrides applied.

    Raises UserError.
    """
    source, text = _find(dataset)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{source}{line}: {what}", "Mend the YAML there") from None
    if not isinstance(values, dict):
        raise UserError(f"{source}: holds no keys", "See manifests/README.md for them")
    values = _expand(values, source)
    for override in overrides:
        _apply(values, override)
    if root is not None:
        values["root"] = root
    if not isinstance(values.get("name"), str):
        values["name"] = Path(source).stem if "name" not in values else values["name"]
    try:
        return Manifest(**{**values, "source": source})
    except ValidationError as error:
        raise _explained(source, error) from None


def names() -> list[str]:
    """Names of the manifests that can be given as DATASET."""
    found = {path.stem for path in Path("manifests").glob("*.yaml")}
    return sorted(found | {p.name[:-5] for p in _packaged().iterdir() if p.name.endswith(".yaml")})


def _packaged() -> Any:
    return resources.files("manifests")


def _find(dataset: str) -> tuple[str, str]:
    if dataset.endswith((".yaml", ".yml")):
        candidates: list[Any] = [Path(dataset)]
    else:
        candidates = [Path("manifests") / f"{dataset}.yaml", _packaged() / f"{dataset}.yaml"]
    for candidate in candidates:
        if candidate.is_file():
            try:
                return str(candidate), candidate.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise UserError(f"{candidate}: is not UTF-8 text", "Save it as UTF-8") from None
    known = names()
    near = difflib.get_close_matches(dataset, known, 1)
    remedy = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(known)}, or a YAML file"
    raise UserError(f"no manifest {candidates[0]}", remedy)


def _expand(value: Any, source: str) -> Any:
    """`${NAME}` and `${NAME:-default}` from the environment, in every string."""
    if isinstance(value, dict):
        return {key: _expand(item, source) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, source) for item in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        found = os.environ.get(name) or default
        if found is None:
            raise UserError(f"{source}: ${{{name}}} is not set", f"Set {name} in the environment")
        return found

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", variable, value)


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"--set {override}: not key=value", "Say, --set interpolate.depth=2")
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {override}: {parent} has no keys below it", "Drop the dot")
    try:
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {override}: the value is not YAML", "Quote it") from None


def _explained(source: str, error: ValidationError) -> UserError:
    """The first mistake of a ValidationError in words."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    key = ".".join(place) or "(the whole file)"
    if first["type"] == "extra_forbidden":
        section: Any = Manifest
        for part in place[:-1]:
            section = section.model_fields[part].annotation
        known = [name for name in section.model_fields if name != "source"]
        near = difflib.get_close_matches(place[-1], known, 1)
        remedy = f'Did you mean "{near[0]}"?' if near else f"Known here: {', '.join(known)}"
        return UserError(f"{source}: {key}: unknown key", remedy)
    if first["type"] == "missing":
        return UserError(f"{source}: {key}: missing", "Add it; see manifests/README.md")
    said = first["msg"].removeprefix("Value error, ")
    return UserError(
        f"{source}: {key}: {said[0].lower()}{said[1:]}, not {first['input']!r}",
        "See manifests/README.md",
    )
