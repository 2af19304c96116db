"""What the commands of `cc-train` do: train, evaluate, caption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cc_prep import storage, weights
from cc_prep.console import on_stderr
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import coco as reference_files
from cc_prep.media.images import ENDINGS
from cc_prep.words import counted
from cc_train import configs, loading, start, systems
from cc_train.captioner import Caption, CaptionModel
from cc_train.data import shard_index
from cc_train.data.pair_lists import read_pairs
from cc_train.data.shard_index import Entry
from cc_train.evaluation import evaluation, protocols, score_captioner, shard_items, signature
from cc_train.evaluation.captions import coco
from cc_train.evaluation.masks import files as mask_files
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.predict import BATCH, predict
from cc_train.pretrained import Captioner
from cc_train.report import overlays
from cc_train.sharing import hub
from cc_train.systems import System
from cc_train.training import runs
from cc_train.training.settings import pick_device
from cc_train.training.task import Request


def train(
    system: System,
    shards: tuple[str, ...],
    run: str,
    config: str | None,
    init: str | None,
    steps: int | None,
    overrides: tuple[str, ...],
    resume: str,
    valid: tuple[str, ...] = (),
) -> None:
    """Trains a system and prints the last validation. Raises UserError and JobFailed."""
    console = on_stderr()
    settings = _settings(system, config, steps, overrides, console)
    start_from = None if init is None else _start(init)
    request = Request(shards, valid, Path(run), start_from, resume, console, init_name=init)
    figures = start.train(system.name, settings, request)
    if not console.quiet:  # another rank says it
        click.echo(f"{run}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


def dry_run(
    system: System, config: str | None, steps: int | None, overrides: tuple[str, ...]
) -> None:
    """Prints what a training would take. Raises UserError."""
    settings = _settings(system, config, steps, overrides, on_stderr())
    click.echo(systems.dry_run(system.name, settings), nl=False)


def _start(init: str) -> Path:
    """Where a run, a captioner or weights lie that a training starts from. Raises UserError."""
    place = hub.locate(init)
    if not place.exists() and weights.is_known(init):
        return weights.fetch(init).path
    if not place.exists():
        raise UserError(f"--init {init}: no such file or folder", "Look at the path")
    return place


def _settings(
    system: System,
    config: str | None,
    steps: int | None,
    overrides: tuple[str, ...],
    console: Console,
) -> Any:
    changes = [*overrides, *([f"loop.steps={steps}"] if steps is not None else [])]
    model = systems.recipe(system.name).Settings
    return configs.load(model, system.name, config, changes, console)


def evaluate(
    run: str | None,
    shards: tuple[str, ...],
    predictions: tuple[str, ...],
    references: str | None,
    types: str | None,
    facts: str | None,
    predicted_only: bool,
    protocol_name: str | None,
    out: str | None,
    beams: int,
    device: str,
    as_json: bool,
    mask_predictions: str | None = None,
    mask_references: str | None = None,
    classes: int | None = None,
) -> None:
    """Scores a run on shards, or predictions against references. Raises UserError."""
    if mask_predictions is not None or mask_references is not None or classes is not None:
        of_captions = (run, references, types, facts, protocol_name)
        if shards or predictions or predicted_only or any(one is not None for one in of_captions):
            raise UserError("masks and captions are both to be scored", "Score one at a time")
        _score_mask_files(mask_predictions, mask_references, classes, out, as_json)
        return
    if protocol_name is not None:
        protocols.get(protocol_name)
    uncaptioned: list[coco.Item] = []
    if predictions:
        if run is not None or (references is None) == (not shards):
            raise UserError(
                "--predictions stand against --references or --shards, without RUN",
                "Say, cc-train evaluate --predictions FILE --references FILE",
            )
        place = Path(out or f"{predictions[0].rstrip('/')}.evaluation")
        coco.check_apart(place, [*predictions, *filter(None, [references])])
        predicted = coco.read_predictions(predictions)
        items, uncaptioned = _items(references, shards)
        items = _with_types(items, types) if types else items
        items = coco.with_facts(items, facts) if facts else items
        count = len(items)
        captions, items = coco.matched(predicted, items, predicted_only, uncaptioned)
        _say_left_out(count - len(items), len(predicted) - len(captions))
        subset = signature.PREDICTED if predicted_only and len(items) < count else signature.ALL
        scores = evaluation.evaluate(items, captions, protocol=protocol_name, subset=subset)
    else:
        run = _run_to_score(
            run, shards, references is not None or types is not None, predicted_only
        )
        place = Path(out or evaluation.default_folder(run))
        entries, items = shard_items.captioned(shards)
        items = coco.with_facts(items, facts) if facts else items
        captioner, step = _captioner_and_step(run, device)
        scores, captions = score_captioner.score(
            captioner, entries, items, beams, on_stderr(), place, protocol_name
        )
        scores.step, scores.trained_on = step, _trained_on(run, entries)
    evaluation.write(place, scores, items, captions, uncaptioned)
    click.echo(json.dumps(scores.figures(), indent=2) if as_json else evaluation.table(scores))
    click.echo(f"files: {place}", err=True)


def _items(
    references: str | None, shards: tuple[str, ...]
) -> tuple[list[coco.Item], list[coco.Item]]:
    """The pairs that have captions, and those that have none. Raises UserError."""
    if references is not None:
        return coco.read_references(references), coco.read_uncaptioned(references)
    _, captioned, without = shard_items.with_uncaptioned(shards)
    return captioned, without


def _with_types(items: Sequence[coco.Item], place: str) -> list[coco.Item]:
    """The items in the groups of a type mapping; a note says how many changed pairs it lacks."""
    typed = coco.with_types(items, place)
    without = sum(item.groups == (coco.CHANGE,) for item in typed)
    if without:
        click.echo(f"{place}: no type of {without} changed pairs", err=True)
    return typed


def _run_to_score(
    run: str | None, shards: tuple[str, ...], has_references: bool, predicted_only: bool
) -> str:
    """The run that is scored on shards. Raises UserError for options that do not go with it."""
    if run is None or not shards:
        raise UserError("nothing is given to score", "Give RUN and --shards, or --predictions")
    if has_references or predicted_only:
        raise UserError(
            "--references, --types and --predicted-only are of --predictions",
            "Leave them out: a run is scored against the captions of its --shards",
        )
    return run


def _captioner_and_step(run: str, device: str) -> tuple[CaptionModel, int]:
    """The captioner of a run, and the step of its checkpoint, 0 of an exported one."""
    stored = runs.read(hub.locate(run))
    return loading.of_run(stored, run, pick_device(device)), stored.step


def _trained_on(run: str, entries: Sequence[Entry]) -> int:
    """How many of the samples the run was trained on, as far as its folder says."""
    return runs.trained_on(hub.locate(run), [entry.key for entry in entries])


def _say_left_out(pairs: int, predictions: int) -> None:
    """pairs: how many have no prediction. predictions: how many are of pairs without captions."""
    if pairs:
        click.echo(f"left out: {counted(pairs, 'pair')} without a prediction", err=True)
    if predictions:
        count = counted(predictions, "prediction")
        click.echo(f"left out: {count} of pairs without captions", err=True)


def _score_mask_files(
    predictions: str | None,
    references: str | None,
    classes: int | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Prints the scores of masks, and writes them into `out` if it is given. Raises UserError."""
    if predictions is None or references is None:
        raise UserError(
            "--mask-predictions and --mask-references belong together", "Give both folders"
        )
    place = None if out is None else str(Path(out) / evaluation.SCORES)
    if place is not None and storage.exists(place) and not _holds_masks_alone(place):
        raise UserError(f"{place}: not the scores of masks", "Give another --out")
    figures = mask_files.score(predictions, references, classes).figures()
    if place is not None:
        storage.write_json(place, {"masks": figures})
    click.echo(json.dumps(figures, indent=2) if as_json else segmentation.table(figures))


