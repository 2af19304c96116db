"""One HTML page on a job's output: strips, penalties, reconstructions, quality, rejects.

Everything is inside the file, so it can be mailed. Captions and names come from strangers: the
template escapes all of them and the page runs no script.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import (
    changes,
    entities,
    provenance,
    rejects,
    scores,
    sequences,
    training_shards,
)
from cc_prep.formats.tar import ShardFormat
from cc_prep.inspect import found_changes, pages, stats, verification
from cc_prep.inspect.report import strips
from cc_prep.inspect.report.strips import STRIP_PX, Strip
from cc_prep.manifest import NONE
from cc_prep.progress import Progress, no_progress
from cc_prep.redaction import values_without_folders, without_folders

MAX_REJECTS = 200
# Figures over some thousand sequences are as good as over all, and come in a minute.
MAX_LOOKED_AT = 2000

T = TypeVar("T")


def write(path: str, target: str, samples: int = 24, progress: Progress = no_progress) -> int:
    """Writes the page on the content of `path` to `target`; returns the number of strips.

    Strips are spread evenly over the pairs. Raises UserError and DamagedShard.
    """
    folders = {kind.name: folder for folder, kind in verification.find(path)}
    sequence_folder, score_folder, token_folder = (
        folders.get(kind.name) for kind in (sequences.FORMAT, scores.FORMAT, training_shards.FORMAT)
    )
    main = sequence_folder or token_folder
    if main is None:
        remedy = "Give the folder of the sequences too"
        raise UserError(f"{path}: neither sequences nor training shards", remedy)
    record = values_without_folders(provenance.read(main) or {})
    decode, notice = _decoder(token_folder)
    page_strips, tables = [], _Tables(score_folder, token_folder, decode)
    findings = _Findings(folders)
    shards_and_strips = _chosen(main, record, samples, sequence_folder is not None)
    for done, (shard, strip) in enumerate(shards_and_strips, 1):
        page_strips.append(findings.completed(tables.completed(strip, shard), shard))
        progress(done, len(shards_and_strips))
    figures = {
        "sequences": stats.sequence_figures(sequence_folder, MAX_LOOKED_AT)
        if sequence_folder
        else None,
        "scores": stats.score_figures(score_folder, MAX_LOOKED_AT) if score_folder else None,
        "tokens": stats.token_figures(token_folder, MAX_LOOKED_AT) if token_folder else None,
    }
    if figures["tokens"] and "codes" not in figures["tokens"]:
        figures["tokens"] = None
    rejected = [
        replace(reject, message=without_folders(reject.message))
        for folder in folders.values()
        for reject in rejects.read(folder)
    ]
    total = sum(facts["samples"] for facts in record["shards"].values())
    page = (
        pages.environment()
        .get_template("page.html.j2")
        .render(
            title=f"{record['settings']['name']}: {total:,} sequences",
            record=record,
            weights=_weights(list(folders.values())),
            total=total,
            figures=figures["sequences"],
            scores=figures["scores"],
            tokens=figures["tokens"],
            changes=_change_figures(folders),
            motion=_bars(figures["sequences"]["motion in px"]) if figures["sequences"] else [],
            chosen=_bars(figures["scores"]["keyframes by frame"]) if figures["scores"] else [],
            strips=page_strips,
            missing=any(None in strip.frames for strip in page_strips),
            notice=notice,
            rejected=rejected[:MAX_REJECTS],
            rejected_count=len(rejected),
            strip_px=STRIP_PX,
        )
    )
    storage.write_bytes(storage.named(target), page.encode("utf-8", "replace"))
    return len(page_strips)


def _chosen(
    folder: str, record: dict[str, Any], most: int, has_frames: bool
) -> list[tuple[str, Strip]]:
    """At most `most` pairs with their shards, evenly spread, reading only shards that hold them."""
    counts = {name: facts["samples"] for name, facts in sorted(record["shards"].items())}
    total = sum(counts.values())
    numbers = {i * total // most for i in range(most)} if total > most else set(range(total))
    chosen_strips: list[tuple[str, Strip]] = []
    start = 0
    for name, count in counts.items():
        inside = {i - start for i in numbers if start <= i < start + count}
        start += count
        if not inside:
            continue
        path = storage.join(folder, sequences.FORMAT.file(name))
        new_strips = (
            map(strips.of_sequence, _at(sequences.read(path), inside))
            if has_frames
            else map(strips.of_training_sample, _at(training_shards.read(path), inside))
        )
        chosen_strips += [(name, strip) for strip in new_strips]
    return chosen_strips


def _at(samples: Iterator[T], numbers: set[int]) -> Iterator[T]:
    """The samples of these numbers; those after the last are not read."""
    for number, sample in enumerate(itertools.islice(samples, max(numbers) + 1)):
        if number in numbers:
            yield sample


class _Tables:
    """Scores and the index of samples, each read once for all strips of a shard.

    Args:
        decode: Frames of tokens; None where that cannot be.
    """

    def __init__(
        self,
        score_folder: str | None,
        token_folder: str | None,
        decode: Callable[[np.ndarray], np.ndarray] | None,
    ) -> None:
        self.score_folder, self.token_folder, self.decode = score_folder, token_folder, decode
        self.shard, self.rows = "", dict[str, scores.Row]()
        index = training_shards.read_index(token_folder) if token_folder is not None else []
        self.index_rows = {row["key"]: row for row in index}

    def completed(self, strip: Strip, shard: str) -> Strip:
        """The strip with its scores and what its tokens decode to, where they are there."""
        rows = self._rows_of(shard)
        if strip.key in rows:
            strip = strips.with_scores(strip, rows[strip.key])
        if self.token_folder is None or strip.key not in self.index_rows:
            return strip
        sample = training_shards.read_row(self.token_folder, self.index_rows[strip.key])
        rebuilt = self.decode(sample.tokens) if self.decode is not None else None
        return strips.with_tokens(strip, sample, rebuilt)

    def _rows_of(self, shard: str) -> dict[str, scores.Row]:
        if self.score_folder is not None and shard != self.shard:
            path = storage.join(self.score_folder, scores.FORMAT.file(shard))
            self.rows = dict(scores.read_shard(path)) if storage.exists(path) else {}
            self.shard = shard
        return self.rows


class _Findings:
    """Found changes and entities, each read once for all strips of a shard."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders, self.shard = folders, ""
        self.changes: dict[str, changes.StoredChange] = {}
        self.entities: dict[str, dict[str, Any]] = {}

    def completed(self, strip: Strip, shard: str) -> Strip:
        """The strip with what was found in its pair, where something was looked for."""
        if shard != self.shard:
            self.shard = shard
            path = self._path(changes.FORMAT, shard)
            self.changes = {} if path is None else {one.key: one for one in changes.read(path)}
            path = self._path(entities.FORMAT, shard)
            self.entities = {} if path is None else dict(entities.read_shard(path))
        if strip.key in self.changes:
            strip = strips.with_change(strip, self.changes[strip.key].change)
        if strip.key in self.entities:
            listed = entities.decode(self.entities[strip.key])
            names = tuple(f"{entity.phrase} {entity.score:.2f}" for entity in listed)
            strip = replace(strip, entities=names)
        return strip

    def _path(self, kind: ShardFormat, shard: str) -> str | None:
        if kind.name not in self.folders:
            return None
        path = storage.join(self.folders[kind.name], kind.file(shard))
        return path if storage.exists(path) else None


