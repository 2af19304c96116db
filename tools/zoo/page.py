"""docs/zoo.md: what we measured, beside what papers report of the systems that we train."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_train.evaluation import protocols, published
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.comparing import published_rows
from cc_train.evaluation.evaluation_files import TOTAL
from cc_train.evaluation.rendered import fact_scores
from cc_train.runs import run_folder
from tools.zoo import rows as zoo_rows
from tools.zoo.rows import Entry, ZooRow

# Of the systems that we train: what published.yaml calls them, and the settings that we have.
SYSTEMS = {"ProCap": "procap", "SCORER+CBR": "scorer"}
# Their sections are there without a row too, with the commands that make one.
MANIFESTS = ("clevr", "clevr_dc", "spot", "edit", "levir")
HEAD = """# The zoo

<!-- Written by `python -m tools.zoo page`. Rows are added by `python -m tools.zoo add`. -->

    make zoo-row DATASET=spot SYSTEM=scorer SPOT_ROOT=/data/spot     # a row of your own

The command goes from raw files to a row in the folder `out/zoo` (`ROWS`), with the default weights:
`SYSTEM=procap` the package's small CLIP4IDC and VQGAN, and `SYSTEM=scorer` features of
`efficientnet-lite0`, so neither is the published system. `PREPARE='--set tokenize.weights=FILE'`
adds options to the preparation, `TRAIN='--steps 10'` to every training.

Any other captioner is evaluated first and then added. `--run` is what was evaluated, a training or
an exported captioner; leave it out for captions of others:

    cc-train evaluate RUN --shards 'out/mine/shards/test-*.tar'
    python -m tools.zoo add RUN/evaluation --run RUN --name mine --system 'My captioner' \\
      --dataset 'My data' --command 'cc-train pair --shards …' --zoo out/zoo
    python -m tools.zoo page --zoo out/zoo --out out/zoo.md

The rows below say how they are known:

- **trained by us**: we trained it. Settings, captions and of a training its log are in its folder,
  with the SHA-256 of the weights.
- **evaluated by us**: others trained it. We imported their weights and captioned with them.
- **re-scored by us**: others trained it and published their captions, which we scored. Captions
  without a licence are not copied: the row has the SHA-256 of their file.
- **reported**: a paper reports it, with the marks of PUBLISHED.

BLEU-4 and CIDEr of the rows marked ✓ were computed again from their captions when this page was
made. Two rows are comparable if their references (the start of a digest) are the same. All figures
are × 100. `told apart` and `exact` are shares of right captions in %, with their 95 % intervals
(EVALUATION, Facts)."""


def write(zoo: Path, out: str) -> None:
    """Writes the page to a path or an object store. Raises UserError for a damaged row."""
    storage.write_bytes(storage.named(out), render(zoo, Path(out).parent).encode())


def add(
    *,
    evaluation: str,
    name: str,
    system: str,
    dataset: str,
    command: str,
    run: str | None,
    weights: str | None,
    note: str,
    with_references: bool,
    captions: str | None,
    captions_at: str | None,
    replace: bool,
    folder: str,
) -> Path:
    """Adds a row: `python -m tools.zoo add`. Raises UserError."""
    if weights is not None and run is None:
        raise UserError("--weights without --run", "Give the training that they are of")
    if (captions is None) != (captions_at is None):
        raise UserError("--captions and --captions-at go together", "Give both, or neither")
    published = None
    if captions is not None and captions_at is not None:
        published = (Path(captions), captions_at)
    row = ZooRow(
        system=system,
        kind="re-scored" if run is None else "trained",
        dataset=dataset,
        command=command,
        note=note,
    )
    trained = None if run is None else run_folder.locate(run)
    return zoo_rows.add(
        Path(folder),
        name,
        row,
        Path(evaluation),
        run=trained,
        weights=weights,
        with_references=with_references,
        captions=published,
        replace=replace,
    )


def render(zoo: Path, beside: Path) -> str:
    """The page as Markdown. beside: the folder of the page, for links to the rows' files."""
    entries = zoo_rows.read(zoo)
    link = Path(os.path.relpath(zoo, beside)).as_posix()
    figures = published.read()
    others = sorted({entry.row.dataset for entry in entries} - set(figures.datasets))
    head = HEAD.replace("PUBLISHED", _link(beside, "published.md", "Published figures"))
    lines = [head.replace("EVALUATION", _link(beside, "evaluation.md", "Evaluation")), ""]
    for title in others:
        rows = [entry for entry in entries if entry.row.dataset == title]
        lines += [f"## {title}", "", *_table(rows, [], link), *_below(rows)]
    for dataset, about in figures.datasets.items():
        rows = [entry for entry in entries if entry.row.dataset == dataset]
        if dataset not in MANIFESTS and not rows:
            continue
        reported = [
            (name, row)
            for name in SYSTEMS
            for row in published_rows.of_dataset(dataset)
            if row.name == name and TOTAL in row.groups
        ]
        lines += [f"## {about.title}", "", *_table(rows, reported, link), *_below(rows)]
        lines += _commands(dataset) if dataset in MANIFESTS else ()
    return "\n".join(lines).rstrip() + "\n"


