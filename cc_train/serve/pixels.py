"""Digests of the pixels of images: each file is decoded once, and not at every start again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import JobFailed, RejectedPair, UserError
from cc_prep.media import images

FILE = ".pixels.json"
Entry = list[Any]  # bytes and time of the file (ns), and the digest of its pixels


class Pixels:
    """Digests of images, which a file holds from one start to the next.

    It is a cache: a file that is damaged counts as empty, one that cannot be written costs time at
    the next start, and of two servers that write it the later one wins. An image of an address is
    remembered as long as the process lives.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._remote: dict[str, str] = {}
        self._is_new = False
        try:
            entries = storage.read_json(str(file))
            self._entries: dict[str, Entry] = entries if isinstance(entries, dict) else {}
        except (OSError, ValueError, UserError):  # the last of a file that is not read at all
            self._entries = {}

    def known(self, reference: str) -> str | None:
        """The digest of an image that was decoded before and is as it was then, or None.

        Args:
            reference: A path, an address, or a frame of a video.
        """
        if "://" in reference:
            return self._remote.get(reference)
        entry = self._entries.get(os.path.abspath(reference))
        about = _about(reference)
        if not isinstance(entry, list) or about is None or entry[:2] != about or len(entry) != 3:
            return None
        return str(entry[2])

    def digest(self, reference: str) -> str | None:
        """The digest of an image; None where it cannot be read, as the page then shows."""
        digest, about = self.known(reference), _about(reference)
        if digest is not None:
            return digest
        try:
            pixels = images.read(reference)
        except (OSError, RejectedPair, JobFailed, UserError):  # the last of an odd address
            return None
        content = json.dumps(pixels.shape).encode() + pixels.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        if "://" in reference:
            self._remote[reference] = digest
        elif about is not None:
            self._entries[os.path.abspath(reference)] = [*about, digest]
            self._is_new = True
        return digest

    def write(self) -> None:
        """Writes the file where an image was decoded since."""
        if self._is_new:
            with contextlib.suppress(OSError, UserError):
                storage.write_json(str(self.file), self._entries, durable=False)
            self._is_new = False


def _about(reference: str) -> list[int] | None:
    """Bytes and time (ns) of the file of an image or of a frame; None where there is none."""
    path = reference.rpartition(images.FRAME)[0] if images.is_frame(reference) else reference
    try:
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    return [stat.st_size, stat.st_mtime_ns]