def _holds_masks_alone(place: str) -> bool:
    """Whether a file of scores may be replaced by those of masks: it has none of captions."""
    try:
        scores = storage.read_json(place)
    except ValueError:
        return False
    return isinstance(scores, dict) and scores.keys() == {"masks"}


def caption(
    places: tuple[str, ...],
    pairs: str | None,
    shards: tuple[str, ...],
    limit: int | None,
    beams: int,
    device: str,
    as_json: bool,
    mask: str | None = None,
    overlay: str | None = None,
) -> None:
    """Prints a sentence for each pair; of one pair also writes the mask. Raises UserError."""
    run, images = _run_and_images(places)
    if (mask is not None or overlay is not None) and images is None:
        raise UserError("--mask and --overlay are of one pair", "Give BEFORE and AFTER")
    overlays.check_names(mask, overlay)
    if shards:
        if images or pairs is not None:
            raise UserError("--shards and other pairs are both given", "Give one of them")
        _caption_samples(loading.load(run, pick_device(device)), shards, limit, beams, as_json)
        return
    if limit is not None:
        raise UserError("--limit without --shards", "Give --shards too")
    if pairs is None and not images:
        raise UserError("no images given", "Give BEFORE and AFTER, or --pairs")
    if pairs is not None and images:
        raise UserError("images and --pairs are both given", "Give one of them")
    if pairs is not None:
        listed = list(read_pairs(Path(pairs)))
        _caption_listed(Captioner.from_pretrained(run, device=device), listed, beams, as_json)
        return
    assert images is not None
    one = Captioner.from_pretrained(run, device=device)(*images, beams=beams)
    if mask is not None or overlay is not None:
        overlays.write(one, images, mask, overlay)
    click.echo(_line(*images, one, as_json, many=False))


