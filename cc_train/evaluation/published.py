"""The figures that papers report, read from `published.yaml` and validated.

The file is part of the package. Error messages name the row and the key, so that whoever adds a
row sees at once what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from cc_prep import settings
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.evaluation.captions import metrics

FILE = Path(__file__).parent / "published.yaml"
# Of a score × 100; every other measure ends at 100.
CEILING = {"CIDEr": 1000.0, metrics.MEAN: 325.0}
ROUNDING = 0.05  # half a unit of the one decimal that papers print

Changes = Literal["single", "multi", "unknown"]
Scores = Annotated[dict[str, float], Field(min_length=1)]


def _checked(scores: Mapping[str, float]) -> None:
    """Raises ValueError for an unknown measure, or a score outside its range."""
    for measure, score in scores.items():
        if measure not in metrics.ORDER:
            raise ValueError(f"{measure} is no measure; known are {', '.join(metrics.ORDER)}")
        ceiling = CEILING.get(measure, 100.0)
        if not 0 < score <= ceiling:
            raise ValueError(f"{measure} {score} is not within 0 and {ceiling:g}")


class Source(Section):
    """A publication that prints figures.

    Attributes:
        kind: The form in which it was read. A `note` is a third party's summary of a paper.
    """

    title: str
    venue: str
    kind: Literal["paper", "preprint", "repository", "note"]
    note: str = ""


class Dataset(Section):
    """A data set.

    Attributes:
        changes: The protocol of its rows, unless a row names another.
        mean: Whether its papers rank captioners by S*m.
    """

    title: str
    changes: Changes
    mean: bool = False


class System(Section):
    """A captioner.

    Attributes:
        aliases: Other names for it in papers.
        llm: Whether a large language model writes its captions; None if that is not known.
        cider: How its CIDEr is computed. `official`: its published code uses coco-caption,
            pycocoevalcap or a copy of them, whose CIDEr has the clipping and the length penalty of
            CIDEr-D. `CIDEr-D`: the paper calls its measure so, and its code was not read.
        chosen_on_test: Whether its public code chooses the checkpoint on the test split.
    """

    aliases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    llm: bool | None
    cider: Literal["official", "CIDEr-D", "unknown"]
    chosen_on_test: bool = False


class Printed(Section):
    """Scores, × 100, as a table of a source prints them."""

    source: str
    table: str
    scores: Scores

    @model_validator(mode="after")
    def _in_range(self) -> Printed:
        _checked(self.scores)
        return self


class Reproduction(Section):
    """An attempt by others than the system's authors.

    Attributes:
        reached: Whether they reached the row's scores; None if the row itself is their measurement,
            because the authors publish none.
        scores: The scores that they measured, × 100.
    """

    by: str
    reached: bool | None
    scores: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _in_range(self) -> Reproduction:
        _checked(self.scores)
        return self


class Figure(Printed):
    """The scores of a system on a group of a split.

    Attributes:
        elsewhere: Scores that other tables print for the same system.
        changes: The protocol, if it is not the data set's.
        uncertain: Why the scores are in doubt, if they are.
        reproduced: None if no attempt is known.
    """

    dataset: str
    group: str
    system: str
    split: Literal["val", "test"] = "test"
    changes: Changes | None = None
    elsewhere: Annotated[tuple[Printed, ...], Field(strict=False)] = ()
    reproduced: Reproduction | None = None
    uncertain: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _explained(self) -> Figure:
        if self.disputed and not self.note:
            raise ValueError(f"{self.system}: its sources disagree, which needs a note")
        return self

    @property
    def disputed(self) -> bool:
        """Whether another table prints other scores than this row's."""
        return any(
            abs(self.scores[measure] - score) > ROUNDING
            for other in self.elsewhere
            for measure, score in other.scores.items()
            if measure in self.scores
        )

    @property
    def tables(self) -> tuple[Printed, ...]:
        """The row itself, then the scores that other tables print for the same system."""
        return (self, *self.elsewhere)

    @property
    def merged(self) -> dict[str, float]:
        """The row's scores, and those of other tables for measures that it lacks."""
        scores: dict[str, float] = {}
        for table in self.tables:
            scores = {**table.scores, **scores}
        return {measure: scores[measure] for measure in metrics.ORDER if measure in scores}


class Judged(Section):
    """A benchmark of free text that no reference captions score, but a judge or a sentence encoder.

    Attributes:
        about: Who asks what of whom, in sentences.
        columns: What each score is, by its name.
        rows: The scores of each system in the order of the columns; None where none is printed.
    """

    title: str
    source: str
    about: str
    columns: dict[str, str]
    rows: dict[str, Annotated[tuple[float | None, ...], Field(strict=False)]]

    @model_validator(mode="after")
    def _one_score_a_column(self) -> Judged:
        for system, scores in self.rows.items():
            if len(scores) != len(self.columns):
                raise ValueError(f"{self.title}, {system}: a score for each column is needed")
        return self


class Published(Section):
    """The whole file."""

    sources: dict[str, Source]
    datasets: dict[str, Dataset]
    systems: dict[str, System]
    figures: Annotated[tuple[Figure, ...], Field(strict=False)]
    judged: Annotated[tuple[Judged, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Published:
        for benchmark in self.judged:
            if benchmark.source not in self.sources:
                raise ValueError(f"{benchmark.title}: no source {benchmark.source}")
        names = [*self.systems, *(a for system in self.systems.values() for a in system.aliases)]
        _unique(names, "names two systems")
        for figure in self.figures:
            for kind, name, known in self._references(figure):
                if name not in known:
                    raise ValueError(f"{figure.system} on {figure.dataset}: no {kind} {name}")
        rows = [f"{f.system} on {f.dataset}, {f.split}, {f.group}" for f in self.figures]
        _unique(rows, "has two rows")
        return self

    def _references(self, figure: Figure) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """All references of a row: (kind, name, the entries of that kind by name)."""
        yield "dataset", figure.dataset, self.datasets
        yield "system", figure.system, self.systems
        for table in figure.tables:
            yield "source", table.source, self.sources


def _unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} {what}")
        seen.add(name)


def read(file: Path = FILE) -> Published:
    """The figures of a file. Raises UserError with the first mistake and its place."""
    return _shipped() if file == FILE else _read(file)


@cache
def _shipped() -> Published:
    return _read(FILE)  # a second of YAML, and pages ask for it often


def _read(file: Path) -> Published:
    values = settings.parse(file.read_text(encoding="utf-8"), file.name)
    try:
        return Published.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        mistake = first["msg"].removeprefix("Value error, ")
        where = f"{file.name}: {path}" if path else file.name
        raise UserError(f"{where}: {mistake}", "Fix that entry") from None
