"""`provenance.json`: where an output folder came from.

format, format_version   of the content of the folder
settings                 every key that decides its bytes
weights                  SHA-256 of each by name
weight_files             where each file of weights lay that has no name of ours; noted only
data                     the data of its pairs, see `pipelines/state/sources.py`
software                 versions; noted, not enforced
complete                 whether every planned shard is there with all its pairs
planned                  pairs by shard
shards                   samples, rejected, bytes, SHA-256, input digest and GPU by shard
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable
from importlib import metadata
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.tar import VERSIONS

FILE = "provenance.json"
PACKAGES = (
    "change-captioning-toolkit",
    "torch",
    "ray",
    "numpy",
    "opencv-python",
    "pillow",
    "decord",
    "av",
)
OPTIONAL = ("decord", "av")  # one of them reads videos
# A job compares its settings with those in this file before it adds to what is there.
DAMAGED = (
    "Restore it from a copy. Without one, remove the folder and run its job again: nothing else "
    "says with which settings its shards were made"
)


# A name is a part of a path, so it may lead nowhere else.
ShardName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


class _Shard(BaseModel):
    """What a provenance says of a shard."""

    model_config = ConfigDict(strict=True)

    samples: NonNegativeInt = 0
    rejected: NonNegativeInt = 0
    bytes: NonNegativeInt = 0
    sha256: str = ""
    input_digest: str = ""
    gpu: str = ""


class _Record(BaseModel):
    """The keys of a provenance that this package reads, each of which may be missing."""

    model_config = ConfigDict(strict=True)

    settings: dict[str, Any] = {}
    weights: dict[str, str] = {}
    weight_files: dict[str, str] = {}
    complete: bool = False
    planned: dict[ShardName, NonNegativeInt] = {}
    shards: dict[ShardName, _Shard] = {}


def software() -> dict[str, str]:
    """Versions of what takes part in making bytes; of decord and av those that are installed."""
    return {"python": platform.python_version(), **_versions(PACKAGES)}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package not in OPTIONAL:
                raise
    return versions


def write(folder: str, provenance: dict[str, Any]) -> None:
    """Writes a folder's provenance."""
    storage.write_json(storage.join(folder, FILE), provenance)


def planned(folder: str) -> list[str]:
    """The shards that a folder's job has planned, of any version; none without provenance.

    Raises:
        UserError: For a damaged one.
    """
    path = storage.join(folder, FILE)
    try:
        record = storage.read_json(path)
        return sorted(_Record.model_validate(record).planned)
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no provenance ({_reason(error)})", DAMAGED) from None


def read(folder: str) -> dict[str, Any] | None:
    """A folder's provenance; None where it has none.

    Raises:
        UserError: For a damaged one, and for a format of another version than this package's.
    """
    path = storage.join(folder, FILE)
    try:
        record: Any = storage.read_json(path)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})", DAMAGED) from None
    if not isinstance(record, dict) or not isinstance(record.get("settings"), dict):
        raise UserError(f"{path}: no provenance of ours", "Give a folder that cc-prep wrote")
    name, version = record.get("format"), record.get("format_version")
    if not isinstance(name, str) or name not in VERSIONS:
        raise UserError(f"{path}: no format of ours ({name})", "Give a folder that cc-prep wrote")
    if version != VERSIONS[name]:
        raise UserError(
            f"{path}: {name} of version {version}, and this package reads {VERSIONS[name]}",
            "Run the command again with another --out",
        )
    try:
        _Record.model_validate(record)
    except ValidationError as error:
        raise UserError(f"{path}: damaged ({_reason(error)})", DAMAGED) from None
    return dict(record)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def weights_at(record: dict[str, Any], name: str) -> str:
    """The name of weights of ours, or where the file that a provenance names lay."""
    return str(record.get("weight_files", {}).get(name, name))


def differences(old: Any, new: Any, prefix: str = "", *, free: Collection[str] = ()) -> list[str]:
    """Each key whose value differs, as `interpolate.depth: 3 → 2`.

    Args:
        old, new: JSON values.
        prefix: The dotted key that they are the values of.
        free: Dotted keys whose values may differ.
    """
    if prefix in free:
        return []
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [f"{prefix}: {old} → {new}"]
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name = f"{prefix}.{key}" if prefix else str(key)
        lines += differences(old.get(key), new.get(key), name, free=free)
    return lines
