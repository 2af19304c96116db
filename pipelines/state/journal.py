"""Done files and journals: which shards are finished, and what workers are at."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from typing import Any

from cc_prep import storage
from cc_prep.formats.rejects import Reject
from pipelines.state import FOLDER


@dataclass(frozen=True)
class Done:
    """A finished shard.

    pairs: so many were planned for it; each is a sample or a reject. input_digest: SHA-256 over
        what it was made from, pairs or stored sequences. bytes, sha256: of its file. seconds: that
        a worker took. index: a row a sample, without the shard, for formats with an index.
    """

    shard: str
    pairs: int
    input_digest: str
    samples: int
    bytes: int
    sha256: str
    seconds: float
    rejects: tuple[Reject, ...] = ()
    index: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Journal:
    """A shard under way.

    in_flight: keys of the pairs that the worker is at. done, rejected: pairs so far. crashes: how
        often a process died with a pair in flight, by key. crashes_outside_pairs: how often one
        died with none in flight, during this run.
    """

    shard: str
    run: str
    host: str
    in_flight: list[str] = field(default_factory=list)
    done: int = 0
    rejected: int = 0
    crashes_outside_pairs: int = 0
    crashes: dict[str, int] = field(default_factory=dict)


class State:
    """Reads and writes the `.state` folder of an output folder."""

    def __init__(self, folder: str) -> None:
        self.folder = storage.join(folder, FOLDER)

    def path(self, name: str) -> str:
        return storage.join(self.folder, name)

    def write_done(self, done: Done) -> None:
        storage.write_json(self.path(f"{done.shard}.done.json"), asdict(done))
        storage.remove(self.path(f"{done.shard}.journal.json"))

    def done(self) -> dict[str, Done]:
        """Finished shards by name."""
        finished = {}
        for name in storage.list_files(self.folder, ".done.json"):
            value = self._read(name)
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # then it is made again
                rejects = tuple(Reject(**row) for row in value.pop("rejects"))
                done = Done(**value, rejects=rejects)
                if f"{done.shard}.done.json" == name and type(done.bytes) is int:
                    finished[done.shard] = done
        return finished

    def write_journal(self, journal: Journal) -> None:
        place = self.path(f"{journal.shard}.journal.json")
        storage.write_json(place, asdict(journal), durable=False)

    def journal(self, shard: str) -> Journal | None:
        value = self._read(f"{shard}.journal.json")
        try:
            return Journal(**value)
        except TypeError:  # not there, or nothing of ours
            return None

    def journals(self) -> list[Journal]:
        """Shards under way, or left so by a crash."""
        names = storage.list_files(self.folder, ".journal.json")
        journals = (self.journal(name.removesuffix(".journal.json")) for name in names)
        return [journal for journal in journals if journal is not None]

    def write_plan(self, plan: dict[str, int]) -> None:
        storage.write_json(self.path("plan.json"), plan)

    def plan(self) -> dict[str, int] | None:
        """Pairs by shard; None where no job ever started."""
        plan = self._read("plan.json")
        return plan if isinstance(plan, dict) else None

    def _read(self, name: str) -> Any:
        """A file's value; None if it is not there (any more) or damaged by a dying disk."""
        try:
            return storage.read_json(self.path(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
