"""Stages that overlap: the same bytes, rejects and journal as one after the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.errors import (
    FileRefused,
    JobFailed,
    Reason,
    RejectedPair,
    StoreFailed,
    StoreRefused,
    UserError,
)
from cc_prep.formats import sequences
from cc_prep.formats.tar import read_shard
from cc_prep.records import ImagePair
from pipelines.overlap import read_ahead, stage_threads
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.state import journal as journal_module
from pipelines.state.journal import Done, Journal, State
from tests import job_factory

SECONDS = 60  # until a thread that nobody started is missed
STAGES = ("read", "compute", "encode")


class Staged:
    """Samples that are their pair's number, in three stages.

    faults: by stage and number what is raised there. most: pairs that fit on the device. watch:
    called in every stage, with its name and the numbers of its pairs.
    """

    def __init__(
        self,
        batch: int = 1,
        faults: dict[tuple[str, int], Exception] | None = None,
        most: int = 10**9,
        watch: Callable[[str, list[int]], None] = lambda stage, numbers: None,
    ) -> None:
        self.pairs_per_batch, self.most, self.watch = batch, most, watch
        self.faults = faults or {}
        self.threads = dict[str, set[str]]()
        self.freed = 0

    def __call__(self, pairs: Sequence[ImagePair]) -> list:
        return self.encode(pairs, self.compute(pairs, self.read(pairs)))

    def _stage(self, name: str, pairs: Sequence[ImagePair]) -> list[int]:
        numbers = [int(pair.id) for pair in pairs]
        self.threads.setdefault(name, set()).add(threading.current_thread().name)
        self.watch(name, numbers)
        for number in numbers:
            if (name, number) in self.faults:
                raise self.faults[name, number]
        return numbers

    def read(self, pairs: Sequence[ImagePair]) -> list[str]:
        return [str(number) for number in self._stage("read", pairs)]

    def compute(self, pairs: Sequence[ImagePair], inputs: list[str]) -> list[float]:
        if len(pairs) > self.most:
            raise MemoryError(f"{len(pairs)} pairs do not fit")
        self._stage("compute", pairs)
        return [float(text) for text in inputs]

    def encode(self, pairs: Sequence[ImagePair], computed: list[float]) -> list:
        self._stage("encode", pairs)
        return [
            RejectedPair(Reason.UNREADABLE_IMAGE, f"number {number}")
            if number % 5 == 3
            else {"json": json.dumps({"number": number}).encode()}
            for number in computed
        ]

    def free_memory(self) -> None:
        self.freed += 1

    def check_device(self) -> None:
        pass


def work(folder: Path, step: Staged, device: str, pairs: int = 12) -> tuple[Done, ShardWorker]:
    State(str(folder)).write_run("run")
    info = RunInfo(str(folder), "run", sequences.FORMAT, device)
    worker = ShardWorker(lambda device: step, info)
    return worker.run(job_factory.shards(pairs, pairs)[0]), worker


def outcome(folder: Path, step: Staged, device: str) -> tuple[object, ...]:
    """What a shard's work ends with: its bytes and rejects, or the error."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done, worker = work(folder, step, device)
    except (JobFailed, StoreFailed) as error:
        assert not (folder / "train-000000.tar").exists()
        return type(error), str(error)
    numbers = [json.loads(files["json"])["number"] for _, files in read_shard(
        str(folder / "train-000000.tar")
    )]  # fmt: skip
    assert numbers == sorted(numbers)
    return done.sha256, done.rejects, worker.failures, worker.batch_size, step.freed


@settings(max_examples=25)
@given(
    batch=st.sampled_from([1, 2, 5]),
    most=st.sampled_from([1, 2, 10**9]),
    faults=st.dictionaries(
        st.tuples(st.sampled_from(STAGES), st.integers(0, 11)),
        st.sampled_from([ZeroDivisionError("a fault"), StoreFailed("no store")]),
        max_size=7,
    ),
)
def test_the_same_as_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory,
    batch: int,
    most: int,
    faults: dict[tuple[str, int], Exception],
) -> None:
    folder = tmp_path_factory.mktemp("overlap")
    plain = outcome(folder / "cpu", Staged(batch, faults, most), "cpu")
    overlapped = outcome(folder / "cuda", Staged(batch, faults, most), "cuda")
    if most > batch or not isinstance(plain[-1], int):
        assert overlapped == plain
    else:  # a batch that was read before the first one did not fit is tried as it is
        assert overlapped[:-1] == plain[:-1]


