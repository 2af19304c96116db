"""Done files and journals: what is believed, and what is made again."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.formats.rejects import Reject
from pipelines.state.journal import MAX_PAIRS, Done, Journal, Pace, State

ROW = dict.fromkeys(set(training_shards.INDEX_SCHEMA.names) - {"shard"})
ROW |= {"key": "k", "offset": 512, "bytes": 1024, "crc32c": 7, "captions": [], "mask_classes": []}
REJECT = Reject("k", "i", "s", "change", "train-000000", "r", "m")
DONE = Done(
    "train-000000",
    2,
    "d",
    samples=1,
    bytes=10,
    sha256="s",
    seconds=1.5,
    rejects=(REJECT,),
    index=[ROW],
)


def test_a_new_journal_counts_from_nothing() -> None:
    """Keeps away: a pair that is set aside at its first crash."""
    journal = Journal("train-000000", "run", "host")
    assert (journal.done, journal.rejected, journal.crashes_outside_pairs) == (0, 0, 0)
    assert (journal.in_flight, journal.crashes) == ([], {})


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    state = State(str(tmp_path))
    state.write_done(DONE)
    assert state.done() == {"train-000000": DONE}
    journal = Journal("val-000001", "run", "host", ["a"], 3, 1, 2, {"a": 1})
    state.write_journal(journal)
    assert state.journal("val-000001") == journal
    assert state.journal("val-000002") is None
    assert state.journals() == [journal]
    state.write_done(replace(DONE, shard="val-000001"))
    assert state.journals() == [], "a finished shard is no longer under way"
    state.write_plan({"train-000000": 5})
    assert state.plan() == {"train-000000": 5}


@pytest.mark.parametrize(
    "change",
    [
        {"shard": "train-000001"},
        {"bytes": "10"},
        {"bytes": None},
        {"rejects": None},
        {"rejects": [{"key": "k"}]},
        {"surplus": 1},
        {"samples": 2},
        {"pairs": 3},
        {"pairs": "2"},
        {"rejects": [], "samples": 1},
        {"samples": -1, "pairs": 0},
        {"seconds": "<b>"},
        {"index": [{"key": 1}]},
        {"index": [{**ROW, "offset": "512"}]},
        {"index": [{**ROW, "crc32c": -1}]},
        {"index": [{**ROW, "key": 1}]},
        {"index": [{**ROW, "captions": "one"}]},
        {"rejects": [{**asdict(REJECT), "reason": 1}]},
    ],
)
def test_a_done_file_of_strangers_is_no_done_shard(tmp_path: Path, change: dict[str, Any]) -> None:
    """Keeps away: a shard that is left out because a damaged file says that it is done."""
    state = State(str(tmp_path))
    state.write_done(DONE)
    path = tmp_path / ".state/train-000000.done.json"
    path.write_text(json.dumps({**asdict(DONE), **change}))
    assert state.done() == {}
    path.write_text(json.dumps(asdict(DONE)))
    assert state.done() == {"train-000000": DONE}


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10**5, '{"shard": "a"}'])
def test_damaged_files_count_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".state").mkdir()
    for name in ("a.done.json", "a.journal.json"):
        (tmp_path / ".state" / name).write_text(text)
    state = State(str(tmp_path))
    assert (state.done(), state.journals(), state.journal("a")) == ({}, [], None)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ('{"../../../x": 1}', "'../../../x': "),
        ('{"zz": 1}', "'zz': "),
        ('{"train-000000": "1"}', "'train-000000': "),
        ('{"train-000000": 0}', "'train-000000': "),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, text: str, where: str) -> None:
    """Keeps away: a plan with shards that nobody makes, so that a folder is never complete and
    nothing says why; and one that loses the other splits in silence.
    """
    state = State(str(tmp_path))
    assert state.plan() is None
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/plan.json").write_text(text)
    message = (
        rf"/plan\.json: {re.escape(where)}no plan of shards \(.*\)\. Remove this file, and run"
    )
    with pytest.raises(UserError, match=message):
        state.plan()


def test_journals_of_other_shards_stay(tmp_path: Path) -> None:
    """Keeps away: a pair's crashes that are forgotten as another job of the folder begins."""
    state = State(str(tmp_path))
    for name in ("train-000000", "val-000000"):
        state.write_journal(Journal(name, "run", "host"))
    state.remove_journals({"train-000000", "train-000001"})
    assert [journal.shard for journal in state.journals()] == ["val-000000"]


@pytest.mark.parametrize(
    ("write", "pair", "pairs"),
    [(0.001, 1.0, 1), (0.1, 1.0, 5), (0.101, 1.0, 6), (1.0, 1.0, MAX_PAIRS), (1.0, 0.0, MAX_PAIRS)],
)
def test_a_slow_store_hears_of_several_pairs_at_once(write: float, pair: float, pairs: int) -> None:
    """Keeps away: a job that waits for its own notes; and after a crash, pairs one by one that
    need not be.
    """
    pace = Pace()
    assert pace.pairs_per_journal_write == 1
    pace.measured(write, pair)
    assert pace.pairs_per_journal_write == pairs


def test_a_quick_write_is_measured_as_one() -> None:
    pace = Pace()
    with pace.writing():
        pass
    pace.worked(60.0)
    assert pace.pairs_per_journal_write == 1


def test_a_damaged_journal_accuses_nobody(tmp_path: Path) -> None:
    """Keeps away: a traceback of a count that is a text."""
    state = State(str(tmp_path))
    journal = Journal("train-000000", "run", "host", ["a"])
    state.write_journal(journal)
    assert state.journals() == [journal]
    path = tmp_path / ".state/train-000000.journal.json"
    path.write_text(json.dumps({**asdict(journal), "crashes": {"a": "2"}}))
    assert state.journals() == []
