"""`cc-train pack`: a trained network in small, with a card that says how good it is.

Weights become float16. What is measured is what was packed, on samples that training never saw. A
captioner becomes a folder that is used like a run; any other network becomes one file.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.storage import sha256
from cc_train import captioner as captioners
from cc_train import systems
from cc_train.data.sequence_index import expand, read_index
from cc_train.evaluation import calibrating, evaluation, fact_scores, protocol
from cc_train.training import checkpoints, runs

CARD_NAME = "README.md"
CARD = """\
# {{ name }}

{{ about }}

| | |
|---|---|
| file | `{{ file }}`, {{ "%.1f" | format(bytes / 1e6) }} MB, float16 |
| SHA-256 | `{{ digest }}` |
| parameters | {{ "{:,}".format(parameters) }} |
| trained | {{ trained }} |
| licence | MIT, like the toolkit |

## How good it is

{{ measured_on }}

| measure | value |
|---|---|
{% for measure, value in measures.items() %}
| {{ measure }} | {{ value }} |
{% endfor %}

{{ remarks }}

## Settings

```json
{{ settings_text }}
```
"""


def pack(
    run: Path, shards: Sequence[str], name: str, out: Path, calibrate: Sequence[str] = ()
) -> list[Path]:
    """Packs the best network of a run; the files or the folder. Raises UserError.

    shards: samples that training did not see, to measure on. calibrate: others, of rendered pairs,
    by which a captioner's captions get a confidence.
    """
    stored = runs.read(runs.locate(run))
    recipe = systems.recipe(stored.system)
    if hasattr(recipe, "load"):
        return [_pack_captioner(stored, shards, name, out, calibrate)]
    if calibrate:
        raise UserError(f"{run}: a run of {stored.system} is no captioner", "Leave out --calibrate")
    if not hasattr(recipe, "card"):
        raise UserError(f"{run}: a run of {stored.system} is not packed", "Give another run")
    return _pack_network(stored, recipe, shards, name, out)


def _pack_network(
    stored: runs.Run, recipe: Any, shards: Sequence[str], name: str, out: Path
) -> list[Path]:
    """One file and its card; neither gets its name before the other one is ready too."""
    samples = read_index(shards)
    tensors = recipe.compact(stored.tensors) if hasattr(recipe, "compact") else stored.tensors
    out.mkdir(parents=True, exist_ok=True)
    file, card = out / f"{name}.safetensors", out / f"{name}.md"
    with tempfile.TemporaryDirectory(dir=out) as folder:
        packed = Path(folder) / file.name
        _save(tensors, stored.settings, packed)
        text = _card(stored, name, packed, recipe.card(packed, samples))
        packed.replace(file)
    storage.write_bytes(str(card), text.encode())
    return [file, card]


def _pack_captioner(
    stored: runs.Run, shards: Sequence[str], name: str, out: Path, calibrate: Sequence[str]
) -> Path:
    """A folder with the network, what it needs besides, and the card."""
    target = out / name
    if target.exists():
        raise UserError(f"{target}: is there already", "Give another --name or --out")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        for file in stored.settings.get("files", []):
            shutil.copyfile(stored.folder / file, folder / file)
        settings = dict(stored.settings)
        captioner = _loaded(stored, settings, folder)
        if calibrate:
            _check_apart(shards, calibrate)
            settings["calibration"] = calibrating.fit(captioner, calibrate).to_json()
            captioner = _loaded(stored, settings, folder)
        entries, items = protocol.items(shards)
        scores, captions = protocol.score(captioner, entries, items, 1, Console(stderr=True))
        evaluation.write(folder / evaluation.FOLDER, scores, items, captions)
        corpus = scores.groups[evaluation.TOTAL].corpus
        measures = {**_right(scores), **{name: f"{value:.2f}" for name, value in corpus.items()}}
        if calibrate and scores.facts is not None:
            error = calibrating.error(captioner, shards)
            measures["calibration error"] = f"{100 * error:.1f} %"
        measured = {
            "about": f"A change captioner, trained by `cc-train {stored.system}`. Captions two "
            f"images: `cc-train caption {name} before.png after.png`.",
            "measured_on": f"On {len(items):,} pairs that training did not see, greedy captions."
            + _of_which(scores),
            "measures": measures,
            "remarks": "",
        }
        packed = replace(stored, settings=settings)
        text = _card(packed, name, folder / checkpoints.MODEL, measured)
        storage.write_bytes(str(folder / CARD_NAME), text.encode())
        folder.replace(target)
    return target


def _check_apart(shards: Sequence[str], calibrate: Sequence[str]) -> None:
    """Raises UserError if a file is to be calibrated and measured on."""
    shared = set(expand(shards)) & set(expand(calibrate))
    if shared:
        raise UserError(
            f"{min(shared)} is in --shards and in --calibrate", "Measure on other pairs"
        )


def _loaded(stored: runs.Run, settings: Mapping[str, Any], folder: Path) -> captioners.CaptionModel:
    """The captioner that a folder packs, with these settings."""
    _save(stored.tensors, settings, folder / checkpoints.MODEL)
    storage.write_json(str(folder / runs.SETTINGS), settings)
    return captioners.load(folder)


def _right(scores: evaluation.Evaluation) -> dict[str, str]:
    """The shares of right captions with their intervals; none where no facts are known."""
    if scores.facts is None:
        return {}
    content = scores.facts.to_json()
    shares = {fact_scores.TOLD_APART: content[fact_scores.TOLD_APART]}
    shares |= {name: share for name, share in content["shares"].items() if share["pairs"]}
    return {
        name: f"{100 * one['share']:.1f} % ({100 * one['low']:.1f} … {100 * one['high']:.1f})"
        for name, one in shares.items()
        if one is not None
    }


def _of_which(scores: evaluation.Evaluation) -> str:
    """What the shares of `_right` are over."""
    if scores.facts is None:
        return ""
    return (
        f" {scores.facts.changed.pairs:,} of the pairs changed; the shares of right types, looks, "
        "new values and exact captions are over these. In brackets, 95 % intervals."
    )


def _save(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], file: Path) -> None:
    """Tensors as float16, with the settings in the file's metadata."""
    half = {n: (t.half() if t.is_floating_point() else t).contiguous() for n, t in tensors.items()}
    save_file(half, file, metadata={"settings": json.dumps(settings, sort_keys=True)})
    file.chmod(0o644)


def _card(stored: runs.Run, name: str, file: Path, measured: Mapping[str, Any]) -> str:
    template = jinja2.Template(CARD, trim_blocks=True, lstrip_blocks=True)
    text = template.render(
        name=name,
        file=file.name,
        bytes=file.stat().st_size,
        digest=sha256(file),
        parameters=sum(tensor.numel() for tensor in stored.tensors.values()),
        trained=_trained(stored),
        settings_text=json.dumps(stored.settings, indent=1, sort_keys=True),
        **measured,
    )
    return f"{text.rstrip()}\n"


def _trained(stored: runs.Run) -> str:
    """For how many steps, and on how many pairs."""
    loop, samples = stored.settings["loop"], stored.settings.get("samples", {})
    text = f"{stored.step:,} steps of {loop['batch_size']}"
    if samples:
        total = f" of {samples['count']:,}" if "count" in samples else ""
        text += f" on {samples['train']:,}{total} pairs"
    if 0 < stored.step < (loop["steps"] or 0):
        text += f"; the best of {loop['steps']:,} steps"
    return text