@pytest.mark.parametrize("kind", [StoreRefused, FileRefused])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_keys_that_a_store_no_longer_accepts_are_no_pairs_fault(
    tmp_path: Path, device: str, kind: type[UserError]
) -> None:
    """Keeps away: rejects of good pairs, since a token expired in the middle of a job, or the keys
    do not open a file that a step needs."""
    step = Staged(2, {("read", 3): kind("it is refused", "Give another")})
    with pytest.raises(kind, match="it is refused"):
        work(tmp_path, step, device)


def test_stages_overlap_and_no_more_than_one_batch_each(tmp_path: Path) -> None:
    """Keeps away: a GPU that waits for files, and a worker that reads a whole shard ahead."""
    last = 5
    begun = {(stage, i): threading.Event() for stage in STAGES for i in range(last + 4)}
    waited: list[bool] = []
    far_ahead: list[int] = []

    def watch(stage: str, numbers: list[int]) -> None:
        [number] = numbers
        begun[stage, number].set()
        # The next batch is read while this one is computed, and computed while this is encoded.
        ahead = {"compute": "read", "encode": "compute"}.get(stage)
        if ahead and number < last:
            waited.append(begun[ahead, number + 1].wait(SECONDS))
        if stage == "compute" and begun["read", number + 3].is_set():
            far_ahead.append(number)

    step = Staged(watch=watch)
    done, _ = work(tmp_path, step, "cuda", last + 1)
    assert (done.pairs, all(waited), len(waited)) == (last + 1, True, 2 * last)
    assert not far_ahead
    assert [len(step.threads[stage]) for stage in STAGES] == [1, 1, 1]
    assert len(set.union(*step.threads.values())) == len(STAGES)


def test_on_a_cpu_nothing_has_a_thread(tmp_path: Path) -> None:
    """Keeps away: workers of one core each that run three threads."""
    step = Staged()
    work(tmp_path, step, "cpu")
    assert {name for names in step.threads.values() for name in names} == {
        threading.current_thread().name
    }


@pytest.mark.parametrize("span", [1, 4])
def test_the_journal_names_all_that_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    """Keeps away: a pair that kills its worker while it is read ahead, and is never found out."""
    shard, state = job_factory.shards(12, 12)[0], State(str(tmp_path))
    keys = [pair.key for pair in shard.pairs]
    crashed = {keys[4]: 1, keys[5]: 1, keys[7]: 2}
    state.write_journal(Journal(shard.name, "before", "host", crashes=crashed))

    def watch(stage: str, numbers: list[int]) -> None:
        journal = state.journal(shard.name)
        assert journal is not None
        touched = {keys[number] for number in numbers}
        assert touched <= set(journal.in_flight)
        if touched & crashed.keys():
            assert set(journal.in_flight) == touched, "a suspect is alone"

    monkeypatch.setattr(journal_module, "MAX_PAIRS", span)
    monkeypatch.setattr(journal_module, "SHARE", 1e-12)
    done, _ = work(tmp_path, Staged(watch=watch), "cuda")
    rejects = {reject.id: reject.reason for reject in done.rejects}
    assert rejects == {
        "0003": "unreadable image",
        "0007": "killed its process",
        "0008": "unreadable image",
    }


def test_items_are_read_one_ahead_and_errors_keep_their_place() -> None:
    pulled: list[int] = []

    def numbers() -> object:
        for number in range(3):
            pulled.append(number)
            yield number
        raise ZeroDivisionError("damaged")

    received: list[object] = []
    with stage_threads() as threads:
        ahead = read_ahead(numbers(), threads)  # type: ignore[arg-type]
        for _ in range(3):
            received.append(next(ahead))
            assert len(pulled) <= len(received) + 1
        with pytest.raises(ZeroDivisionError):
            next(ahead)
    assert received == [0, 1, 2]