def _link(beside: Path, page: str, title: str) -> str:
    """A link to another page of the documentation, or where it is not beside this one its path."""
    return f"[{title}]({page})" if (beside / page).exists() else f"docs/{page}"


def _table(
    entries: Sequence[Entry], reported: Sequence[tuple[str, Any]], link: str
) -> Iterator[str]:
    if not entries and not reported:
        yield from ("No row yet.", "")
        return
    tables = [entry.scores["groups"][TOTAL] for entry in entries]
    tables += [row.groups[TOTAL] for _, row in reported]
    shown = [name for name in metrics.ORDER if any(name in table for table in tables)]
    facts = any(entry.scores.get("facts") for entry in entries)
    names = ["system", "known by", "pairs", *(["told apart", "exact"] if facts else []), *shown]
    yield f"| {' | '.join([*names, 'references', 'files'])} |"
    yield "|---|---" + "|--:" * (len(names) - 2) + "|---|---|"
    for entry in sorted(entries, key=lambda one: -one.scores["groups"][TOTAL]["CIDEr"]):
        yield _row(entry, shown, facts, link)
    for name, row in reported:
        scores = row.groups[TOTAL]
        known_by = ", ".join(["reported", *row.marks[TOTAL]])
        cells = [name, known_by, "", *(["", ""] if facts else [])]
        cells += [f"{scores[m]:.1f}" if m in scores else "" for m in shown]
        yield f"| {' | '.join([*cells, '', row.sources[TOTAL]])} |"
    yield ""


def _row(entry: Entry, shown: Sequence[str], facts: bool, link: str) -> str:
    scores = entry.scores["groups"][TOTAL]
    mark = " ✓" if entry.checked else ""
    cells = [entry.row.system, f"{entry.row.kind} by us{mark}", f"{scores['pairs']:,}"]
    if facts:
        cells += _facts(entry.scores.get("facts"))
    cells += [f"{scores[m]:.1f}" if m in scores else "" for m in shown]
    signed = entry.signature
    references = signed.parts["refs"]
    cells.append(f"`{signed.protocol}`, {references}" if signed.protocol else references)
    files = [f"[{file.partition('.')[0]}]({link}/{entry.name}/{file})" for file in entry.files]
    return f"| {' | '.join([*cells, ', '.join(files)])} |"


def _facts(content: Any) -> list[str]:
    """Told apart and exact, with their intervals, of scores.json; empty where no pair counts."""
    if not content:
        return ["", ""]
    shares = (content.get(fact_scores.TOLD_APART), content["shares"].get(fact_scores.EXACT))
    return [
        f"{100 * one['share']:.1f} ({100 * one['low']:.1f} … {100 * one['high']:.1f})"
        if one and one.get("pairs", 1)
        else ""
        for one in shares
    ]


def _below(entries: Sequence[Entry]) -> Iterator[str]:
    """How each row came about, and where its weights are."""
    for entry in entries:
        row, weights = entry.row, entry.row.weights
        text = f"- **{row.system}**: `{row.command}`."
        if weights is not None:
            place = f" at {weights.place}" if weights.place else ""
            text += f" Weights{place}: {weights.bytes:,} bytes, SHA-256 `{weights.sha256[:16]}…`."
        if row.captions is not None:
            digest = row.captions.sha256[:16]
            text += (
                f" Captions at {row.captions.place}, SHA-256 `{digest}…`; from a copy of the file, "
                f"`python -m tools.zoo check {entry.name} --captions FILE --references FILE` "
                "computes the figures again."
            )
        yield text + (f" {row.note}" if row.note else "")
    if entries:
        yield ""


def _commands(dataset: str) -> Iterator[str]:
    """What a user with the data runs, from raw files to a row."""
    protocol = protocols.of_dataset(dataset)[0]
    root = f"{dataset.upper()}_ROOT=/data/{dataset}"
    yield f"A row of your own by the protocol `{protocol}`:"
    yield ""
    for system in SYSTEMS.values():
        yield f"    make zoo-row DATASET={dataset} SYSTEM={system} {root}"
    yield ""
