"""What a person sees while a job runs."""

from __future__ import annotations

import errno
import io
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from cc_prep.errors import JobFailed, StoreFailed, UserError
from cc_prep.formats.rejects import Reject
from cc_prep.words import counted
from pipelines import engine, progress
from pipelines.cluster.session import LOG
from pipelines.state.journal import Done, Journal, State
from pipelines.timing import Speed


def state(folder: Path) -> State:
    """Counts of 30 pairs in three shards: one shard done, one in progress."""
    folder_state = State(str(folder))
    reject = Reject("k", "i", "s", "change", "train-000000", "r", "m")
    folder_state.write_done(
        Done("train-000000", 10, "", samples=9, bytes=1, sha256="", seconds=1.0, rejects=(reject,))
    )
    folder_state.write_journal(Journal("train-000001", "run", "host", ["x"], done=4, rejected=2))
    # Of another --split, so not of this run's plan.
    folder_state.write_done(Done("val-000000", 10, "", samples=10, bytes=1, sha256="", seconds=1.0))
    return folder_state


PLAN = {f"train-{i:06d}": 10 for i in range(3)}


def test_counts_add_up(tmp_path: Path) -> None:
    there = state(tmp_path)
    counts = progress.count(there, PLAN, there.done())
    assert counts == progress.Counts(30, 13, 3, 3, 1, 1, 0, (4, 10), Speed(10, 1.0))
    assert counts.finished == 16
    assert counts.rate() == "", "the run of the journal has ended"
    there.write_run("run")
    assert progress.count(there, PLAN, there.done()).workers == 1


def test_the_rate_is_that_of_the_workers(tmp_path: Path) -> None:
    """Keeps away: a rate that counts the start of Ray and networks, or the pairs of before, and a
    time left that forgets that a shard has one worker."""
    there = state(tmp_path)
    there.write_run("run")
    for shard, done in (("train-000001", 4), ("train-000002", 1)):
        there.write_journal(Journal(shard, "run", "host", [], done=done, seconds=2.0 * done))
    now = progress.count(there, PLAN, there.done(), earlier=there.done().keys())
    assert now.speed == Speed(5, 10.0), "not the shard of an earlier run"
    assert now.pairs_per_second == pytest.approx(1.0)
    assert now.seconds_left == pytest.approx(18.0), "not (6 + 9) pairs at 1 a second"
    assert now.rate() == "1.00 pairs/s, 00:18 left"


def test_the_estimate_is_corrected_after_the_first_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a job whose time nobody tells, or whose first word on it is the last."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 5.0)
    there, finished, out = State(str(tmp_path)), dict[str, Done](), io.StringIO()
    there.write_run("run")
    watcher = progress.Watcher(there, PLAN, Console(file=out, width=200), finished, 2)
    for done, seconds in ((1, 4.0), (4, 16.0), (5, 20.0)):
        there.write_journal(Journal("train-000000", "run", "host", [], done=done, seconds=seconds))
        watcher._estimate(watcher.counts())
    timing = {"seconds": 42.0, "start_seconds": 2.0}
    one = Done("train-000000", 10, "", samples=10, bytes=1, sha256="", **timing)
    finished["train-000000"] = replace(one, seconds=22.0)
    there.write_done(finished["train-000000"])
    watcher._estimate(watcher.counts())
    finished["train-000001"] = replace(one, shard="train-000001")
    watcher._estimate(watcher.counts())
    assert out.getvalue().splitlines() == [
        "about 64 s left for 26 pairs, with 2 workers of 4 s a pair",
        "after the first shard: about 20 s left for 20 pairs, with 2 workers of 2 s a pair",
    ]


def test_plain_lines_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    out, there = io.StringIO(), state(tmp_path)
    there.write_run("run")
    with progress.Watcher(there, PLAN, Console(file=out, width=200), there.done()):
        time.sleep(0.2)
        journal = Journal("train-000001", "run", "host", [], done=7, rejected=2, seconds=1.0)
        there.write_journal(journal)
        deadline = time.monotonic() + 30
        while not out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1, "a line only when something happened"
    assert lines[0].startswith("19/30 pairs, 3 rejected, 1/3 shards, ")
    assert "pairs/s" in lines[0]
    assert lines[0].endswith("left")


def test_a_resumed_job_has_no_negative_rate(tmp_path: Path) -> None:
    """A shard that an earlier run left unfinished begins anew, so fewer pairs are done."""
    there = state(tmp_path)
    watcher = progress.Watcher(there, PLAN, Console(file=io.StringIO()), there.done())
    there.write_run("run 2")
    assert watcher.line(watcher.counts()).endswith(", starting"), "the old run's shard is no work"
    there.write_journal(Journal("train-000001", "run 2", "host", [], done=2, seconds=3.0))
    words = watcher.line(watcher.counts())
    assert words.endswith("0.67 pairs/s, 00:27 left"), words


def test_words_for_time_and_size() -> None:
    assert [progress.clock(s) for s in (0, 61, 3725)] == ["00:00", "01:01", "1:02:05"]
    assert [progress.amount(n) for n in (0, 999, 1500, 12_345_678, 5 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "12.3 MB",
        "5.0 TB",
    ]


class Wrapped(Exception):
    """As Ray wraps a worker's error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a traceback\nof many lines")
        self.cause = cause


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        (UserError("no x", "Get it"), UserError, "no x. Get it"),
        (JobFailed("broken\nand Ray's words"), JobFailed, "broken"),
        (OSError("no disk"), JobFailed, f"OSError: no disk (Ray's log: {LOG})"),
    ],
    ids=["mistake", "failure", "another"],  # the log's name has the number of this process
)
def test_a_workers_error_is_shown_without_rays_wrappings(
    cause: Exception, kind: type[Exception], message: str
) -> None:
    error = engine._cause(Wrapped(Wrapped(cause)))
    assert type(error) is kind
    assert str(error) == message


def test_a_job_whose_workers_do_not_come_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a second job on a full cluster that prints "starting" for hours."""
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    out = io.StringIO()
    with progress.Watcher(State(str(tmp_path)), PLAN, Console(file=out, width=200), {}, 4):
        deadline = time.monotonic() + 30
        while not out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
    assert out.getvalue() == "waiting for Ray to start 4 workers\n"


def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a job of days that says nothing more after a store was away for a second."""
    there = state(tmp_path)
    watcher = progress.Watcher(there, PLAN, Console(file=io.StringIO()), there.done())
    first = watcher.counts()
    there.write_journal(Journal("train-000001", "run", "host", [], done=7, rejected=2))
    for error in (StoreFailed("the store is away"), OSError(errno.EIO, "away")):

        def fails(error: Exception = error) -> NoReturn:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(there, "journals", fails)
            assert watcher.counts() == first
    assert watcher.counts().finished == 19


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 faults"), (1, "1 fault"), (2, "2 faults"), (3000, "3,000 faults")]
)
def test_counts_have_the_form_of_their_noun(number: int, text: str) -> None:
    """Keeps away: "waiting for Ray to start 1 workers" and "1 faults"."""
    assert counted(number, "fault") == text
