"""What `cc-train caption` does: it prints a sentence for each pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cc_prep.console import on_stderr
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import coco as reference_files
from cc_prep.media.images import ENDINGS
from cc_prep.terminal import echo
from cc_train import loading
from cc_train.captioner import Caption, CaptionModel, Change
from cc_train.data import shard_index
from cc_train.data.pair_lists import read_pairs
from cc_train.evaluation.predict import BATCH, check, predict
from cc_train.pretrained import Captioner
from cc_train.report import overlays
from cc_train.runs import run_folder
from cc_train.sharing import hub
from cc_train.training.settings import pick_device


@dataclass(frozen=True)
class Options:
    """The command's arguments and options, as its help describes them; None if not given."""

    paths: tuple[str, ...] = ()
    pairs: str | None = None
    shards: tuple[str, ...] = ()
    limit: int | None = None
    beams: int = 1
    device: str = "auto"
    as_json: bool = False
    mask: str | None = None
    overlay: str | None = None


def caption(options: Options) -> None:
    """Prints a sentence for each pair; of one pair also writes the mask. Raises UserError, and
    JobFailed for pairs of a list without readable images.
    """
    run, images = _run_and_images(options.paths)
    _check(options, images)
    beams, as_json = options.beams, options.as_json
    if options.shards:
        model = loading.load(run, pick_device(options.device))
        _caption_samples(model, options.shards, options.limit, beams, as_json)
    elif options.pairs is not None:
        listed = list(read_pairs(Path(options.pairs)))
        captioner = Captioner.from_pretrained(run, device=options.device)
        _caption_listed(captioner, listed, beams, as_json)
    else:
        assert images is not None
        one = Captioner.from_pretrained(run, device=options.device)(*images, beams=beams)
        if options.mask is not None or options.overlay is not None:
            overlays.write(one, images, options.mask, options.overlay)
        echo(_line(*images, one, as_json, many=False))


def _check(options: Options, images: tuple[str, str] | None) -> None:
    """Raises UserError for options that do not go together.

    images: before and after; None where the arguments name none.
    """
    if (options.mask is not None or options.overlay is not None) and images is None:
        raise UserError("--mask and --overlay are of one pair", "Give BEFORE and AFTER")
    overlays.check_names(options.mask, options.overlay)
    if options.shards:
        if images or options.pairs is not None:
            raise UserError("--shards and other pairs are both given", "Give one of them")
        return
    if options.limit is not None:
        raise UserError("--limit without --shards", "Give --shards too")
    if options.pairs is None and not images:
        raise UserError("no images given", "Give BEFORE and AFTER, or --pairs")
    if options.pairs is not None and images:
        raise UserError("images and --pairs are both given", "Give one of them")


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
                echo(_line(*pair, one, as_json, many=True))
                continue
            failed += 1
            echo(f"pair {number}: {one}", err=True)
            if as_json:
                row = {"before": pair[0], "after": pair[1], "error": str(one)}
                echo(json.dumps(row, ensure_ascii=False))
    if failed:
        raise JobFailed(f"{failed} of {len(listed)} pairs have no caption")


def _run_and_images(paths: tuple[str, ...]) -> tuple[str, tuple[str, str] | None]:
    """The captioner and the two images that `[RUN] [BEFORE AFTER]` name. Raises UserError."""
    if len(paths) > 3:
        raise UserError(f"{len(paths)} paths given", "Give RUN, BEFORE and AFTER, or --pairs")
    if (len(paths) == 2 and _names_a_captioner(paths[0])) or (
        len(paths) == 1 and Path(paths[0]).is_file()
    ):
        raise UserError("only one image is given", "Give RUN, BEFORE and AFTER, or --pairs")
    run = run_folder.SHIPPED if len(paths) in (0, 2) else paths[0]
    return run, (paths[-2], paths[-1]) if len(paths) > 1 else None


def _names_a_captioner(path: str) -> bool:
    """Whether `path` is no image: a folder, a captioner of the package, or an id on the hub."""
    may_be_id = hub.is_id(path) and not path.lower().endswith(ENDINGS)
    return Path(path).is_dir() or run_folder.is_shipped(path) or may_be_id


def _caption_samples(
    captioner: CaptionModel, shards: tuple[str, ...], limit: int | None, beams: int, as_json: bool
) -> None:
    """Prints the captions of samples of training shards, each beside its references."""
    entries = shard_index.read(shards)[:limit]
    by_key = {entry.key: entry for entry in entries}
    check(entries, captioner.inputs, on_stderr())
    for sample, one in predict(captioner, entries, beams):
        references = list(by_key[sample.key].captions)
        if as_json:
            entry = by_key[sample.key]
            names = reference_files.own_names(entry.image_id or entry.key, entry.meta())
            row = {"key": sample.key, **names, **_row(one), "references": references}
            echo(json.dumps(row, ensure_ascii=False))
            continue
        echo(f"{sample.key}: {_text(one)}")
        for reference in references:
            echo(f"    reference: {reference}")


def _line(before: str, after: str, caption: Caption, as_json: bool, many: bool) -> str:
    if not as_json:
        return f"{before}\t{after}\t{_text(caption)}" if many else _text(caption)
    return json.dumps({"before": before, "after": after, **_row(caption)}, ensure_ascii=False)


def _text(caption: Caption) -> str:
    """The sentence, and behind a tab its confidence where the captioner is calibrated."""
    if caption.confidence is None:
        return caption.text
    # 100 % would be certainty, which no calibration gives.
    return f"{caption.text}\t{min(99, round(100 * caption.confidence))} %"


def _row(caption: Caption) -> dict[str, Any]:
    row: dict[str, Any] = {"caption": caption.text}
    if caption.confidence is not None:
        row["confidence"] = round(caption.confidence, 4)
    if caption.changes is not None:
        row["changes"] = [_change(one) for one in caption.changes]
    if caption.beams:
        row["beams"] = [{"caption": text, "score": score} for text, score in caption.beams]
    return row


def _change(change: Change) -> dict[str, Any]:
    """A change as JSON: what is known of it, boxes as shares of the image's width and height."""
    row = {name: value for name, value in asdict(change).items() if value}
    for end in ("before", "after"):
        if end in row:
            row[end] = [round(edge, 4) for edge in row[end]]
    if "score" in row:
        row["score"] = round(row["score"], 4)
    return row
