"""Removes what others must not see.

Credentials go from all that is stored or printed, folders from what is made to be shown.

A report names files, never their folders, which give away users, machines and projects, and mean
nothing to whoever reads it on another machine.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_END = r"\s'\"`<>|;,()\[\]{}"  # what ends a path inside a sentence
_ABSOLUTE = re.compile(
    rf"(?<![\w.*~/\\-])(?:(?:file://|~)?/(?!/)|[A-Za-z]:[/\\]+)[^{_END}:]*(?::(?=\d)|)",
)
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")  # C:// is a path

# Before a host: a password, also one with a slash in it, and not the port of `http://host:80/a@b`.
# The texts may be a stranger's, so each search is linear: no two parts take the same characters,
# and a password that runs on past slashes has a length.
_PASSWORD = re.compile(
    r"(?<=://)(?:[^\s/?#\"'<>@:]*:[^\s/?#\"'<>]*"
    r"|[^\s/?#\"'<>@:\[]+:(?!:|\d*(?:[/?#]|$))[^\s\"'<>@]{0,1000})@"
)
# A name alone may be a token on the web; elsewhere it is a user, or abfs's container.
_USER_ON_THE_WEB = re.compile(r"(?<=http://)[^\s/?#\"'<>]*@|(?<=https://)[^\s/?#\"'<>]*@")
_SECRET = re.compile(
    r"(?i)([?&;][\w.-]*(?:sig|signature|token|credential|secret|passw(?:or)?d|pwd|auth|key(?:-?id)?)=)"
    r"([^&;#\s\"'<>\\]+)"  # up to a backslash, which in JSON belongs to what follows
)
_AFTER_A_URL = ":,.)"  # of the sentence that it stands in


def without_credentials(text: str) -> str:
    """The text with the URLs in it without users, passwords, and what a query proves a right with.

    `https://me:pw@host/a.png?X-Amz-Signature=12` becomes `https://host/a.png?X-Amz-Signature=***`.
    """
    if "://" not in text:
        return text
    return _SECRET.sub(_masked, _USER_ON_THE_WEB.sub("", _PASSWORD.sub("", text)))


def _masked(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"{name}***{value[len(value.rstrip(_AFTER_A_URL)) :]}"


def without_folders(text: str) -> str:
    """The text with each absolute path cut to its last part; URLs and relative paths stay.

    A text that is nothing but a path may hold blanks. Inside a sentence a path ends at a blank;
    the folders of this machine (home, temporary files, Python, work folder) go even then.
    """
    if "\n" not in text and ": " not in text and _ABSOLUTE.match(text):
        return last_part(text)
    for folder in _known_folders():
        text = re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?=[/\\])", "", text)
    return _ABSOLUTE.sub(lambda match: last_part(match[0]), text)


def values_without_folders(value: Any) -> Any:
    """A JSON value with `without_folders` applied to every string in it; keys stay."""
    if isinstance(value, dict):
        return {key: values_without_folders(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [values_without_folders(inner) for inner in value]
    return without_folders(value) if isinstance(value, str) else value


def last_part(path: str) -> str:
    """The name of a file or folder, of a path with either kind of slash; an address such as
    `s3://bucket/file` stays."""
    if _ADDRESS.match(path):
        return path
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else path


@cache
def _known_folders() -> list[str]:
    """Folders of this machine, the longest first."""
    paths = [Path.home(), Path(tempfile.gettempdir()), Path.cwd(), Path(sys.prefix)]
    folders = {str(form) for path in paths for form in (path, path.resolve())}
    return sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)