def _caption_listed(
    captioner: Captioner, listed: Sequence[tuple[str, str]], beams: int, as_json: bool
) -> None:
    """Prints a sentence for each pair of a list. A pair without readable images has its error on
    standard error, and with `as_json` a record too; raises JobFailed for such pairs at the end.
    """
    failed = 0
    for first in range(0, len(listed), BATCH):
        part = listed[first : first + BATCH]
        outcomes = captioner.caption_each(part, beams=beams)
        for number, (pair, one) in enumerate(zip(part, outcomes, strict=True), first + 1):
            if isinstance(one, Caption):
                click.echo(_line(*pair, one, as_json, len(listed) > 1))
                continue
            failed += 1
            click.echo(f"pair {number}: {one}", err=True)
            if as_json:
                row = {"before": pair[0], "after": pair[1], "error": str(one)}
                click.echo(json.dumps(row, ensure_ascii=False))
    if failed:
        raise JobFailed(f"{failed} of {len(listed)} pairs have no caption")


def _run_and_images(places: tuple[str, ...]) -> tuple[str, tuple[str, str] | None]:
    """The captioner and the two images that `[RUN] [BEFORE AFTER]` name. Raises UserError."""
    if len(places) > 3:
        raise UserError(f"{len(places)} places given", "Give RUN, BEFORE and AFTER, or --pairs")
    if (len(places) == 2 and _names_a_captioner(places[0])) or (
        len(places) == 1 and Path(places[0]).is_file()
    ):
        raise UserError("only one image is given", "Give RUN, BEFORE and AFTER, or --pairs")
    run = runs.SHIPPED if len(places) in (0, 2) else places[0]
    return run, (places[-2], places[-1]) if len(places) > 1 else None


def _names_a_captioner(place: str) -> bool:
    """Whether a place can be no image: a folder, a captioner of the package, an id on the hub."""
    may_be_id = hub.is_id(place) and not place.lower().endswith(ENDINGS)
    return Path(place).is_dir() or runs.is_shipped(place) or may_be_id


def _caption_samples(
    captioner: CaptionModel, shards: tuple[str, ...], limit: int | None, beams: int, as_json: bool
) -> None:
    """Prints the captions of samples of training shards, each beside its references."""
    entries = shard_index.read(shards)[:limit]
    by_key = {entry.key: entry for entry in entries}
    for sample, one in predict(captioner, entries, beams):
        references = list(by_key[sample.key].captions)
        if as_json:
            entry = by_key[sample.key]
            names = reference_files.own_names(entry.image_id or entry.key, entry.meta())
            row = {"key": sample.key, **names, **_row(one), "references": references}
            click.echo(json.dumps(row, ensure_ascii=False))
            continue
        click.echo(f"{sample.key}: {_text(one)}")
        for reference in references:
            click.echo(f"    reference: {reference}")


def _line(before: str, after: str, caption: Caption, as_json: bool, many: bool) -> str:
    if not as_json:
        return f"{before}\t{after}\t{_text(caption)}" if many else _text(caption)
    return json.dumps({"before": before, "after": after, **_row(caption)}, ensure_ascii=False)


def _text(caption: Caption) -> str:
    """The sentence, and behind a tab its confidence where the captioner is calibrated."""
    if caption.confidence is None:
        return caption.text
    return f"{caption.text}\t{100 * caption.confidence:.0f} %"


def _row(caption: Caption) -> dict[str, Any]:
    row: dict[str, Any] = {"caption": caption.text}
    if caption.confidence is not None:
        row["confidence"] = round(caption.confidence, 4)
    if caption.beams:
        row["beams"] = [{"caption": text, "score": score} for text, score in caption.beams]
    return row
