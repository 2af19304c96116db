"""One job at a time in an output folder.

On a disk the kernel holds the lock for its owner, and frees it when that process ends: it cannot be
taken from a living owner, however long that sleeps. On an object store, and on a network file
system without such locks, the lock is a file that only one process can create, and that its owner
renews while it lives. Such a lock is taken over after a long silence, or at once if its owner ran
on this machine and has ended. An owner that wakes up after that notices it, writes nothing more and
does not touch the new lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import filelock
from pydantic import ConfigDict, TypeAdapter, ValidationError

from cc_prep import storage
from cc_prep.errors import StoreFailed, UserError
from cc_prep.storage.file_lock import NO_LOCKS, refuse_link
from pipelines.state import FOLDER

HEARTBEAT_SECONDS = 10.0
# Clocks of two hosts may differ, so a lock is watched before it is taken over: for nine beats.
STALE_SECONDS = 90.0
# `cc-prep status` holds the kernel's lock for a moment, to see whether it is free.
KERNEL_SECONDS = 1.0


@dataclass(frozen=True)
class Holder:
    """The holder of a lock.

    Attributes:
        id: Unique for each time that the lock is taken.
        beat: Time of the last renewal.
        processes: The table of processes to which `pid` belongs; empty if it is not known.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    host: str
    pid: int
    id: str
    beat: float
    processes: str = ""

    @property
    def is_dead(self) -> bool:
        """Whether its process has certainly ended: it would be visible from here, and is not."""
        if not self.processes or self.processes != _processes():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


_HOLDER = TypeAdapter(Holder)


def _processes() -> str:
    """Identifies this boot of the machine and the pid namespace; empty if unknown.

    Containers of one host may share its name, while pid 7 is another process in each.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


class Held:
    """A lock that this process holds, as far as it knows.

    Attributes:
        taken_by: Who has taken it over.
    """

    def __init__(self) -> None:
        self.taken_by: Holder | None = None

    @property
    def stolen(self) -> bool:
        return self.taken_by is not None


def holder(folder: str) -> Holder | None:
    """The holder of the lock of `folder`, as far as a single look tells; None if there is none."""
    recorded = _read(folder)
    if recorded is None:
        return None
    free = None if storage.is_remote(folder) else _kernel_is_free(folder)
    if free is not None:
        return None if free else recorded
    beats = abs(time.time() - recorded.beat) < STALE_SECONDS
    return recorded if beats and not recorded.is_dead else None


def refuse_if_held(folder: str) -> None:
    """Raises UserError if another job works in `folder` now, or its lock is another folder's."""
    if not storage.is_remote(folder):
        refuse_link(*map(storage.local_path, (_guard(folder), _path(folder))))
    other = holder(folder)
    if other is not None:
        raise _at_work(folder, other)


@contextlib.contextmanager
def locked(folder: str, when_lost: Callable[[], None] = lambda: None) -> Iterator[Held]:
    """Holds the lock of `folder` for the block. Raises UserError if a living job has it.

    Args:
        when_lost: Called, in another thread, when this process slept so long that another took
            over.
    """
    identity, now = uuid.uuid4().hex, time.time()
    me = Holder(socket.gethostname(), os.getpid(), identity, now, _processes())
    held, stop = Held(), threading.Event()
    with contextlib.ExitStack() as stack:
        kernel = None if storage.is_remote(folder) else _kernel_lock(folder)
        if kernel is not None:
            stack.callback(kernel.release)
            storage.write_json(_path(folder), asdict(me), durable=False)
        else:
            _create(folder, me)

        def beat() -> None:
            while not stop.wait(HEARTBEAT_SECONDS):
                # Neither a full disk nor a store that fails or refuses for a while ends it.
                with contextlib.suppress(OSError, StoreFailed, UserError):
                    if kernel is None and _is_stolen(folder, me, held):
                        when_lost()
                        return
                    now = replace(me, beat=time.time())
                    storage.write_json(_path(folder), asdict(now), durable=False)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()

        def give_back() -> None:
            stop.set()
            thread.join()
            if not held.stolen and not (kernel is None and _is_stolen(folder, me, held)):
                storage.remove(_path(folder))

        try:
            yield held
        except BaseException:
            # A store that fails often fails here once more: the first error is the one to show.
            with contextlib.suppress(OSError, StoreFailed, UserError):
                give_back()
            raise
        give_back()


