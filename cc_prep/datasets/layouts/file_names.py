"""Names that are the same text in other bytes: `é` is one character on Linux, two on macOS."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from cc_prep import storage
from cc_prep.media.images import FRAME


def canonical(name: str) -> str:
    """The form in which names that are the same text are equal (Unicode's NFC)."""
    return unicodedata.normalize("NFC", name)


def told_apart(one: str, other: str) -> tuple[str, str]:
    """Two names for a message, written as escapes where they would look alike."""
    if one != other and canonical(one) == canonical(other):
        return _escaped(one), _escaped(other)
    return one, other


def nearest(name: str, others: Iterable[str]) -> str | None:
    """The name that differs in case, blanks at its ends or the width of its letters alone."""
    return next((one for one in sorted(others) if _folded(one) == _folded(name)), None)


def _escaped(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip()


class Spelling:
    """References to files as the file system spells them. Folders are listed once each."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}

    def of(self, root: str, reference: str) -> str:
        """`reference` below `root`, with each name in it in the form of the file or folder there.

        URLs, names that are there as they stand and names of nothing that is there stay as they
        are.
        """
        if reference.isascii() or "://" in reference:
            return reference
        parts = reference.split("/")
        here = "/" if reference.startswith("/") else root
        for i, part in enumerate(parts):
            if not part.isascii():
                parts[i] = self._name(here, part)
            here = storage.join(here, parts[i])
        return "/".join(parts)

    def _name(self, folder: str, name: str) -> str:
        """A name in a folder as it is spelled there, or the video of which it names a frame."""
        there = self._in(folder)
        video, frame, number = name.rpartition(FRAME)
        for file, rest in ((name, ""), (video, frame + number)):
            spelled = there.get(file) or there.get(canonical(file))
            if spelled is not None:
                return spelled + rest
        return name

    def _in(self, folder: str) -> dict[str, str]:
        """The names in a folder by themselves and by their canonical form."""
        if folder not in self._names:
            names = [*storage.list_files(folder), *storage.list_folders(folder)]
            self._names[folder] = {canonical(name): name for name in names} | {
                name: name for name in names
            }
        return self._names[folder]
