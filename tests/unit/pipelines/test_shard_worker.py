"""A worker with one shard, in this process: every pair ends as a sample or a reject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cc_prep.errors import JobFailed
from cc_prep.formats import sequences
from cc_prep.formats.tar import read_shard
from pipelines.plan import ShardPlan
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.state.journal import Done, Journal, State
from tests import fakes


def worker(folder: Path, run: str = "run", **faults: object) -> ShardWorker:
    return with_step(fakes.NumberStep(str(folder), **faults), run)  # type: ignore[arg-type]


def with_step(step: fakes.NumberStep, run: str = "run") -> ShardWorker:
    return ShardWorker(lambda device: step, RunInfo(step.folder, run, sequences.FORMAT, "cpu"))


def work(worker: ShardWorker, shard: ShardPlan) -> tuple[list[int], Done]:
    rows = {"shard": [json.dumps(shard.to_json())]}
    assert worker(rows) == {"shard": [shard.name]}
    place = f"{worker.run_info.folder}/{shard.name}.tar"
    numbers = [json.loads(members["json"])["number"] for _, members in read_shard(place)]
    return numbers, State(worker.run_info.folder).done()[shard.name]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_samples_and_rejects_in_order(tmp_path: Path, batch: int) -> None:
    shard = fakes.shards(10, 10)[0]
    numbers, done = work(worker(tmp_path, batch=batch, rejects=[0, 4]), shard)
    assert numbers == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [reject.id for reject in done.rejects] == ["0000", "0004"]
    assert (done.samples, done.pairs) == (8, 10)
    assert State(str(tmp_path)).journals() == []


def test_one_bad_pair_does_not_cost_its_batch(tmp_path: Path) -> None:
    numbers, done = work(worker(tmp_path, batch=4, fails=[2]), fakes.shards(8, 8)[0])
    assert numbers == [0, 1, 3, 4, 5, 6, 7]
    assert "ZeroDivisionError: pair 2" in done.rejects[0].message
    assert done.rejects[0].reason == "failed"


def test_five_failures_in_a_row_end_the_job(tmp_path: Path) -> None:
    """Keeps away: a broken machine that turns a whole data set into rejects."""
    with pytest.raises(JobFailed, match="ZeroDivisionError: pair 6"):
        work(worker(tmp_path, fails=range(2, 20)), fakes.shards(20, 20)[0])
    assert not (tmp_path / "train-000000.tar").exists()


class Sizes(fakes.NumberStep):
    """Notes the sizes of its batches."""

    sizes: list[int]

    def __call__(self, pairs: Sequence[fakes.ImagePair]) -> list:
        self.sizes = [*getattr(self, "sizes", []), len(pairs)]
        return super().__call__(pairs)


def test_out_of_memory_halves_and_remembers(tmp_path: Path) -> None:
    step = Sizes(str(tmp_path), batch=8, most_at_once=2)
    numbers, _ = work(with_step(step), fakes.shards(16, 16)[0])
    assert numbers == list(range(16))
    assert step.sizes == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]
    assert step.freed == 3


def test_a_pair_too_large_alone_is_rejected(tmp_path: Path) -> None:
    _, done = work(worker(tmp_path, batch=4, most_at_once=0), fakes.shards(4, 4)[0])
    assert [reject.reason for reject in done.rejects] == ["out of memory"] * 4


def journal(shard: ShardPlan, run: str, in_flight: Sequence[int], **more: object) -> Journal:
    keys = [fakes.pair(i).key for i in in_flight]
    return Journal(shard.name, run, "host", keys, **more)  # type: ignore[arg-type]


def test_suspects_go_alone_and_the_second_death_rejects(tmp_path: Path) -> None:
    shard = fakes.shards(8, 8)[0]
    state = State(str(tmp_path))
    state.write_journal(journal(shard, "run", [2, 3], crashes={fakes.pair(3).key: 1}))
    step = Sizes(str(tmp_path), batch=4)
    numbers, done = work(with_step(step), shard)
    assert numbers == [0, 1, 2, 4, 5, 6, 7]
    assert [reject.id for reject in done.rejects] == ["0003"]
    assert "2 workers died" in done.rejects[0].message
    assert step.sizes == [2, 1, 4], "the suspect alone, its neighbours in batches"


def test_a_stopped_job_accuses_nobody(tmp_path: Path) -> None:
    """Keeps away: a pair set aside because its user pressed Ctrl-C twice."""
    shard = fakes.shards(4, 4)[0]
    for run in ("first", "second", "third"):
        State(str(tmp_path)).write_journal(journal(shard, run, [1]))
    numbers, done = work(worker(tmp_path, run="fourth"), shard)
    assert numbers == [0, 1, 2, 3]
    assert done.rejects == ()


def test_a_worker_that_dies_between_pairs_ends_the_job(tmp_path: Path) -> None:
    shard = fakes.shards(4, 4)[0]
    State(str(tmp_path)).write_journal(journal(shard, "run", [], crashes_outside_pairs=2))
    with pytest.raises(JobFailed, match="3 times between pairs"):
        work(worker(tmp_path), shard)


@pytest.mark.parametrize("batch", [1, 4])
def test_retry_makes_only_what_is_missing(tmp_path: Path, batch: int) -> None:
    """Keeps away: a retried shard that differs from one never in trouble, or redoes it all."""
    shard = fakes.shards(10, 10)[0]
    work(worker(tmp_path, rejects=[0, 4, 9]), shard)
    step = Sizes(str(tmp_path), batch=batch, rejects=[4])
    again = ShardPlan(shard.split, shard.index, shard.pairs, keep_existing=True)
    numbers, done = work(with_step(step), again)
    assert numbers == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert sum(step.sizes) == 3
    fresh = tmp_path / "fresh"
    _, undisturbed = work(worker(fresh, rejects=[4]), shard)
    assert done.sha256 == undisturbed.sha256
