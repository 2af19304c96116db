"""Published figures as rows of a comparison: `cc-train compare --dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cc_prep.errors import UserError
from cc_train.evaluation import protocols, published
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.comparing.scored_rows import Row


def of_dataset(dataset: str) -> list[Row]:
    """The published figures of a data set's test split, one row for each system.

    Raises:
        UserError: If there are none.
    """
    figures_file = published.read()
    figures = [f for f in figures_file.figures if (f.dataset, f.split) == (dataset, "test")]
    if not figures:
        known = ", ".join(sorted(figures_file.datasets))
        raise UserError(f"--dataset {dataset}: no published figures", f"Known: {known}")
    rows: dict[str, Row] = {}
    for figure in figures:
        row = rows.setdefault(figure.system, Row(figure.system, groups={}))
        row.groups[figure.group] = _with_mean(figure.merged, figures_file.datasets[dataset].mean)
        row.sources[figure.group] = _printed(figure.source, figure.table)
        row.marks[figure.group] = _marks(figure, figures_file)
        row.details[figure.group] = _details(figure, figures_file)
    return list(rows.values())


def _with_mean(scores: dict[str, float], wanted: bool) -> dict[str, float]:
    """The scores with S*m of those of a paper that have all four, to two decimals as printed."""
    if not wanted or any(name not in scores for name in metrics.MEAN_OF):
        return scores
    mean = sum(scores[name] for name in metrics.MEAN_OF) / len(metrics.MEAN_OF)
    whole = {**scores, metrics.MEAN: round(mean, 2)}
    return {measure: whole[measure] for measure in metrics.ORDER if measure in whole}


def unchecked(dataset: str, ours: Sequence[Row], mixed: bool = False) -> list[str]:
    """A note for each row of ours that follows no protocol of the data set, or that follows one
    with a checkpoint that was chosen on the test split.

    Args:
        mixed: Rows of other pairs, and rows of which nobody checked that, have a note; else
            UserError is raised.
    """
    names = protocols.of_dataset(dataset)
    notes = []
    for row in ours:
        protocol = None if row.signature is None else row.signature.protocol
        if protocol is None:
            what = (
                f"{row.name}: whether it is scored on the pairs and references of the published "
                "rows is not checked"
            )
            remedy = f"Evaluate it with --protocol {names[0]}, which data of your own cannot follow"
            _refuse(what, remedy, mixed)
            notes.append(f"{what}; see --protocol {names[0]}")
        elif (plain := protocol.removesuffix(protocols.CHOSEN_ON_TEST)) not in names:
            other = f"{row.name} is scored by the protocol {protocol}, not by one of {dataset}"
            _refuse(other, f"Give --dataset {protocols.get(protocol).dataset}", mixed)
            notes.append(f"{other}: the pairs and references are others")
        elif plain != protocol:
            notes.append(f"{row.name}: its checkpoint was chosen on the test split")
    return notes


def _refuse(what: str, remedy: str, mixed: bool) -> None:
    if not mixed:
        raise UserError(what, f"{remedy}, or give --mixed")


def _printed(source: str, table: str) -> str:
    return f"{source}, table {table}" if table[-1].isdigit() else f"{source}, {table}"


def _marks(figure: published.Figure, figures_file: published.Published) -> tuple[str, ...]:
    """What the table shows of a published row besides its scores; see `scored_rows.MARKS`."""
    system = figures_file.systems[figure.system]
    marks = []
    if system.llm or system.llm is None:
        marks.append("LLM" if system.llm else "LLM?")
    if figure.changes is not None:
        marks.append(figure.changes)
    if system.chosen_on_test:
        marks.append("chosen on test")
    if figure.reproduced is not None:
        marks.append(
            {True: "reproduced", False: "not reached", None: "by others"}[figure.reproduced.reached]
        )
    if system.cider != "official":
        marks.append("CIDEr-D" if system.cider == "CIDEr-D" else "CIDEr?")
    if figure.uncertain:
        marks.append("uncertain")
    if figure.disputed:
        marks.append("disputed")
    return tuple(marks)


def _details(figure: published.Figure, figures_file: published.Published) -> dict[str, Any]:
    """All that is known of a published row besides its scores, as JSON."""
    system = figures_file.systems[figure.system]
    facts = figure.model_dump(
        mode="json",
        include={"elsewhere", "reproduced", "uncertain", "note"},
        exclude_defaults=True,
    )
    return {
        "aliases": list(system.aliases),
        "llm": system.llm,
        "CIDEr kind": system.cider,
        "changes": figure.changes or figures_file.datasets[figure.dataset].changes,
        **facts,
    }
