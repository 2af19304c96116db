"""Scores a captioner on samples of training shards: captions, masks, the check of the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cc_prep.unspaced import Words
from cc_train.captioner import CaptionModel, text_only
from cc_train.data.shard_index import Entry
from cc_train.evaluation import evaluation, protocols
from cc_train.evaluation.captions.coco import Item
from cc_train.evaluation.captions.learned import Measure
from cc_train.evaluation.evaluation import Evaluation
from cc_train.evaluation.masks import written
from cc_train.evaluation.masks.samples import SampleMasks
from cc_train.evaluation.predict import check, predict
from cc_train.evaluation.rendered import faithfulness


def score(
    captioner: CaptionModel,
    entries: Sequence[Entry],
    items: Sequence[Item],
    beams: int,
    console: Console,
    *,
    path: Path | None = None,
    protocol: str | None = None,
    words: Words = "treebank",
    learned: Sequence[Measure] = (),
) -> tuple[Evaluation, dict[str, str]]:
    """Scores and captions by key of samples and their items. Raises UserError.

    Samples whose tokens another VQGAN made are refused where the captioner reads tokens.

    Args:
        path: A folder into which captions and masks are written before they are scored, so that
            they are not lost if scoring fails.
        protocol: The name of one of `protocols`.
        words: How captions are split into words.
        learned: Further measures, which need networks.
    """
    if protocol is not None:
        protocols.checked(protocol, items)  # before the captions, which take long
    if path is not None:
        written.check(path)
    check(entries, captioner.inputs, console)
    if path is not None:
        evaluation.make_folder(path)  # before the captions, which take long
    masks = SampleMasks(captioner.inputs.mask_classes, keep=path is not None)
    captions = _captions(captioner, entries, beams, False, console, masks)
    for note in masks.notes():
        console.print(note)
    if path is not None:
        evaluation.write_captions(path, items, captions)
        written.write(path, masks.pngs)
    scores = evaluation.evaluate(items, captions, protocol=protocol, words=words, learned=learned)
    swapped = _captions(captioner, entries, beams, True, console)
    scores = replace(
        scores,
        beams=beams,
        masks=masks.scores,
        faithfulness=faithfulness.count(masks.judged),
        swapped=evaluation.swap_check(items, captions, swapped, words),
        swapped_captions=swapped,
    )
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
    with text_only(captioner):
        for entry, (sample, caption) in zip(entries, tracked, strict=True):
            texts[entry.key] = caption.text
            if masks is not None:
                masks.add(entry, sample, caption)
    return texts
