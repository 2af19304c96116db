"""`.state/` in an output folder: what is done, what is under way, and who is at work.

    plan.json              pairs by shard, as planned
    <shard>.done.json      written after the shard itself: a shard is done if and only if both
                           are there
    <shard>.journal.json   while a worker is at it: pairs in flight, done and rejected so far,
                           and which pairs were in flight when a process died
    lock.json              the running job's host and process

Every file is a few kilobytes and written whole, so the folder can be read at any time.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from typing import Any

from cc_prep import storage
from cc_prep.formats.rejects import Reject

FOLDER = ".state"


@dataclass(frozen=True)
class Done:
    """A finished shard. offsets: where each sample begins in it, for formats with an index."""

    shard: str
    pairs: int
    pairs_digest: str
    samples: int
    bytes: int
    sha256: str
    seconds: float
    rejects: tuple[Reject, ...] = ()
    offsets: dict[str, int] = field(default_factory=dict)


@dataclass
class Journal:
    """A shard under way. `deaths`: how often a pair's process died with it in flight."""

    shard: str
    run: str
    host: str
    in_flight: list[str] = field(default_factory=list)
    done: int = 0
    rejected: int = 0
    idle_deaths: int = 0
    deaths: dict[str, int] = field(default_factory=dict)


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
        found = {}
        for name in storage.list_files(self.folder, ".done.json"):
            value = self._read(name)
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # then it is made again
                rejects = tuple(Reject(**row) for row in value.pop("rejects"))
                done = Done(**value, rejects=rejects)
                if f"{done.shard}.done.json" == name and type(done.bytes) is int:
                    found[done.shard] = done
        return found

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
        found = (self.journal(name.removesuffix(".journal.json")) for name in names)
        return [journal for journal in found if journal is not None]

    def write_plan(self, plan: dict[str, int]) -> None:
        storage.write_json(self.path("plan.json"), plan)

    def plan(self) -> dict[str, int] | None:
        """Pairs by shard; None where no job ever started."""
        found = self._read("plan.json")
        return found if isinstance(found, dict) else None

    def _read(self, name: str) -> Any:
        """A file's value; None if it is not there (any more) or damaged by a dying disk."""
        try:
            return storage.read_json(self.path(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
