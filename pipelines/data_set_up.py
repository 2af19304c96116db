"""What `cc-prep split` and `cc-prep references` do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from cc_prep import datasets, manifest, storage
from cc_prep.datasets import splitting
from cc_prep.datasets.layouts import folders, table
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import coco
from cc_prep.formats.sequences import facts
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines.commands import print_tree, progress_bar

# Layouts that may come without splits.
WITHOUT: dict[str, Callable[[Manifest], list[ImagePair]]] = {
    "table": table.every_pair,
    "folders": folders.every_pair,
}


def split(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    shares: str,
    column: str | None,
    pattern: str | None,
    seed: int,
    distance: str,
    out: str,
) -> None:
    """Writes a split file. Raises UserError, and JobFailed where images cannot be read."""
    found = manifest.load(dataset, [*overrides, "split_file=null"], root)
    if found.layout not in WITHOUT:
        raise UserError(f"{dataset}: {found.layout} comes with its splits", "Use them as they are")
    datasets.reader(found)
    pairs = WITHOUT[found.layout](found)
    datasets.check_inside(found, pairs)
    if len({pair.split for pair in pairs}) > 1:
        raise UserError(f"{dataset} has splits already", "Drop its split column or its folders")
    groups = _groups(found, pairs, column, pattern)
    with progress_bar("hashing images") as progress:
        made = splitting.split(
            found, pairs, _shares(shares), seed, _distance(distance), groups, progress
        )
    grouped_by = column or pattern
    about = {**made.about, **({"grouped by": grouped_by} if grouped_by else {})}
    target = storage.resolve(found.root, out)
    storage.write_json(target, {"about": about, "splits": made.splits})
    print_tree({name: value for name, value in about.items() if value is not None})
    click.echo(f"{target}; name it in the manifest: split_file: {out}")
    for fault in made.faults:
        click.echo(f"fault: {fault}")
    if made.faults:
        raise JobFailed(f"{dataset}: {len(made.faults)} images were not compared")


def _shares(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            value = 0.0
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or not 0 < value < float("inf"):
            raise UserError(f"--shares {text}", "Say, --shares train=85,val=5,test=10")
        found[name] = value
    return found


def _distance(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) > 64:
        raise UserError(f"--distance {text}", "Give 0 to 64 bits, or none")
    return int(text)


def _groups(
    found: Manifest, pairs: list[ImagePair], column: str | None, pattern: str | None
) -> dict[str, str]:
    if column is not None and pattern is not None:
        raise UserError("--group and --group-by are both given", "Give one of them")
    if column is not None:
        if found.layout != "table":
            raise UserError(f"--group {column}: {found.layout} has no columns", "Use --group-by")
        return table.groups(found, column)
    if pattern is None:
        return {}
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--group-by {pattern}: {error}", "Give a regular expression") from None
    matches = {pair.id: compiled.search(pair.before) for pair in pairs}
    missing = [id for id, match in matches.items() if match is None]
    if missing:
        raise UserError(
            f"--group-by {pattern}: finds nothing in {len(missing)} paths, such as that of "
            f"{missing[0]!r}",
            "Let it match every path of before",
        )
    return {id: m[1] if m.re.groups else m[0] for id, m in matches.items() if m is not None}


def references(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    out: str,
) -> None:
    """Writes a reference file. Raises UserError."""
    found = manifest.load(dataset, overrides, root)
    listed = [facts(p) for s in splits or found.splits for p in datasets.pairs(found, s)]
    written: dict[str, Any] = coco.references(listed)
    if not written["images"]:
        raise UserError(f"{dataset}: no captions in it", "Give a split that has some")
    storage.write_json(out, written)
    click.echo(f"{out}: {len(written['images']):,} pairs, {len(written['annotations']):,} captions")
