"""A worker with one shard, in this process: every pair ends as a sample or a reject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cc_prep import devices
from cc_prep.errors import JobFailed, Reason, RejectedPair
from cc_prep.formats import sequences
from cc_prep.formats.tar import read_shard
from cc_prep.formats.training_shards import FORMAT
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import PlannedShard
from pipelines.state import journal as journal_module
from pipelines.state.journal import Done, Journal, Pace, State, open_journal
from tests import job_factory


def worker(folder: Path, run: str = "run", **faults: object) -> ShardWorker:
    return with_step(job_factory.NumberStep(str(folder), **faults), run)  # type: ignore[arg-type]


def with_step(step: job_factory.NumberStep, run: str = "run") -> ShardWorker:
    State(step.folder).write_run(run)
    return ShardWorker(lambda device: step, RunInfo(step.folder, run, sequences.FORMAT, "cpu"))


def work(worker: ShardWorker, shard: PlannedShard) -> tuple[list[int], Done]:
    rows = {"shard": [json.dumps(shard.to_json())]}
    answer = worker(rows)
    assert answer["broken"] == [""]
    done = Done.from_json(answer["done"][0])
    path = f"{worker.run_info.folder}/{shard.name}.tar"
    numbers = [json.loads(members["json"])["number"] for _, members in read_shard(path)]
    assert State(worker.run_info.folder).done()[shard.name] == done
    return numbers, done


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_samples_and_rejects_in_order(tmp_path: Path, batch: int) -> None:
    shard = job_factory.shards(10, 10)[0]
    numbers, done = work(worker(tmp_path, batch=batch, rejects=[0, 4]), shard)
    assert numbers == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [reject.id for reject in done.rejects] == ["0000", "0004"]
    assert (done.samples, done.pairs) == (8, 10)
    assert State(str(tmp_path)).journals() == []


def test_a_step_that_wants_to_know_is_told_what_will_come(tmp_path: Path) -> None:
    class Prefetches(job_factory.NumberStep):
        def prefetch(self, pairs: Sequence[job_factory.ImagePair]) -> None:
            self.expected = list(pairs)

    step, shard = Prefetches(str(tmp_path)), job_factory.shards(3, 3)[0]
    work(with_step(step), shard)
    assert step.expected == list(shard.pairs)


def test_one_bad_pair_does_not_cost_its_batch(tmp_path: Path) -> None:
    numbers, done = work(worker(tmp_path, batch=4, fails=[2]), job_factory.shards(8, 8)[0])
    assert numbers == [0, 1, 3, 4, 5, 6, 7]
    assert "ZeroDivisionError: pair 2" in done.rejects[0].message
    assert done.rejects[0].reason == "failed"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_device_is_broken_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, is_broken: bool
) -> None:
    """Keeps away: a pair's own error that costs a GPU, or a GPU's that costs a pair."""
    monkeypatch.setattr(devices, "is_broken_device", lambda error: is_broken)
    one = worker(tmp_path)
    one.run_info = replace(one.run_info, device=device)
    assert one._is_broken_device(RuntimeError()) is (is_broken and device == "cuda")


def test_five_failures_in_a_row_end_the_job(tmp_path: Path) -> None:
    """Keeps away: a broken machine that turns a whole data set into rejects."""
    with pytest.raises(JobFailed, match="ZeroDivisionError: pair 6"):
        work(worker(tmp_path, fails=range(2, 20)), job_factory.shards(20, 20)[0])
    assert not (tmp_path / "train-000000.tar").exists()


class Sizes(job_factory.NumberStep):
    """Notes the sizes of its batches."""

    sizes: list[int]

    def __call__(self, pairs: Sequence[job_factory.ImagePair]) -> list:
        self.sizes = [*getattr(self, "sizes", []), len(pairs)]
        return super().__call__(pairs)


def test_out_of_memory_halves_and_remembers(tmp_path: Path) -> None:
    step = Sizes(str(tmp_path), batch=8, most_at_once=2)
    numbers, _ = work(with_step(step), job_factory.shards(16, 16)[0])
    assert numbers == list(range(16))
    assert step.sizes == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]
    assert step.freed == 3


def test_a_pair_too_large_alone_is_rejected(tmp_path: Path) -> None:
    _, done = work(worker(tmp_path, batch=4, most_at_once=0), job_factory.shards(4, 4)[0])
    assert [reject.reason for reject in done.rejects] == ["out of memory"] * 4


def journal(shard: PlannedShard, run: str, in_flight: Sequence[int], **more: object) -> Journal:
    keys = [job_factory.pair(i).key for i in in_flight]
    return Journal(shard.name, run, "host", keys, **more)  # type: ignore[arg-type]


def test_suspects_go_alone_and_the_second_death_rejects(tmp_path: Path) -> None:
    shard = job_factory.shards(8, 8)[0]
    state = State(str(tmp_path))
    state.write_journal(journal(shard, "run", [2, 3], crashes={job_factory.pair(3).key: 1}))
    step = Sizes(str(tmp_path), batch=4)
    numbers, done = work(with_step(step), shard)
    assert numbers == [0, 1, 2, 4, 5, 6, 7]
    assert [reject.id for reject in done.rejects] == ["0003"]
    assert "2 workers died" in done.rejects[0].message
    assert step.sizes == [2, 1, 4], "the suspect alone, its neighbours in batches"


def test_a_stopped_job_accuses_nobody(tmp_path: Path) -> None:
    """Keeps away: a pair set aside because its user pressed Ctrl-C twice."""
    shard = job_factory.shards(4, 4)[0]
    for run in ("first", "second", "third"):
        State(str(tmp_path)).write_journal(journal(shard, run, [1]))
    numbers, done = work(worker(tmp_path, run="fourth"), shard)
    assert numbers == [0, 1, 2, 3]
    assert done.rejects == ()


def test_a_worker_that_dies_between_pairs_ends_the_job(tmp_path: Path) -> None:
    shard = job_factory.shards(4, 4)[0]
    State(str(tmp_path)).write_journal(journal(shard, "run", [], crashes_outside_pairs=2))
    with pytest.raises(JobFailed, match="3 times between pairs"):
        work(worker(tmp_path), shard)


@pytest.mark.parametrize("batch", [1, 4])
def test_retry_makes_only_what_is_missing(tmp_path: Path, batch: int) -> None:
    """Keeps away: a retried shard that differs from one never in trouble, or redoes it all."""
    shard = job_factory.shards(10, 10)[0]
    _, first = work(worker(tmp_path, rejects=[0, 4, 9]), shard)
    step = Sizes(str(tmp_path), batch=batch, rejects=[4])
    again = replace(shard, existing_sha256=first.sha256)
    numbers, done = work(with_step(step), again)
    assert numbers == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert sum(step.sizes) == 3
    fresh = tmp_path / "fresh"
    _, undisturbed = work(worker(fresh, rejects=[4]), shard)
    assert done.sha256 == undisturbed.sha256
    assert not done.earlier_file_changed


def test_nothing_is_kept_of_a_file_that_changed(tmp_path: Path) -> None:
    """Keeps away: a flipped bit of a finished shard that is copied into the new one, whose digest
    then says that all is well.
    """
    [shard] = job_factory.shards(10, 10)
    _, first = work(worker(tmp_path, rejects=[4]), shard)
    path = tmp_path / f"{shard.name}.tar"
    path.write_bytes(path.read_bytes().replace(b'"number": 7', b'"number": 8'))
    step = Sizes(str(tmp_path), batch=10)
    numbers, done = work(with_step(step), replace(shard, existing_sha256=first.sha256))
    assert numbers == list(range(10))
    assert sum(step.sizes) == 10
    assert done.earlier_file_changed


def test_what_is_seen_of_a_shard_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: progress that counts nothing, and a crash of which no pair is suspected."""
    monkeypatch.setattr(journal_module, "MAX_PAIRS", 1)  # a fake takes no longer than its journal
    [shard] = job_factory.shards(5, 5)
    state = State(str(tmp_path))
    seen = []

    class Looking(job_factory.NumberStep):
        def __call__(self, pairs: Sequence[job_factory.ImagePair]) -> list:
            journal = state.journal(shard.name)
            assert journal is not None
            assert journal.in_flight == [pair.key for pair in pairs]
            seen.append((len(pairs), journal.done, journal.rejected))
            return super().__call__(pairs)

    step = Looking(str(tmp_path), batch=2, rejects=[1])
    work(with_step(step), shard)
    assert seen == [(2, 0, 0), (2, 1, 1), (1, 3, 1)]


