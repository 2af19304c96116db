"""Done files and journals: which shards are finished, and which are in progress."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

from cc_prep import storage
from cc_prep.formats.rejects import Reject
from pipelines.state import FOLDER


@dataclass(frozen=True)
class Done:
    """A finished shard.

    pairs: number of pairs planned for it; each is a sample or a reject. input_digest: SHA-256 over
        its input, pairs or stored sequences. bytes, sha256: of its file. seconds: time that a
        worker took. index: a row for each sample, without the shard, for formats with an index.
        gpu: model of the GPU that made it, empty on a CPU. earlier_file_changed: whether samples of
        an earlier file were to be kept and it had changed since, so that all pairs were made again.
    """

    shard: str
    pairs: int
    input_digest: str
    _: KW_ONLY
    samples: int
    bytes: int
    sha256: str
    seconds: float
    rejects: tuple[Reject, ...] = ()
    index: list[dict[str, Any]] = field(default_factory=list)
    gpu: str = ""
    earlier_file_changed: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Done:
        """Raises AttributeError, KeyError or TypeError where it is no such record."""
        rejects = tuple(Reject(**row) for row in value["rejects"])
        done = cls(**{**value, "rejects": rejects})
        if type(done.bytes) is not int:
            raise TypeError("bytes are an int")
        return done


@dataclass
class Journal:
    """A shard in progress.

    in_flight: keys of the pairs that the worker processes now. done, rejected: number of pairs so
        far. crashes: number of crashes with a pair in flight, by key. crashes_outside_pairs: number
        of crashes with none in flight, during this run. device_fault: the GPU error with which the
        process ended itself; last_device_fault: that of the process before. device_faults,
        device_crashes: number of such ends during this run, and the pairs in flight at them.
    """

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

    def crashes_of(self, key: str) -> int:
        """Number of crashes with this pair in flight."""
        return self.crashes.get(key, 0) + self.device_crashes.get(key, 0)


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
        """Finished shards by name."""
        finished = {}
        for name, value in self._read_all(".done.json").items():
            try:
                done = Done.from_json(value)
            except (AttributeError, KeyError, TypeError):  # then it is made again
                continue
            if f"{done.shard}.done.json" == name:
                finished[done.shard] = done
        return finished

    def write_journal(self, journal: Journal) -> None:
        path = self.path(f"{journal.shard}.journal.json")
        storage.write_json(path, asdict(journal), durable=False)

    def journal(self, shard: str) -> Journal | None:
        return _journal(self._read(f"{shard}.journal.json"))

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
        """Number of pairs by shard; None if no job ever started."""
        plan = self._read("plan.json")
        return plan if isinstance(plan, dict) else None

    def write_failure(self, key: str, trace: str) -> None:
        """Writes the whole traceback of a `failed` pair; its reject has only the last line."""
        storage.write_bytes(self.path(f"failures/{key}.txt"), trace.encode("utf-8", "replace"))

    def write_run(self, run: str) -> None:
        """Writes the file by which workers know that they see this folder; removes older ones."""
        for name in storage.list_files(self.folder, ".run.json"):
            storage.remove(self.path(name))
        storage.write_json(self.path(f"{run}.run.json"), {"run": run})

    def has_run(self, run: str) -> bool:
        """Whether this machine sees the file of `write_run`."""
        return storage.exists(self.path(f"{run}.run.json"))

    def remove_run(self, run: str) -> None:
        storage.remove(self.path(f"{run}.run.json"))

    def _read_all(self, suffix: str) -> dict[str, Any]:
        """The values of all files with this suffix, by name; None for a damaged one."""
        names = storage.list_files(self.folder, suffix)
        contents = storage.read_many([self.path(name) for name in names])
        return {name: _parsed(data) for name, data in zip(names, contents, strict=True)}

    def _read(self, name: str) -> Any:
        """A file's value; None if the file is missing (by now) or damaged."""
        return _parsed(storage.read_many([self.path(name)])[0])


def _journal(value: Any) -> Journal | None:
    try:
        return Journal(**value)
    except TypeError:  # not there, or nothing of ours
        return None


def _parsed(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
