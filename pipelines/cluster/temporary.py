"""The folder in which a local Ray has its sockets, whose paths may not be long."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from cc_prep.errors import UserError

# The longest of the sockets. A session is named after its time and its process, whose number has up
# to seven digits.
SOCKET = "ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
MAX_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # what the kernel takes
MAX_BYTES = MAX_SOCKET_BYTES - len(f"/{SOCKET}")


@contextmanager
def temporary_folder() -> Iterator[str | None]:
    """A short folder for the length of the block if TMPDIR is too long for sockets, else None.

    None leaves the choice to Ray, which takes RAY_TMPDIR, TMPDIR or /tmp. The TMPDIR of a scheduler
    is often too long. Raises UserError for a RAY_TMPDIR that is, or if /tmp cannot be written.
    """
    name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
    place = os.environ.get(name) or "/tmp"
    if len(os.fsencode(place)) <= MAX_BYTES:
        yield None
        return
    too_long = f"{name}={place} is too long for Ray's sockets"
    remedy = f"Set RAY_TMPDIR to a folder whose path has at most {MAX_BYTES} bytes"
    if name == "RAY_TMPDIR":
        raise UserError(too_long, remedy)
    try:
        folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(f"{too_long}, and /tmp: {error.strerror}", remedy) from None
    with folder as private:
        yield f"{private}/ray"  # Ray opens its folder to everybody
