"""An error of a file in a worker, as the error that the user sees."""

from __future__ import annotations

import errno
import os

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.tar import DamagedShard


def explained(error: Exception) -> Exception:
    """UserError or JobFailed with the file's name; an error that tells of no file as it is."""
    if isinstance(error, DamagedShard):
        # Without the file, as a job takes a shard of the right size for a whole one.
        remedy = "remove the file, then run the job that wrote it again"
        return UserError(str(error), f"Look closer with: cc-prep verify; {remedy}")
    if isinstance(error, FileNotFoundError):
        file = error.filename or str(error).rstrip(".")
        line = f"a worker met: {file}: {os.strerror(errno.ENOENT)}"
        return UserError(line, "Put it back, or run the job that wrote it again")
    if isinstance(error, OSError) and error.errno:
        file = f"{error.filename}: " if error.filename else ""
        return JobFailed(f"a worker met: {file}{os.strerror(error.errno)}")
    return error