def _kernel_lock(folder: str) -> filelock.BaseFileLock | None:
    """The kernel's lock, taken; None on a file system without. Raises UserError if it is held."""
    path = storage.local_path(_guard(folder))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    refuse_link(path)
    with open(path, "a"):
        pass
    if _kernel_is_free(folder) is None:
        return None
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=KERNEL_SECONDS)
    except filelock.Timeout:
        raise _at_work(folder, _read(folder) or Holder("an unknown host", 0, "", 0.0)) from None
    return lock


def _kernel_is_free(folder: str) -> bool | None:
    """Whether the kernel's lock is free; None without such locks, or without a lock file."""
    import fcntl

    try:
        with open(storage.local_path(_guard(folder))) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (*NO_LOCKS, errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return True


def _create(folder: str, me: Holder) -> None:
    """Creates the lock file, or takes over that of a dead owner. Raises UserError."""
    if storage.create_json(_path(folder), asdict(me)):
        return
    before = _read(folder)
    if before is not None and before.id == me.id:  # the answer to a first try was lost
        return
    _watch(folder, before)
    claims = _claim(folder, before, me)
    try:
        if _read(folder) != before:  # it was taken over and given back meanwhile
            raise UserError(f"{folder}: another job took the lock", "Wait for it or stop it")
        # Watching took longer than a beat counts for.
        storage.write_json(_path(folder), asdict(replace(me, beat=time.time())))
    finally:
        for claim in claims:
            storage.remove(claim)


def _claim(folder: str, before: Holder | None, me: Holder) -> list[str]:
    """Claims the lock of a dead owner: of several that watched it, only one can create this file.

    Returns all claims that this one stands on: one whose owner died before it removed it is
    followed by another, named after that owner. Raises UserError if a living job has it.
    """
    claims = [f"{_path(folder)}.after-{before.id if before is not None else 'damage'}"]
    while not storage.create_json(claims[-1], asdict(me)):
        other = _holder_in(claims[-1])
        if other is not None and other.id == me.id:  # the answer to a first try was lost
            break
        deadline = time.monotonic() + STALE_SECONDS
        while other is not None and not other.is_dead and time.monotonic() < deadline:
            time.sleep(min(HEARTBEAT_SECONDS, STALE_SECONDS / 4))
            if _holder_in(claims[-1]) != other or _read(folder) != before:
                other = None
        if other is None:
            raise UserError(
                f"{folder}: another job takes over the lock of a dead one",
                f"Wait for it; if none runs, remove {claims[-1]}",
            )
        claims.append(f"{claims[-1]}.after-{other.id}")
    return claims


def _watch(folder: str, before: Holder | None) -> None:
    """Raises UserError if the lock is renewed meanwhile, whatever clock its owner has."""
    if before is not None and before.is_dead:
        return
    if before is not None and abs(time.time() - before.beat) < STALE_SECONDS:
        raise _at_work(folder, before)
    deadline = time.monotonic() + STALE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(HEARTBEAT_SECONDS, STALE_SECONDS / 4))
        now = _read(folder)
        if now is not None and now != before:
            raise _at_work(folder, now)


def _is_stolen(folder: str, me: Holder, held: Held) -> bool:
    now = _read(folder)
    if now is not None and now.id != me.id:
        held.taken_by = now
    return held.stolen


def _at_work(folder: str, other: Holder) -> UserError:
    return UserError(f"{folder}: a job is at work there, {other}", "Wait for it or stop it")


def _read(folder: str) -> Holder | None:
    return _holder_in(_path(folder))


def _holder_in(path: str) -> Holder | None:
    """The holder in a lock or claim; None if it is not there or damaged."""
    try:
        return _HOLDER.validate_json(storage.read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None


def _path(folder: str) -> str:
    return storage.join(folder, FOLDER, "lock.json")


def _guard(folder: str) -> str:
    return f"{_path(folder)}.guard"
