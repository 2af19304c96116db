"""Done files and journals: which shards are finished, which are in progress, and how far."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from cc_prep import storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import training_shards
from cc_prep.formats.rejects import Reject
from cc_prep.redaction import without_credentials
from pipelines.state import FOLDER

CRASHES_OUTSIDE_PAIRS = 3
# The share of the time of pairs that writing their journal may take. On a disk a write takes a
# millisecond, and each batch has its own.
SHARE = 0.02
# Pairs that a write records: their inputs are held in memory, and after a crash they are tried one
# by one.
MAX_PAIRS = 32

STRICT = ConfigDict(strict=True, extra="forbid")
Count = Annotated[int, Field(ge=0)]
# Pairs by shard. A shard is named by its split, which the manifest restricts to such characters.
Plan = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+-[0-9]{6}$")], Annotated[int, Field(gt=0)]
]


JsonText = str | bytes  # named here, since `Done` has a field that is called bytes


@dataclass(frozen=True)
class Done:
    """A finished shard.

    Attributes:
        pairs: Number of pairs planned for it; each is a sample or a reject.
        input_digest: SHA-256 over its input, pairs or stored sequences.
        bytes, sha256: Of its file.
        seconds: Time that a worker took.
        start_seconds: The part of it before the first pair: its networks were loaded.
        index: A row for each sample, without the shard, for formats with an index.
        gpu: Model of the GPU that made it, empty on a CPU.
        earlier_file_changed: Whether samples of an earlier file were to be kept and it had changed
            since, so that all pairs were made again.
    """

    __pydantic_config__ = STRICT

    shard: str
    pairs: Count
    input_digest: str
    _: KW_ONLY
    samples: Count
    bytes: Count
    sha256: str
    seconds: float
    start_seconds: float = 0.0
    rejects: tuple[Reject, ...] = ()
    index: list[dict[str, Any]] = field(default_factory=list)
    gpu: str = ""
    earlier_file_changed: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, text: JsonText) -> Done:
        """The record of a done file. Raises ValueError for what is none, or contradicts itself."""
        done = _DONE.validate_json(text)
        if done.samples + len(done.rejects) != done.pairs:
            raise ValueError(
                f"{done.samples} samples and {len(done.rejects)} rejects of {done.pairs} pairs"
            )
        training_shards.check_rows(done.index)
        return done


@dataclass
class Journal:
    """A shard in progress.

    Attributes:
        in_flight: Keys of the pairs that the worker processes now.
        done, rejected: Number of pairs so far.
        crashes: Number of crashes with a pair in flight, by key.
        crashes_outside_pairs: Number of crashes with none in flight, during this run.
        device_fault: The GPU error with which the process ended itself.
        last_device_fault: That of the process before.
        device_faults, device_crashes: Number of such ends during this run, and the pairs in flight
            at them.
        seconds: Time that the pairs so far took.
    """

    __pydantic_config__ = STRICT

    shard: str
    run: str
    host: str
    in_flight: list[str] = field(default_factory=list)
    done: int = 0
    rejected: int = 0
    crashes_outside_pairs: int = 0
    crashes: dict[str, int] = field(default_factory=dict)
    device_fault: str = ""
    last_device_fault: str = ""
    device_faults: int = 0
    device_crashes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def crashes_of(self, key: str) -> int:
        """Number of crashes with this pair in flight."""
        return self.crashes.get(key, 0) + self.device_crashes.get(key, 0)


def open_journal(shard: str, run: str, previous: Journal | None) -> Journal:
    """A new journal that remembers the crashes of the one left behind, if there is one.

    Raises JobFailed if workers die again and again with no pair in flight.
    """
    journal = Journal(shard, run, socket.gethostname())
    if previous is None:
        return journal
    journal.crashes = dict(previous.crashes)
    # Only a crash that this run outlived is a worker's: otherwise the whole job was stopped.
    if previous.run != run:
        return journal
    journal.crashes_outside_pairs = previous.crashes_outside_pairs
    journal.device_faults = previous.device_faults
    journal.device_crashes = dict(previous.device_crashes)
    if previous.device_fault:
        journal.device_faults += 1
        journal.last_device_fault = previous.device_fault
    # A GPU that turns out broken takes its crashes with it: they are forgotten with the run.
    counts = journal.device_crashes if previous.device_fault else journal.crashes
    for key in previous.in_flight:
        counts[key] = counts.get(key, 0) + 1
    if not previous.in_flight:
        journal.crashes_outside_pairs += 1
    if journal.crashes_outside_pairs >= CRASHES_OUTSIDE_PAIRS:
        raise JobFailed(
            f"{shard}: its worker died {journal.crashes_outside_pairs} times between pairs"
        )
    return journal


class Pace:
    """Measures journal writes and work on pairs.

    Attributes:
        pairs_per_journal_write: How many pairs to record with the next write.
    """

    def __init__(self) -> None:
        self.pairs_per_journal_write = 1
        self._write_seconds = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measures the block, which writes the journal."""
        began = time.monotonic()
        yield
        self._write_seconds = time.monotonic() - began

    def worked(self, pair_seconds: float) -> None:
        """Takes the time that a pair took, beside that of the last write."""
        self.measured(self._write_seconds, pair_seconds)

    def measured(self, write_seconds: float, pair_seconds: float) -> None:
        """Sets `pairs_per_journal_write` from the times of a write and of a pair."""
        pairs = write_seconds / (SHARE * max(pair_seconds, 1e-9))
        self.pairs_per_journal_write = max(1, min(MAX_PAIRS, math.ceil(pairs)))


