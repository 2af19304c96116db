"""docs/published.md: the named protocols, and the figures of papers with their sources."""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cc_prep import storage
from cc_train.evaluation import protocols, published
from cc_train.evaluation.comparing import published_rows, side_by_side
from cc_train.evaluation.comparing.scored_rows import CIDER, MARKS, Row
from cc_train.evaluation.comparing.side_by_side import Table
from cc_train.evaluation.published import Published

HEAD = """# Published figures and protocols

<!-- Written by `python -m tools.published_page docs/published.md`. Change protocols.yaml or
published.yaml under cc_train/evaluation, not this page. -->

    cc-train evaluate RUN --shards 'out/spot/shards/test-*.tar' --protocol spot-single
    cc-train compare RUN --dataset spot         # your evaluation beside these figures
    cc-train compare --dataset spot --latex     # the figures as LaTeX

On the site, a click on the head of a column sorts its table."""

# A bullet of Markdown whose further lines are indented.
BULLET: dict[str, Any] = {
    "initial_indent": "- ",
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def write(out: str) -> None:
    """Writes the page to a path or an object store."""
    storage.write_bytes(storage.named(out), render().encode())


def render() -> str:
    """The page as Markdown."""
    figures = published.read()
    lines = [HEAD, "", *_protocols(), "## Figures", "", *_introduction()]
    for dataset in figures.datasets:
        lines += _dataset(dataset, figures)
    lines += _judged(figures)
    lines += ["## Sources", "", *_sources(figures)]
    return "\n".join(lines).rstrip() + "\n"


def _protocols() -> Iterator[str]:
    yield from (
        "## Protocols",
        "",
        "`--protocol NAME` checks that the pairs and references that are scored are those below,",
        "and writes the name and its revision into the signature. All protocols use the official",
        "test split and the same measures ([Evaluation](evaluation.md#scores)). Where the official",
        "captions were not available to us, the references themselves are not checked, but their",
        "number and the pairs are; the digest of the references is in the signature.",
        "",
        "A run that chose its checkpoint on exactly the set of pairs that is scored is refused.",
        "Each protocol has a second name for it, such as",
        f"`spot-single{protocols.CHOSEN_ON_TEST}`, and",
        "such scores do not compare with others.",
        "",
        "| protocol | pairs | references | checked by digest |",
        "|---|---|---|---|",
    )
    listed = protocols.read()
    for name, one in listed.items():
        least, most = one.references_a_pair
        each = f"{least} per pair" if least == most else f"{least} to {most} per pair"
        count = each if one.references is None else f"{one.references:,}, {each}"
        by_digest = "pairs and references" if one.digest else "pairs"
        yield f"| `{name}` | {one.pairs:,} | {count} | {by_digest} |"
    yield ""
    for name, one in listed.items():
        yield from (f"**`{name}`** (revision {one.revision}): {one.title}.", "")
        for line in one.left_open:
            yield from textwrap.wrap(line, 108, **BULLET)
        yield from (f"- References: `{one.prepare}`", "")


def _introduction() -> Iterator[str]:
    yield from (
        "All scores are × 100, of the official test split, as the source prints them. None of them",
        "was measured by us; [the zoo](zoo.md) has what we measured. We took `S*m`, the mean of",
        "BLEU-4, METEOR, ROUGE-L and CIDEr, where its papers rank by it. The marks mean:",
        "",
    )
    yield from (f"- *{mark}*: {meaning}." for mark, meaning in MARKS.items())
    yield ""


def _dataset(dataset: str, figures: Published) -> Iterator[str]:
    yield from (f"### {figures.datasets[dataset].title}", "")
    tables = side_by_side.tables(published_rows.of_dataset(dataset))
    by_type = [table for table in tables if table.measures == [CIDER]]
    for table in tables:
        if table.measures != [CIDER]:
            yield from _table(table)
    if by_type:
        yield from _by_type(by_type)


def _table(table: Table) -> Iterator[str]:
    yield from (f"**{table.group[0].upper()}{table.group[1:]}**", "")
    yield f"| system | {' | '.join(table.measures)} | marks | source |"
    yield "|---" + "|--:" * len(table.measures) + "|---|---|"
    for row in reversed(table.rows):
        scores = row.groups[table.group]
        values = [_value(scores.get(name), table.leads(row, name)) for name in table.measures]
        source = row.sources[table.group].replace("|", "/")
        cells = (row.name, *values, ", ".join(row.marks[table.group]), source)
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from _remarks((row, table.group) for row in reversed(table.rows))


def _by_type(tables: Sequence[Table]) -> Iterator[str]:
    """Groups of which papers report CIDEr alone, as columns of one table."""
    groups = [table.group for table in tables]
    yield from ("**CIDEr by type of change**", "")
    yield f"| system | {' | '.join(groups)} | marks | source |"
    yield "|---" + "|--:" * len(groups) + "|---|---|"
    rows = {row.name: row for table in tables for row in table.rows}
    ranked = sorted(rows.values(), key=lambda row: _mean(row, groups), reverse=True)
    for row in ranked:
        values = [
            _value(row.groups.get(table.group, {}).get(CIDER), table.leads(row, CIDER))
            for table in tables
        ]
        marks = dict.fromkeys(mark for group in groups for mark in row.marks.get(group, ()))
        sources = dict.fromkeys(row.sources[group] for group in groups if group in row.sources)
        cells = (row.name, *values, ", ".join(marks), "; ".join(sources))
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from _remarks((row, group) for row in ranked for group in groups)


def _judged(figures: Published) -> Iterator[str]:
    yield from (
        "## Judged benchmarks",
        "",
        "Benchmarks of free text, mostly of multi-modal language models not trained for them.",
        "[Judges](judging.md) tells how to score your own captions in this way.",
        "",
    )
    for benchmark in figures.judged:
        yield from (f"### {benchmark.title}", "", *textwrap.wrap(benchmark.about, 108), "")
        for name, meaning in benchmark.columns.items():
            yield from textwrap.wrap(f"*{name}*: {meaning}.", 108, **BULLET)
        yield from ("", f"| system | {' | '.join(benchmark.columns)} |")
        yield "|---" + "|--:" * len(benchmark.columns) + "|"
        columns = [
            [score for score in column if score is not None]
            for column in zip(*benchmark.rows.values(), strict=True)
        ]
        for system, scores in benchmark.rows.items():
            values = [
                _value(score, score == max(column))
                for score, column in zip(scores, columns, strict=True)
            ]
            yield f"| {system} | {' | '.join(values)} |"
        yield from ("", f"Source: {benchmark.source}.", "")


def _mean(row: Row, groups: Sequence[str]) -> float:
    return statistics.mean(row.groups[group][CIDER] for group in groups if group in row.groups)


def _remarks(rows: Iterable[tuple[Row, str]]) -> Iterator[str]:
    """Why rows of a table may mislead, each remark once."""
    remarks = dict.fromkeys((row.name, row.remarks(group)) for row, group in rows)
    noted = [f"{name}: {remark}" for name, remark in remarks if remark]
    lines = [line for one in noted for line in textwrap.wrap(one, 108, **BULLET)]
    yield from (*lines, *([""] if lines else []))


def _value(score: float | None, best: bool) -> str:
    if score is None:
        return ""
    return f"**{score:.1f}**" if best else f"{score:.1f}"


def _sources(figures: Published) -> Iterator[str]:
    yield from ("| source | title | venue | read as | note |", "|---|---|---|---|---|")
    for name, source in figures.sources.items():
        yield f"| {name} | {source.title} | {source.venue} | {source.kind} | {source.note} |"


if __name__ == "__main__":
    write(sys.argv[1])