def _change_figures(folders: dict[str, str]) -> dict[str, Any]:
    """The figures of found changes by name, as the page's table shows them."""
    if changes.FORMAT.name not in folders:
        return {}
    figures = found_changes.figures(folders[changes.FORMAT.name], MAX_LOOKED_AT)
    rows: dict[str, Any] = {}
    for name, value in figures.items():
        rows |= value if isinstance(value, dict) and "IoU of changed pairs" in value else {}
        if name == "marked share by kind":
            rows |= {f"marked of {kind.replace('_', ' ')}": share for kind, share in value.items()}
        elif not isinstance(value, dict):
            rows[name] = value
    return rows


def _decoder(
    folder: str | None,
) -> tuple[Callable[[np.ndarray], np.ndarray] | None, str]:
    """What turns tokens into frames, if the weights that made them are here; else why not."""
    if folder is None:
        return None, ""
    from cc_prep.steps.tokenization import Tokenizer
    from cc_prep.weights import networks

    record = provenance.read(folder) or {}
    settings = record["settings"]["tokenize"]
    if settings["weights"] == NONE:
        return None, "The shards hold no tokens."
    try:
        network, file, _ = networks.vqgan(
            provenance.weights_at(record, settings["weights"]), settings["config"]
        )
    except UserError as error:
        return None, f"No reconstructions: {without_folders(error.what)}."
    if record["weights"].get(file.name) != file.sha256:
        name = Path(str(file.path)).name
        return None, f"No reconstructions: {name} here is not the file the tokens were made with."
    return Tokenizer(network).reconstruct, ""


def _weights(folders: list[str]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for folder in folders:
        digests |= (provenance.read(folder) or {}).get("weights", {})
    return digests


def _bars(histogram: dict[str, int]) -> list[dict[str, Any]]:
    top = max([*histogram.values(), 1])
    return [
        {"name": name, "count": count, "share": 100 * count / top}
        for name, count in histogram.items()
    ]
