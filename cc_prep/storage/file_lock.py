"""A lock of a local file, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from cc_prep.errors import UserError

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)  # of a file system


class LockHeld(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def file_lock(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file, which is made, during the block.

    On a file system without locks nothing is held.

    Raises:
        LockHeld: If another process has it for so many seconds.
        UserError: If the file is a link.
        OSError: Where it cannot be made.
    """
    refuse_link(path)
    if not _has_locks(path):
        # filelock would make a file of its own there, which outlives a process that is killed.
        yield
        return
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        raise LockHeld(str(path)) from None
    try:
        yield
    finally:
        lock.release()


def refuse_link(*paths: str | Path) -> None:
    """Raises UserError if a file of a lock is a link: its lock would be that of another folder."""
    links = [str(path) for path in paths if os.path.islink(path)]
    if links:
        raise UserError(
            f"{' and '.join(links)}: a lock that is a link, as `cp -rs` copies it",
            "Remove this link" if len(links) == 1 else "Remove these links",
        )


def _has_locks(path: Path) -> bool:
    """Whether the file system has locks; makes the file."""
    with open(path, "a") as file:
        try:
            import fcntl
        except ImportError:  # Windows, whose file systems have
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                return False
            raise
    return True
