"""The card of training shards: README.md beside them, for people and for the `datasets` library.

Beside it lies what `croissant` writes, for search engines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, training_shards
from cc_prep.formats.tar import DamagedShard, split_of
from cc_prep.inspect import croissant, verification
from cc_prep.manifest import HF, NONE
from cc_prep.records import NO_CHANGE

NAME = "README.md"


@dataclass(frozen=True)
class Feature:
    """A member of a sample as `datasets` types it.

    Attributes:
        depth: Of nested lists; 0 for a plain value.
    """

    name: str
    dtype: str
    text: str = ""
    depth: int = 0


def write(path: str, licence: str | None) -> list[str]:
    """Writes the card of the training shards in `path` or in its shards/, and `croissant.json`.

    The paths of both are returned.

    Args:
        licence: Of the shards, an SPDX identifier.

    Raises:
        UserError: Where there are no shards.
    """
    folder = verification.find_one(path, training_shards.FORMAT)
    record = provenance.read(folder)
    assert record is not None
    try:
        rows = training_shards.read_index(folder)
        first = training_shards.lookup(folder, rows[0]["key"]) if rows else None
    except (FileNotFoundError, DamagedShard) as error:
        raise UserError(f"{folder}: {error}", "Run cc-prep verify, or rebuild it") from None
    if first is None:
        raise UserError(f"{folder}: no samples", "Wait until the job is complete")
    settings = record["settings"]
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    text = environment.get_template("dataset_card.md.j2").render(
        name=settings.get("name", "unnamed"),
        layout=settings.get("layout", "unknown"),
        licence=licence,
        splits=_splits(rows),
        features=_features(rows, first.features, "changes" in settings),
        size=_sizes(rows),
        steps=_steps(settings),
    )
    card = storage.join(folder, NAME)
    storage.write_bytes(card, f"{text.rstrip()}\n".encode())
    return [card, croissant.write(folder, settings.get("name", "unnamed"), licence, rows, record)]


def _splits(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts of each split; training comes first."""
    of_split: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        of_split[split_of(row["shard"])].append(row)
    return [
        {
            "name": name,
            "pairs": len(pairs),
            "unchanged": sum(pair["kind"] == NO_CHANGE for pair in pairs),
            "changed": sum(pair["kind"] != NO_CHANGE for pair in pairs),
            "captions": sum(len(pair["captions"] or ()) for pair in pairs),
        }
        for name, pairs in sorted(of_split.items(), key=lambda item: (item[0] != "train", item[0]))
    ]


def _features(
    rows: Sequence[Mapping[str, Any]],
    features: training_shards.Features | None,
    has_changes: bool,
) -> list[Feature]:
    """Every member that a sample may have: masks and keyframes are not in all of them."""
    frames = max(int(row["frames"] or 0) for row in rows)
    about_frames = "frames as images, where they are stored; the first is before, the last after"
    return [
        Feature("json", "json", "ids, kind and type of change, captions, sizes, networks"),
        Feature("tokens.npy", "int16", "codebook indices of all frames [F, h, w]", 3),
        Feature("scores.npy", "float32", "what keyframes are drawn from [2, captions, F]", 3),
        *_of_backbone(features),
        Feature("mask.png", "image", "class ids of where something changed, where it is known"),
        Feature("mask_before.png", "image", "of what vanished, where it is in the image before"),
        Feature("mask_after.png", "image", "of what appeared, where it is in the image after"),
        *(
            [Feature("change.png", "image", "255 where a change was found, where one was")]
            if has_changes
            else []
        ),
        *(
            Feature(f"f{number:02d}.jpg", "image", "" if number else about_frames)
            for number in range(frames)
        ),
        Feature("__key__", "string"),
        Feature("__url__", "string"),
    ]


def _of_backbone(features: training_shards.Features | None) -> list[Feature]:
    if features is None:
        return []
    text = "features of a backbone [frames, C, h, w]"
    plain = Feature("features.npy", features.values.dtype.name, text, 4)
    if features.mirrored is None:
        return [plain]
    return [plain, Feature("mirrored.npy", plain.dtype, "the same of the mirrored frames", 4)]


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    sizes = sorted({(row["width"], row["height"]) for row in rows})
    shown = ", ".join(f"{width}×{height}" for width, height in sizes[:3])
    return shown if len(sizes) <= 3 else f"of {len(sizes)} sizes, such as {shown}"


def _steps(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a reader asks for first."""
    interpolate, keyframes = settings.get("interpolate", {}), settings.get("keyframes", {})
    steps = {
        "frames in between": f"{interpolate.get('method')}, depth {interpolate.get('depth')}",
        "keyframes": f"{keyframes.get('strategy')}, k = {keyframes.get('k')}",
    }
    for step, section in (("scores", "score"), ("tokens", "tokenize"), ("features", "features")):
        values = settings.get(section, {})
        steps[step] = str(values.get("backbone" if section == "features" else "weights", NONE))
        if steps[step] == HF:
            steps[step] += str(values["weights"])
    return steps
