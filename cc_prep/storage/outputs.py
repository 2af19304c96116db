"""Whether a file or folder that a user names for output can be written, asked before any work."""

from __future__ import annotations

import os
from pathlib import Path

from cc_prep.errors import UserError
from cc_prep.storage.files import is_remote, local_path


def check_folder(path: str, option: str = "--out") -> None:
    """Raises UserError where no folder can be written at a path; it makes none.

    Args:
        path: The folder; an address passes.
        option: The option that names it, for the message; empty for an argument.
    """
    if is_remote(path):
        return
    there = Path(local_path(path))
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        what = "a file" if there == Path(local_path(path)) else f"{there} is a file"
        raise UserError(
            f"{_shown(path, option)}: {what}, not a folder", f"Give another {option or 'folder'}"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"{_shown(path, option)}: {there} may not be written",
            f"Give another {option or 'folder'}",
        )


def check_file(path: str, option: str = "--out") -> None:
    """Raises UserError where no file can be written at a path; it makes none.

    Args:
        path: The file; an address passes, and so does what is there and no regular file, as a pipe.
        option: The option that names it, for the message; empty for an argument.
    """
    if is_remote(path):
        return
    file = Path(local_path(path))
    if file.is_dir():
        raise UserError(
            f"{_shown(path, option)}: a folder, not a file", "Give the name of a file in it"
        )
    if not file.exists() or file.is_file():
        check_folder(str(file.parent), option)


def _shown(path: str, option: str) -> str:
    return f"{option} {path}" if option else path
