"""A lock of a local file, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import filelock

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)  # of a file system


class LockHeld(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def file_lock(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file, which is made, during the block.

    Raises LockHeld if another process has it for so many seconds, and OSError where the file cannot
    be made. On a file system without locks nothing is held.
    """
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        raise LockHeld(str(path)) from None
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()
