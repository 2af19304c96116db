"""What `cc-train evaluate`, `caption` and `import-procap` do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

from cc_prep import storage
from cc_prep.errors import RejectedPair, UserError
from cc_prep.media import images as image_files
from cc_train.captioner import Caption, Captioning
from cc_train.data import shard_index
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import Item
from cc_train.training.loop import Loop, pick_device

SIDES = ("before", "after")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def evaluate(
    run: str | None,
    shards: tuple[str, ...],
    predictions: tuple[str, ...],
    references: str | None,
    types: str | None,
    predicted_only: bool,
    out: str | None,
    beams: int,
    device: str,
    as_json: bool,
) -> None:
    """Scores a run on shards, or predictions against references. Raises UserError."""
    if predictions:
        if run is not None or (references is None) == (not shards):
            raise UserError(
                "--predictions stand against --references or --shards, without RUN",
                "Say, cc-train evaluate --predictions FILE --references FILE",
            )
        given = coco.read_predictions(predictions)
        items = coco.read_references(references) if references else _items(shards)[1]
        items = coco.with_types(items, types) if types else items
        said, kept = coco.matched(given, items, predicted_only)
        if len(kept) < len(items):
            click.echo(f"{len(items) - len(kept)} pairs without a prediction left out", err=True)
        items = kept
        place = Path(out or f"{predictions[0].rstrip('/')}.evaluation")
        found = evaluation.evaluate(items, said)
    else:
        if run is None or not shards:
            raise UserError("what is to be scored?", "Give RUN and --shards, or --predictions")
        place = Path(out or f"{run}/{evaluation.FOLDER}")
        entries, items = _items(shards)
        captioning = Captioning(Path(run), pick_device(Loop(device=device)))  # type: ignore[arg-type]
        console = Console(stderr=True)
        said = _captions(captioning, entries, beams, False, console)
        # Whatever the scores then say or fail at, the captions are there.
        coco.write(place, items, said)
        found = evaluation.evaluate(items, said)
        swapped = _captions(captioning, entries, beams, True, console)
        found.swapped = evaluation.swap_check(items, said, swapped)
    evaluation.write(place, found, items, said)
    click.echo(json.dumps(found.figures(), indent=2) if as_json else evaluation.table(found))
    click.echo(f"files: {place}", err=True)


def _items(shards: tuple[str, ...]) -> tuple[list[shard_index.Entry], list[Item]]:
    """Samples that have captions, and the same as items."""
    entries = shard_index.read(shards)
    metas = zip(entries, shard_index.metas(entries), strict=True)
    items = coco.items([{**meta, "key": entry.key} for entry, meta in metas])
    kept = [(entry, item) for entry, item in zip(entries, items, strict=True) if item.references]
    if not kept:
        raise UserError("no sample of these shards has a caption", "Give a captioned split")
    return [entry for entry, _ in kept], [item for _, item in kept]


def _captions(
    captioning: Captioning,
    entries: list[shard_index.Entry],
    beams: int,
    swapped: bool,
    console: Console,
) -> dict[str, str]:
    what = "captioning swapped pairs" if swapped else "captioning"
    found = captioning.of_samples(entries, beams, swapped)
    shown = track(found, what, len(entries), console=console, transient=True)
    return {key: said.text for key, said in shown}


def caption(
    run: str,
    images: tuple[str, ...],
    pairs: str | None,
    beams: int,
    device: str,
    as_json: bool,
) -> None:
    """Prints a sentence a pair. Raises UserError."""
    if pairs is None and len(images) != 2:
        raise UserError(f"{len(images)} images given", "Give BEFORE and AFTER, or --pairs")
    if pairs is not None and images:
        raise UserError("images and --pairs are both given", "Give one of them")
    listed = [(images[0], images[1])] if pairs is None else list(read_pairs(Path(pairs)))
    captioning = Captioning(Path(run), pick_device(Loop(device=device)))  # type: ignore[arg-type]
    for start in range(0, len(listed), 32):
        part = listed[start : start + 32]
        loaded = [_load(before, after, captioning.image_size) for before, after in part]
        for (before, after), said in zip(part, captioning.of_images(loaded, beams), strict=True):
            click.echo(_shown(before, after, said, as_json, len(listed) > 1))


def _shown(before: str, after: str, said: Caption, as_json: bool, many: bool) -> str:
    if not as_json:
        return f"{before}\t{after}\t{said.text}" if many else said.text
    beams = [{"caption": text, "score": score} for text, score in said.beams]
    row: dict[str, Any] = {"before": before, "after": after, "caption": said.text}
    return json.dumps({**row, "beams": beams} if beams else row, ensure_ascii=False)


def _load(before: str, after: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    height, width = size
    loaded = []
    for place in (before, after):
        try:
            loaded.append(image_files.read(place, height if height == width else None))
        except RejectedPair as error:
            raise UserError(f"{place}: {error}", "Give two images") from None
    first, second = (cv2.resize(i, (width, height), interpolation=cv2.INTER_AREA) for i in loaded)
    return first, second


def read_pairs(place: Path) -> Iterator[tuple[str, str]]:
    """Paths of before and after, from a list or a folder. Raises UserError."""
    if place.is_dir():
        yield from _of_folder(place)
        return
    try:
        text = place.read_text(encoding="utf-8-sig")
        if place.suffix == ".jsonl":
            rows: list[Any] = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = list(csv.DictReader(io.StringIO(text)))
        found = [tuple(str(place.parent / row[side]) for side in SIDES) for row in rows]
    except (OSError, ValueError) as error:
        raise UserError(f"{place}: {error}", "Give a CSV or JSON-lines file") from None
    except (KeyError, TypeError):
        raise UserError(f"{place}: no columns before and after", "Name the columns so") from None
    if not found:
        raise UserError(f"{place}: lists no pairs", "Add a line a pair below the header")
    yield from ((before, after) for before, after in found)


def _of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    sides = [folder / side for side in SIDES]
    if all(side.is_dir() for side in sides):
        names = [
            {p.stem: p for p in side.iterdir() if p.suffix.lower() in IMAGES} for side in sides
        ]
    else:
        there = [path for path in folder.iterdir() if path.suffix.lower() in IMAGES]
        names = [
            {p.stem[: -len(side) - 1]: p for p in there if p.stem.endswith(f"_{side}")}
            for side in SIDES
        ]
    alone = names[0].keys() ^ names[1].keys()
    if alone or not names[0]:
        what = f"{min(alone)} has no counterpart" if alone else "no pairs in it"
        raise UserError(
            f"{folder}: {what}", "before/NAME and after/NAME, or NAME_before.* and NAME_after.*"
        )
    for name in sorted(names[0]):
        yield str(names[0][name]), str(names[1][name])


def import_procap(
    file: str, run: str, word2idx: str | None, heads: int, length: int, config: str | None
) -> None:
    """Makes a run of a published checkpoint. Raises UserError."""
    from cc_train.systems.procap import import_checkpoint

    for line in import_checkpoint.make_run(file, Path(run), word2idx, heads, length, config):
        click.echo(line)
    if storage.exists(f"{run}/vocabulary.json"):
        click.echo(f"Try: cc-train caption {run} before.png after.png")