@pytest.mark.parametrize(("crashes", "rejected"), [(1, False), (2, True), (3, True)])
def test_how_many_crashes_set_a_pair_aside(tmp_path: Path, crashes: int, rejected: bool) -> None:
    """Keeps away: one crash of the machine that costs a pair, and a pair that is tried for ever."""
    [shard] = job_factory.shards(3, 3)
    crashed = {job_factory.pair(1).key: crashes}
    State(str(tmp_path)).write_journal(journal(shard, "other run", [], crashes=crashed))
    numbers, done = work(worker(tmp_path), shard)
    assert numbers == ([0, 2] if rejected else [0, 1, 2])
    assert [reject.id for reject in done.rejects] == (["0001"] if rejected else [])


@pytest.mark.parametrize(("before", "ends"), [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("run", ["run", "other run"])
def test_crashes_between_pairs_are_counted_in_one_run(
    tmp_path: Path, before: int, ends: bool, run: str
) -> None:
    """Keeps away: a job that is restarted by hand and ends at once for what happened long ago."""
    [shard] = job_factory.shards(2, 2)
    state = State(str(tmp_path))
    state.write_journal(journal(shard, run, [], crashes_outside_pairs=before))
    if ends and run == "run":
        with pytest.raises(JobFailed, match="its worker died 3 times between pairs"):
            open_journal(shard.name, "run", state.journal(shard.name))
    else:
        counted = open_journal(shard.name, "run", state.journal(shard.name)).crashes_outside_pairs
        assert counted == (before + 1 if run == "run" else 0)


def test_a_crash_with_pairs_in_flight_is_none_between_pairs() -> None:
    [shard] = job_factory.shards(4, 4)
    left = journal(shard, "run", [1], crashes_outside_pairs=2)
    opened = open_journal(shard.name, "run", left)
    assert opened.crashes_outside_pairs == 2
    assert opened.crashes == {job_factory.pair(1).key: 1}


def test_failures_in_a_row_are_counted_from_the_last_success(tmp_path: Path) -> None:
    """Keeps away: a job that ends at the fifth bad pair of a hundred thousand."""
    [shard] = job_factory.shards(12, 12)
    numbers, done = work(worker(tmp_path, fails=[0, 1, 2, 3, 5, 6, 7, 8]), shard)
    assert numbers == [4, 9, 10, 11]
    assert len(done.rejects) == 8


class OutOfMemoryError(Exception):
    """As torch's is named."""


def test_torchs_lack_of_memory_is_known_by_its_name(tmp_path: Path) -> None:
    class Full(job_factory.NumberStep):
        def __call__(self, pairs: Sequence[job_factory.ImagePair]) -> list:
            if len(pairs) > 1:
                raise OutOfMemoryError("CUDA out of memory\nof many lines")
            return super().__call__(pairs)

    step = Full(str(tmp_path), batch=4)
    numbers, _ = work(with_step(step), job_factory.shards(4, 4)[0])
    assert numbers == [0, 1, 2, 3]
    assert step.freed == 3


def test_messages_of_rejects_are_short_and_without_zeros(tmp_path: Path) -> None:
    """Keeps away: a table of rejects that no reader of text columns takes."""

    class Wordy(job_factory.NumberStep):
        def _one(self, number: int) -> RejectedPair:
            return RejectedPair(Reason.UNREADABLE_IMAGE, "a\0" * 600)

    step = Wordy(str(tmp_path))
    _, done = work(with_step(step), job_factory.shards(1, 1)[0])
    assert [reject.message for reject in done.rejects] == ["a" * 500]


def test_rows_of_the_index_are_noted_where_there_is_one(tmp_path: Path) -> None:
    [shard] = job_factory.shards(3, 3)
    _, done = work(worker(tmp_path), shard)
    assert done.index == []
    folder = tmp_path / "indexed"
    step, info = job_factory.NumberStep(str(folder)), RunInfo(str(folder), "r", FORMAT, "cpu")
    State(str(folder)).write_run("r")
    _, done = work(ShardWorker(lambda device: step, info), shard)
    assert [row["offset"] for row in done.index] == [0, 1024, 2048]
    assert done.seconds >= 0


def deep(number: int) -> None:
    raise ValueError(f"number {number}")


def test_a_reject_names_the_place_of_its_failure(tmp_path: Path) -> None:
    """Keeps away: the engine's own line as the place of every failure."""

    class Deep(job_factory.NumberStep):
        def _one(self, number: int) -> dict[str, bytes]:
            deep(number)
            return {}

    _, done = work(with_step(Deep(str(tmp_path))), job_factory.shards(1, 1)[0])
    line = deep.__code__.co_firstlineno + 1
    [reject] = done.rejects
    assert reject.message == f"ValueError: number 0 ({__file__}:{line})"
    trace = (tmp_path / f".state/failures/{reject.key}.txt").read_text()
    assert trace.startswith("Traceback")
    assert "in _one\n" in trace


def test_a_pair_that_never_fits_does_not_halve_the_others(tmp_path: Path) -> None:
    """Keeps away: one huge pair after which a GPU is given half a batch for good."""

    class OneHuge(Sizes):
        def __call__(self, pairs: Sequence[job_factory.ImagePair]) -> list:
            outcome = super().__call__(pairs)
            if any(pair.id == "0001" for pair in pairs):
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ...")
            return outcome

    step = OneHuge(str(tmp_path), batch=4)
    numbers, done = work(with_step(step), job_factory.shards(8, 8)[0])
    assert numbers == [0, 2, 3, 4, 5, 6, 7]
    assert done.rejects[0].reason == "out of memory"
    assert step.sizes == [4, 2, 1, 1, 2, 4]


def test_on_a_slow_store_the_journal_names_many_pairs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a PUT before every sequence that a GPU scores in ten milliseconds."""
    spans: list[list[str]] = []
    write = State.write_journal

    def slow(state: State, journal: Journal) -> None:
        spans.append(journal.in_flight)
        write(state, journal)

    monkeypatch.setattr(State, "write_journal", slow)
    monkeypatch.setattr(
        Pace, "measured", lambda pace, *_: setattr(pace, "pairs_per_journal_write", 4)
    )
    [shard] = job_factory.shards(10, 10)
    numbers, _ = work(worker(tmp_path), shard)
    assert numbers == list(range(10))
    assert [len(span) for span in spans] == [0, 1, 4, 4, 1, 0]
    # Those of a span that died are tried one by one, each with a journal of its own.
    again = tmp_path / "again"
    write(State(str(again)), journal(shard, "run", [2, 3, 4, 5]))
    spans.clear()
    work(worker(again), shard)
    assert [len(span) for span in spans] == [0, 1, 1, 1, 1, 1, 1, 4, 0]


class Poisoned(job_factory.NumberStep):
    """A GPU that fails at pair 2, and from then on at every call in this process."""

    broken = poisoned = False

    def __call__(self, pairs: Sequence[job_factory.ImagePair]) -> list:
        if self.poisoned or any(pair.id == "0002" for pair in pairs):
            self.poisoned = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return super().__call__(pairs)

    def check_device(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


class Ended(BaseException):
    """In place of the end of the process."""


def on_a_gpu(step: Poisoned) -> ShardWorker:
    State(step.folder).write_run("run")
    return ShardWorker(lambda device: step, RunInfo(step.folder, "run", sequences.FORMAT, "cuda"))


def end(code: int) -> None:
    assert code
    raise Ended


def test_a_gpu_that_fails_ends_its_worker_and_rejects_no_good_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: good pairs that are `failed` in a finished shard, because a GPU was poisoned."""
    monkeypatch.setattr("os._exit", end)
    [shard] = job_factory.shards(8, 8)
    for _ in range(2):  # in its batch, then alone: now it is the pair's fault
        with pytest.raises(Ended):
            on_a_gpu(Poisoned(str(tmp_path), batch=4)).run(shard)
    numbers, done = work(on_a_gpu(Poisoned(str(tmp_path), batch=4)), shard)
    assert numbers == [0, 1, 3, 4, 5, 6, 7]
    [reject] = done.rejects
    assert reject.reason == "killed its process"
    assert "illegal memory access" in reject.message


def test_a_broken_gpu_gives_its_shard_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a GPU that is broken for good, and sets all pairs aside two crashes at a time."""
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    [shard] = job_factory.shards(8, 8)
    with pytest.raises(Ended):
        on_a_gpu(Poisoned(str(tmp_path), batch=4)).run(shard)
    broken = Poisoned(str(tmp_path), batch=4)
    broken.broken = True
    rows = on_a_gpu(broken)({"shard": [json.dumps(shard.to_json())]})
    assert rows["done"] == [""]
    device = json.loads(rows["broken"][0])
    assert device["gpus"] == "3"
    assert "uncorrectable ECC" in device["error"]
    # The next run, on another GPU, holds nothing against the pairs that were in flight.
    left = State(str(tmp_path)).journal(shard.name)
    opened = open_journal(shard.name, "next run", left)
    assert [opened.crashes_of(pair.key) for pair in shard.pairs] == [0] * 8


def test_on_a_cpu_such_an_error_is_the_pairs(tmp_path: Path) -> None:
    numbers, done = work(with_step(Poisoned(str(tmp_path), batch=1)), job_factory.shards(3, 3)[0])
    assert (numbers, done.rejects[0].reason) == ([0, 1], "failed")