_DONE, _JOURNAL, _PLAN = TypeAdapter(Done), TypeAdapter(Journal), TypeAdapter(Plan)


class State:
    """Reads and writes the `.state` folder of an output folder."""

    def __init__(self, folder: str) -> None:
        self.folder = storage.join(folder, FOLDER)

    def path(self, name: str) -> str:
        return storage.join(self.folder, name)

    def write_done(self, done: Done) -> None:
        storage.write_json(self.path(f"{done.shard}.done.json"), done.to_json())
        storage.remove(self.path(f"{done.shard}.journal.json"))

    def done(self) -> dict[str, Done]:
        """Finished shards by name; a shard whose done file is damaged is none of them."""
        finished = {}
        for name, data in self._read_all(".done.json").items():
            try:
                done = Done.from_json(data)
            except ValueError:  # then it is made again
                continue
            if f"{done.shard}.done.json" == name:
                finished[done.shard] = done
        return finished

    def write_journal(self, journal: Journal) -> None:
        path = self.path(f"{journal.shard}.journal.json")
        storage.write_json(path, asdict(journal), durable=False)

    def journal(self, shard: str) -> Journal | None:
        [data] = storage.read_many([self.path(f"{shard}.journal.json")])
        return None if data is None else _journal(data)

    def journals(self) -> list[Journal]:
        """Journals of shards in progress, also of those that a crash left behind."""
        journals = map(_journal, self._read_all(".journal.json").values())
        return [journal for journal in journals if journal is not None]

    def remove_journals(self, shards: Collection[str]) -> None:
        """Removes the journals of these shards, which a crash left behind."""
        for name in storage.list_files(self.folder, ".journal.json"):
            if name.removesuffix(".journal.json") in shards:
                storage.remove(self.path(name))

    def write_plan(self, plan: dict[str, int]) -> None:
        storage.write_json(self.path("plan.json"), plan)

    def plan(self) -> dict[str, int] | None:
        """Number of pairs by shard; None if no job ever started.

        Raises UserError for a damaged file, and for a name that no shard can have: it would be
        planned and not made for ever.
        """
        path = self.path("plan.json")
        [data] = storage.read_many([path])
        if data is None:
            return None
        try:
            return _PLAN.validate_json(data, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part!r}: " for part in first["loc"][:1])
            raise UserError(
                f"{path}: {where}no plan of shards ({first['msg']})",
                "Remove this file, and run the job again for all splits, which writes it anew",
            ) from None

    def write_failure(self, key: str, trace: str) -> None:
        """Writes the whole traceback of a `failed` pair; its reject has only the last line."""
        text = without_credentials(trace).encode("utf-8", "replace")
        storage.write_bytes(self.path(f"failures/{key}.txt"), text)

    def write_run(self, run: str) -> None:
        """Writes the file by which workers know that they see this folder; removes older ones."""
        for name in storage.list_files(self.folder, ".run.json"):
            storage.remove(self.path(name))
        storage.write_json(self.path(f"{run}.run.json"), {"run": run})

    def has_run(self, run: str) -> bool:
        """Whether this machine sees the file of `write_run`."""
        return storage.exists(self.path(f"{run}.run.json"))

    def runs(self) -> set[str]:
        """The runs whose file is there: the one that lasts, or that was killed last."""
        names = storage.list_files(self.folder, ".run.json")
        return {name.removesuffix(".run.json") for name in names}

    def remove_run(self, run: str) -> None:
        storage.remove(self.path(f"{run}.run.json"))

    def _read_all(self, suffix: str) -> dict[str, bytes]:
        """The contents of all files with this suffix that are still there, by name."""
        names = storage.list_files(self.folder, suffix)
        contents = storage.read_many([self.path(name) for name in names])
        named = zip(names, contents, strict=True)
        return {name: data for name, data in named if data is not None}


def _journal(data: bytes) -> Journal | None:
    """The journal of a file; None for a damaged one, of which no pair is suspected."""
    try:
        return _JOURNAL.validate_json(data)
    except ValidationError:
        return None
