"""What a session of Ray needs of this process: its output, its last word, a short folder.

Ray's own output goes to a log, whatever the settings of logging.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from cc_prep import storage
from cc_prep.console import on_stderr
from cc_prep.errors import UserError

# Of this process: two jobs of a user at a time have two logs.
LOG = storage.cache_folder() / "logs" / f"ray-{os.getpid()}.log"
KEEP_SECONDS = 7 * 86400

_DIVERTED: dict[int, int] = {}
LAST_WORD = (
    "cc-prep: this job's process was killed, or Ray ended it because its node manager had died. "
    f"The same command resumes; Ray's output is in {LOG}"
)
# A scheduler ends all processes of a job at once, this one has to outlive them by a moment.
LAST_WORD_SCRIPT = """trap "" HUP INT TERM; read -r ended || printf '%s\\n' "$1" >&2"""
# The longest of the sockets. A session is named after its time and its process, whose number has up
# to seven digits.
SOCKET = "ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
MAX_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # what the kernel takes
MAX_FOLDER_BYTES = MAX_SOCKET_BYTES - len(f"/{SOCKET}")


def messages() -> Console:
    """A console on standard error, separate from Ray's own output."""
    return on_stderr(os.fdopen(os.dup(2), "w", encoding="utf-8"))


def divert_output() -> None:
    """Sends both standard streams to the log: Ray writes to them whatever logging says."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    for old in LOG.parent.glob("ray-*.log"):
        with contextlib.suppress(OSError):  # another job removes it at the same time
            if time.time() - old.stat().st_mtime > KEEP_SECONDS:
                old.unlink()
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        _DIVERTED[number] = os.dup(number)
        os.dup2(log, number)
    os.close(log)


def restore_output() -> None:
    """Gives this process its standard streams back."""
    while _DIVERTED:
        number, saved = _DIVERTED.popitem()
        (sys.stdout if number == 1 else sys.stderr).flush()
        os.dup2(saved, number)
        os.close(saved)


@contextmanager
def last_word() -> Iterator[None]:
    """Has a shell say on standard error if this process ends within the block, however it ends.

    When its node manager dies, Ray ends this process in C++, past everything that Python could
    do; and the kernel kills one for which there is no memory.
    """
    shell = subprocess.Popen(
        ["sh", "-c", LAST_WORD_SCRIPT, "sh", LAST_WORD],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield
    finally:
        shell.communicate("ended\n")


@contextmanager
def temporary_folder() -> Iterator[str | None]:
    """A short folder for the length of the block if TMPDIR is too long for sockets, else None.

    None leaves the choice to Ray, which takes RAY_TMPDIR, TMPDIR or /tmp. The TMPDIR of a scheduler
    is often too long. Raises UserError for a RAY_TMPDIR that is, or if /tmp cannot be written.
    """
    name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
    place = os.environ.get(name) or "/tmp"
    if len(os.fsencode(place)) <= MAX_FOLDER_BYTES:
        yield None
        return
    too_long = f"{name}={place} is too long for Ray's sockets"
    remedy = f"Set RAY_TMPDIR to a folder whose path has at most {MAX_FOLDER_BYTES} bytes"
    if name == "RAY_TMPDIR":
        raise UserError(too_long, remedy)
    try:
        folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(f"{too_long}, and /tmp: {error.strerror}", remedy) from None
    with folder as private:
        yield f"{private}/ray"  # Ray opens its folder to everybody
