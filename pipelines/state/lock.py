"""One job at a time in an output folder."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cc_prep import storage
from cc_prep.errors import StoreFailed, UserError
from pipelines.state import FOLDER

HEARTBEAT_SECONDS = 10.0
# A holder on another host cannot be asked whether it lives; this long without a sign, it does not.
STALE_SECONDS = 90.0
# Clocks of two hosts may differ by more than that: before a lock is taken over, it is watched.
WATCH_SECONDS = 2.5 * HEARTBEAT_SECONDS
# Two jobs that look at an object store at the same moment both see no lock: each looks again.
LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    host: str
    pid: int
    born: str
    beat: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def alive(self) -> bool:
        """Whether the holder still runs: certain on this host, by its heartbeat on another."""
        if self.host != socket.gethostname():
            return abs(time.time() - self.beat) < STALE_SECONDS
        return _born(self.pid) == self.born


def holder(folder: str) -> Holder | None:
    """Who works in `folder` now, as far as one look tells; None if nobody does."""
    recorded = _read(folder)
    return recorded if recorded is not None and recorded.alive() else None


def refuse_if_held(folder: str) -> None:
    """Raises UserError if somebody works in `folder` now."""
    other = holder(folder)
    if other is not None:
        raise _at_work(folder, other)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Holds the lock of `folder` for the block. Raises UserError if somebody alive has it."""
    place = _place(folder)
    me = Holder(socket.gethostname(), os.getpid(), _born(os.getpid()), time.time())
    with _exclusive(place):
        refuse_if_held(folder)
        _watch(folder)
        storage.write_json(place, asdict(me))
        if storage.is_remote(place):
            time.sleep(LOOK_AGAIN_SECONDS)
            last = _read(folder)
            if last is not None and last != me:
                raise _at_work(folder, last)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            # Neither a full disk nor a store that fails for a while ends the heartbeat.
            with contextlib.suppress(OSError, StoreFailed):
                storage.write_json(place, {**asdict(me), "beat": time.time()}, durable=False)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        storage.remove(place)


@contextlib.contextmanager
def _exclusive(place: str) -> Iterator[None]:
    """Closes the moment between looking and taking, where the file system can."""
    if storage.is_remote(place):
        yield
        return
    import fcntl

    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(f"{place}.guard", "w") as guard:
        with contextlib.suppress(OSError):  # some network file systems have no flock
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _watch(folder: str) -> None:
    """Raises UserError if the lock of another host, though it looks old, is still being renewed."""
    before = _read(folder)
    if before is None or before.host == socket.gethostname():
        return
    time.sleep(WATCH_SECONDS)
    now = _read(folder)
    if now is not None and now != before:
        raise _at_work(folder, now)


def _at_work(folder: str, other: Holder) -> UserError:
    return UserError(f"{folder}: a job is at work there, {other}", "Wait for it or stop it")


def _read(folder: str) -> Holder | None:
    try:
        return Holder(**storage.read_json(_place(folder)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _place(folder: str) -> str:
    return storage.join(folder, FOLDER, "lock.json")


def _born(pid: int) -> str:
    """When a process started, so that a reused process number is not taken for its predecessor."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        pass
    try:  # no /proc: macOS
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"
