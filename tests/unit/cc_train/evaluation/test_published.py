"""The figures of papers: the shipped file, what its reader refuses, and the papers themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cc_prep.errors import UserError
from cc_train.evaluation import published
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.comparing import published_rows
from cc_train.evaluation.published import Figure, Printed, Published
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def shipped() -> Published:
    return published.read()


def printed(listed: Published) -> Iterator[tuple[Figure, Printed]]:
    """Each row with each table that prints it."""
    for figure in listed.figures:
        for place in figure.tables:
            yield figure, place


def test_no_system_has_two_rows(shipped: Published) -> None:
    rows = [(f.dataset, f.split, f.group, f.system) for f in shipped.figures]
    assert len(rows) == len(set(rows)) > 200


def test_a_system_has_one_name(shipped: Published) -> None:
    aliases = [alias for system in shipped.systems.values() for alias in system.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(shipped.systems)
    assert {"BDLSCR", "VARD-Trans", "DUDA+", "FINER", "RSICFormer", "Chg2cap"} <= set(aliases)
    assert {"RSICCformer", "Chg2Cap", "BiDiff", "VARD", "FINER-MLLM"} <= set(shipped.systems)


def test_every_source_data_set_and_system_is_used(shipped: Published) -> None:
    used = {place.source for _, place in printed(shipped)} | {one.source for one in shipped.judged}
    assert used == set(shipped.sources)
    assert {figure.dataset for figure in shipped.figures} == set(shipped.datasets)
    assert {figure.system for figure in shipped.figures} == set(shipped.systems)


def test_scores_are_of_captions(shipped: Published) -> None:
    """BLEU-4 to SPICE of change captions, × 100: a slip of a digit or of a column falls outside."""
    highest = {"BLEU-4": 70, "METEOR": 55, "ROUGE-L": 82, "CIDEr": 165, "SPICE": 36}
    for figure, place in printed(shipped):
        for measure, score in place.scores.items():
            assert 3 < score < highest[measure], (figure.system, figure.dataset, measure)
        assert list(place.scores) == [m for m in metrics.ORDER if m in place.scores]


def test_second_hand_scores_are_marked(shipped: Published) -> None:
    """Rows that only a third party quotes, and those of a rejected paper, are in doubt."""
    for figure in shipped.figures:
        quoted = figure.source in ("omnidiff", "ssgpa_rerun")
        rejected = figure.system == "DAVIR"
        assert bool(figure.uncertain) == (quoted or rejected), figure.system


def test_other_tables_fill_in_and_never_replace(shipped: Published) -> None:
    rows = {(f.dataset, f.group, f.system): f for f in shipped.figures}
    nct = rows["clevr_dc", "total", "NCT"]
    assert "ROUGE-L" not in nct.scores
    assert nct.merged["ROUGE-L"] == 65.1
    assert list(nct.merged) == ["BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
    assert not nct.disputed
    finer = rows["spot", "total", "FINER-MLLM"]
    assert finer.merged["CIDEr"] == finer.scores["CIDEr"] == 59.9
    assert finer.disputed


def test_remote_sensing_has_the_mean_of_four_measures() -> None:
    rows = {row.name: row.groups["total"] for row in published_rows.of_dataset("levir")}
    assert rows["CCExpert-7b"]["S*m"] == pytest.approx(81.80, abs=0.006)  # as its authors print it
    assert "S*m" not in rows["SAT-Cap"]
    assert all("S*m" not in row.groups["total"] for row in published_rows.of_dataset("spot"))


def test_scores_of_judges_agree_with_each_other(shipped: Published) -> None:
    """The parts of a benchmark add up to its whole: a slip of a digit would not."""
    diffspot = next(one for one in shipped.judged if one.title == "DiffSpot")
    assert len(diffspot.rows) == 13
    for name, scores in diffspot.rows.items():
        easy, medium, hard, different, equal, overall = (score or 0.0 for score in scores)
        assert different == pytest.approx((easy + medium + hard) / 3, abs=0.11), name
        assert overall == pytest.approx((3900 * different + 500 * equal) / 4400, abs=0.11), name


MINIATURE: dict[str, Any] = {
    "sources": {"paper": {"title": "A paper", "venue": "A venue", "kind": "paper"}},
    "datasets": {"spot": {"title": "Spot", "changes": "single"}},
    "systems": {
        "A": {"aliases": ["A+"], "llm": False, "cider": "official"},
        "B": {"llm": None, "cider": "unknown"},
    },
    "figures": [
        {"dataset": "spot", "group": "total", "system": name, "source": "paper", "table": "1",
         "scores": {"CIDEr": 40.0}}
        for name in "AB"
    ],
    "judged": [
        {"title": "Judged", "source": "paper", "about": "Who asks.", "columns": {"F1": "of facts"},
         "rows": {"A": [40.0], "B": [None]}}
    ],
}  # fmt: skip


def written(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    values = yaml.safe_load(yaml.safe_dump(MINIATURE))
    change(values)
    file = folder / "figures.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    listed = published.read(written(tmp_path, lambda values: None))
    assert [figure.split for figure in listed.figures] == ["test", "test"]


MISTAKES: dict[str, Callable[[dict[str, Any]], object]] = {
    r"A on spot, test, total has two rows": lambda v: v["figures"][1].update(system="A"),
    r"A\+ names two systems": lambda v: v["systems"]["B"].update(aliases=["A+"]),
    r"A names two systems": lambda v: v["systems"]["B"].update(aliases=["A"]),
    r"A on spot: no source other": lambda v: v["figures"][0].update(source="other"),
    r"A on clevr: no dataset clevr": lambda v: v["figures"][0].update(dataset="clevr"),
    r"C on spot: no system C": lambda v: v["figures"][0].update(system="C"),
    r"figures\.0: CIDEr 1001\.0 is not within 0 and 1000": lambda v: v["figures"][0].update(
        scores={"CIDEr": 1001.0}
    ),
    r"figures\.1: BLEU-4 100\.1 is not within 0 and 100": lambda v: v["figures"][1].update(
        scores={"BLEU-4": 100.1}
    ),
    r"figures\.0: CIDEr 0.0 is not within": lambda v: v["figures"][0].update(scores={"CIDEr": 0}),
    r"figures\.0: CIDER is no measure": lambda v: v["figures"][0].update(scores={"CIDER": 4.0}),
    r"figures\.0\.scores": lambda v: v["figures"][0].update(scores={}),
    r"figures\.0\.tabel": lambda v: v["figures"][0].update(tabel="2"),
    r"systems\.A\.cider": lambda v: v["systems"]["A"].update(cider="CIDEr"),
    r"figures\.0\.source: Field required": lambda v: v["figures"][0].pop("source"),
    r"Judged: no source other": lambda v: v["judged"][0].update(source="other"),
    r"Judged, A: a score for each column": lambda v: v["judged"][0]["rows"].update(A=[1.0, 2.0]),
    r"A: its sources disagree, which needs a note": lambda v: v["figures"][0].update(
        elsewhere=[{"source": "paper", "table": "2", "scores": {"CIDEr": 41.0}}]
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named(message: str, tmp_path: Path) -> None:
    file = written(tmp_path, MISTAKES[message])
    with pytest.raises(UserError, match=message) as caught:
        published.read(file)
    assert str(caught.value).startswith("figures.yaml: ")
    assert "\n" not in str(caught.value)


SEEDS = ROOT.parent / "shared" / "seeds"
SEED_FILES = {
    "scorer": "scorer-paper.txt",
    "davir": "davir-paper.txt",
    "procap": "procap-notes.txt",
}


def stands_in(lines: list[str], names: list[str], place: Printed) -> bool:
    """Whether a line that begins with one of the names has the scores, in their order."""
    numbers = [re.escape(f"{score:.1f}") for score in place.scores.values()]
    pattern = r"\b.*".join(numbers)
    return any(
        re.match(rf"\W*{re.escape(name)}(?![\w-])", line) and re.search(pattern, line)
        for line in lines
        for name in names
    )


if SEEDS.exists():  # the papers' text is not ours to copy

    def test_the_papers_print_these_scores(shipped: Published) -> None:
        lines = {name: (SEEDS / file).read_text().splitlines() for name, file in SEED_FILES.items()}
        checked = 0
        for figure, place in printed(shipped):
            names = [figure.system, *shipped.systems[figure.system].aliases]
            if place.source in lines:
                assert stands_in(lines[place.source], names, place), (figure.system, place)
                checked += 1
        assert checked > 140
