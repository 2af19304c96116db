"""A captioner on the samples of training shards: captions, their scores, the check of the order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cc_prep.errors import UserError
from cc_train.captioner import CaptionModel
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.evaluation import evaluation, faithfulness, protocols
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import Item
from cc_train.evaluation.evaluation import Evaluation
from cc_train.evaluation.masks import written
from cc_train.evaluation.masks.samples import SampleMasks
from cc_train.evaluation.predict import predict


def items(shards: Sequence[str]) -> tuple[list[Entry], list[Item]]:
    """The samples that have captions, and the same as items. Raises UserError."""
    entries, captioned, _ = all_items(shards)
    return entries, captioned


def all_items(shards: Sequence[str]) -> tuple[list[Entry], list[Item], list[Item]]:
    """The samples that have captions, the same as items, and the items that have no captions.

    Raises UserError where no sample has a caption.
    """
    entries = shard_index.read(shards)
    metas = zip(shard_index.metas(entries), shard_index.facts(entries), strict=True)
    listed = coco.items([{**meta, "facts": facts} for meta, facts in metas])
    captioned = [pair for pair in zip(entries, listed, strict=True) if pair[1].references]
    if not captioned:
        raise UserError("no sample of these shards has a caption", "Give a captioned split")
    without = [item for item in listed if not item.references]
    return [entry for entry, _ in captioned], [item for _, item in captioned], without


def score(
    captioner: CaptionModel,
    entries: Sequence[Entry],
    items: Sequence[Item],
    beams: int,
    console: Console,
    place: Path | None = None,
    named: str | None = None,
) -> tuple[Evaluation, dict[str, str]]:
    """Scores and captions by key of samples and their items. Raises UserError.

    Samples whose tokens another VQGAN made are refused where the captioner reads tokens.

    place: a folder into which captions and masks are written before they are scored, so that they
    are there whatever the scores then fail at. named: a protocol of `protocols`.
    """
    if named is not None:
        protocols.checked(named, items)  # before the captions, which take long
    if place is not None:
        written.check(place)
    masks = SampleMasks(captioner.inputs.mask_classes, keep=place is not None)
    captions = _captions(captioner, entries, beams, False, console, masks)
    for note in masks.notes():
        console.print(note, highlight=False)
    if place is not None:
        coco.write(place, items, captions)
        written.write(place, masks.pngs)
    scores = evaluation.evaluate(items, captions, protocol=named)
    scores.beams = beams
    scores.masks, scores.faithfulness = masks.scores, faithfulness.count(masks.judged)
    swapped = _captions(captioner, entries, beams, True, console)
    scores.swapped = evaluation.swap_check(items, captions, swapped)
    return scores, captions


def _captions(
    captioner: CaptionModel,
    entries: Sequence[Entry],
    beams: int,
    swapped: bool,
    console: Console,
    masks: SampleMasks | None = None,
) -> dict[str, str]:
    """Captions by key of samples; `masks` counts the masks that come with them."""
    title = "captioning swapped pairs" if swapped else "captioning"
    captions = predict(captioner, entries, beams, swapped)
    tracked = track(captions, title, len(entries), console=console, transient=True)
    texts = {}
    for entry, (sample, caption) in zip(entries, tracked, strict=True):
        texts[entry.key] = caption.text
        if masks is not None:
            masks.add(entry, sample, caption)
    return texts
