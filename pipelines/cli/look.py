"""The commands that look at a job's output: verify, stats, report, card, status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed, UserError
from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from cc_prep.words import counted
from pipelines.cli.options import json_option
from pipelines.cli.printing import damage_is_a_user_error, print_tree

if TYPE_CHECKING:
    from pipelines.state.journal import Done


@click.command()
@click.argument("path")
@json_option
def verify(path: str, as_json: bool) -> None:
    """Checks a job's output byte by byte against its provenance.

    The exit code is 1 on any fault.

    \b
    Example:
      cc-prep verify out/clevr
    """
    from cc_prep.inspect import verification

    faults: dict[str, list[str]] = {}
    for folder, kind in verification.find(path):
        with progress_bar(f"verifying {kind.folder}") as progress:
            faults[folder] = verification.verify(folder, kind, progress)
    every_fault = [fault for of_folder in faults.values() for fault in of_folder]
    if as_json:
        folders = ", ".join(faults)
        echo(json.dumps({"folder": folders, "faults": every_fault}, ensure_ascii=False))
    else:
        for folder, of_folder in faults.items():
            echo("\n".join(of_folder) if of_folder else f"{folder}: OK")
            for note in verification.notes(folder):
                echo(note)
    if every_fault:
        raise JobFailed(f"{path}: {counted(len(every_fault), 'fault')}")


@click.command()
@click.argument("path")
@click.option(
    "--fidelity", is_flag=True, help="Also compute FID, KID, precision and recall (takes minutes)."
)
@click.option(
    "--inception",
    metavar="FILE",
    help="With --fidelity: torch-fidelity's Inception weights, in place of EfficientNet-Lite0.",
)
@json_option
def stats(path: str, fidelity: bool, inception: str | None, as_json: bool) -> None:
    """Prints counts, motion and quality of a job's output.

    --fidelity compares interpolated with true frames, and reconstructions with frames.

    \b
    Example:
      cc-prep stats out/clevr
      cc-prep stats out/clevr --fidelity
    """
    from cc_prep.formats import (
        changes,
        entities,
        region_features,
        scores,
        sequences,
        training_shards,
    )
    from cc_prep.inspect import found_changes, verification
    from cc_prep.inspect import stats as statistics

    figures_of = {
        sequences.FORMAT.name: statistics.sequence_figures,
        scores.FORMAT.name: statistics.score_figures,
        changes.FORMAT.name: found_changes.figures,
        region_features.FORMAT.name: found_changes.no_figures,
        entities.FORMAT.name: found_changes.entity_figures,
        training_shards.FORMAT.name: statistics.token_figures,
    }
    figures: dict[str, Any] = {}
    with damage_is_a_user_error(path):
        for folder, kind in verification.find(path):
            with progress_bar(f"reading {kind.folder}") as progress:
                figures |= figures_of[kind.name](folder, None, progress)
        if fidelity:
            from cc_prep.inspect import fidelity as measures

            folders = {kind.name: folder for folder, kind in verification.find(path)}
            with progress_bar("measuring fidelity") as progress:
                figures["fidelity"] = measures.figures(path, folders, inception, progress)
    if as_json:
        echo(json.dumps(figures, ensure_ascii=False))
    else:
        print_tree(figures)


@click.command()
@click.argument("path")
@click.option(
    "--out",
    "target",
    metavar="FILE",
    help="The page that is written; default: PATH/report.html.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=24,
    show_default=True,
    help="Number of sequences shown.",
)
def report(path: str, target: str | None, samples: int) -> None:
    """Writes one self-contained HTML page about a job's output.

    \b
    Example:
      cc-prep report out/clevr --out clevr.html
    """
    from cc_prep import storage
    from cc_prep.inspect.report import page

    target = target or storage.join(path, "report.html")
    with damage_is_a_user_error(path), progress_bar("drawing") as progress:
        count = page.write(path, target, samples, progress)
    echo(f"{counted(count, 'sequence')} shown in {target}")


@click.command()
@click.argument("path")
@click.option(
    "--license", "licence", metavar="ID", help="Licence of the shards, such as cc-by-4.0."
)
def card(path: str, licence: str | None) -> None:
    """Writes a data set card beside training shards.

    It is README.md, for sharing them. `datasets.load_dataset` reads the fields of the samples from
    it. croissant.json beside it says the same to search engines.

    \b
    Example:
      cc-prep card out/clevr
    """
    from cc_prep.formats import training_shards
    from cc_prep.inspect import dataset_card, verification
    from pipelines.stored import finished_shards

    folder = verification.find_one(path, training_shards.FORMAT)
    finished_shards(folder, training_shards.FORMAT, "build")
    for written in dataset_card.write(path, licence):
        echo(written)


@click.command()
@click.argument("path")
@json_option
def status(path: str, as_json: bool) -> None:
    """Prints which shards are done, in progress and missing.

    Ask during a job, and after a crash.

    \b
    Example:
      cc-prep status out/clevr
    """
    from cc_prep import storage
    from cc_prep.inspect.verification import FORMATS
    from pipelines.state.journal import State

    candidates = (path, *(storage.join(path, kind.folder) for kind in FORMATS))
    folders = [folder for folder in candidates if State(folder).plan() is not None]
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
    begun = {journal.shard for journal in state.journals()} & plan.keys()
    whole = _whole(folder, plan, begun)
    now, holder = count(state, plan, whole), lock.holder(folder)
    done = whole.keys() & plan.keys()
    missing = sorted(plan.keys() - done - begun)
    figures = {
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
        figures |= {"done": sorted(done), "begun": sorted(begun), "missing": missing}
        echo(json.dumps(figures))
        return
    print_tree(figures)
    if missing and len(missing) < len(plan):
        echo("missing: " + ", ".join(missing[:8]) + (" …" if len(missing) > 8 else ""))


def _whole(folder: str, plan: dict[str, int], begun: set[str]) -> dict[str, Done]:
    """The finished shards by name, without those that a worker has begun to make again."""
    from cc_prep.formats import provenance
    from cc_prep.inspect.verification import FORMATS
    from pipelines.state.account import Account
    from pipelines.state.journal import State

    kinds = {kind.name: kind for kind in FORMATS}
    try:
        kind = kinds.get(str((provenance.read(folder) or {}).get("format")))
    except UserError:  # of another version, or damaged
        kind = None
    if kind is None:
        return {name: done for name, done in State(folder).done().items() if name not in begun}
    account = Account(kind, folder, plan)
    account.make_again(begun)
    return account.whole
