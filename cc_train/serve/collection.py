"""A data set that grows while somebody writes captions: our table and LEVIR-CC's file at once.

DIR/pairs.jsonl             a row a pair, as the layout `table` reads it
DIR/LevirCCcaptions.json    the same as the layout `levir_cc` reads it
DIR/images/<split>/A|B/     before and after, the files as they were given
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import RejectedPair, UserError
from cc_prep.media import images
from cc_prep.records import CHANGE, NO_CHANGE
from cc_train.data import image_pairs
from cc_train.evaluation.captions import ptb

TABLE, LEVIR = "pairs.jsonl", "LevirCCcaptions.json"
SPLITS = ("train", "val", "test")
KINDS = (CHANGE, NO_CHANGE)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Row:
    """A pair with its captions. before, after: its files, relative to the folder."""

    id: str
    before: str
    after: str
    captions: tuple[str, ...]
    split: str
    kind: str


class Collection:
    """The pairs of a folder, which is made if it is not there.

    Raises UserError for a folder that cannot be written into, or whose table is not ours.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}", "Give another folder") from None
        self._rows = {row.id: row for row in self._read()}

    def rows(self) -> list[Row]:
        """All pairs in the order in which they came."""
        with self._lock:
            return list(self._rows.values())

    def get(self, id: str) -> Row:
        """A pair. Raises UserError if it is not there."""
        with self._lock:
            if id not in self._rows:
                raise UserError(f"no pair is called {id!r}", "Reload the page")
            return self._rows[id]

    def put(
        self, id: str, before: bytes, after: bytes, captions: list[str], split: str, kind: str
    ) -> Row:
        """Writes a pair, in place of one with the same id; the files are there before its row is.

        before, after: encoded images. New images of a pair that is there get a new name, so that
        no row ever names the images of another. Raises UserError for what is no pair, and where it
        cannot be stored; what was there then stays as it was.
        """
        texts = tuple(text for text in (" ".join(one.split()) for one in captions) if text)
        if not NAME.fullmatch(id):
            raise UserError(f"{id!r} is no name", "Use letters, digits, and _ . - between them")
        if not texts:
            raise UserError("no caption", "Write a sentence a line")
        if split not in SPLITS or kind not in KINDS:
            raise UserError(f"{split}, {kind}: no split and kind", f"Give one of {SPLITS}, {KINDS}")
        encoded, extension = _checked(before, after)
        with self._lock:
            former = self._rows.get(id)
            old = set() if former is None else {former.before, former.after}
            with _refused(f"{id} cannot be stored"):
                paths = self._paths(f"images/{split}", id, extension, encoded, old)
                row = Row(id, paths[0], paths[1], texts, split, kind)
                self._store(row, dict(zip(paths, encoded, strict=True)))
            with _refused(f"{id} is stored, but its former images cannot be removed"):
                self._remove(old - set(paths))
        return row

    def remove(self, id: str) -> None:
        """Takes a pair out, with its files. Raises UserError if it is not there, or cannot be."""
        with self._lock:
            if id not in self._rows:
                raise UserError(f"no pair is called {id!r}", "Reload the page")
            row = self._rows[id]
            with _refused(f"{id} cannot be removed"):
                self._write({one: rest for one, rest in self._rows.items() if one != id})
            with _refused(f"{id} is removed, but its images cannot be"):
                self._remove({row.before, row.after})

    def _paths(
        self, folder: str, id: str, extension: str, encoded: list[bytes], old: set[str]
    ) -> list[str]:
        """Paths for both images of a pair, relative to the folder.

        old: the paths of the images stored so far; they are reused if the bytes are the same.
        """
        for number in itertools.count(1):
            name = f"{id}{extension}" if number == 1 else f"{id}-{number}{extension}"
            paths = [f"{folder}/{letter}/{name}" for letter in "AB"]
            files = [self.folder / path for path in paths]
            if not any(file.exists() for file in files):
                break
            if set(paths) == old and [file.read_bytes() for file in files] == encoded:
                break
        return paths

    def _store(self, row: Row, images: Mapping[str, bytes]) -> None:
        """Writes images by path, and then the row; after an error nothing of it is there."""
        new = {path for path in images if not (self.folder / path).exists()}
        try:
            for path in sorted(new):
                storage.write_bytes(str(self.folder / path), images[path])
            self._write({**self._rows, row.id: row})
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                self._remove(new)
            raise

    def _remove(self, paths: set[str]) -> None:
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)

    def _write(self, rows: Mapping[str, Row]) -> None:
        """Both files, each whole or not at all; the rows are those of the folder then."""
        listed = list(rows.values())
        lines = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in listed)
        with storage.write_folder(self.folder) as folder:
            storage.write_bytes(str(folder / TABLE), lines.encode())
            storage.write_json(str(folder / LEVIR), levir(listed))
        self._rows = dict(rows)

    def _read(self) -> list[Row]:
        file = self.folder / TABLE
        if not file.exists():
            return []
        try:
            rows = storage.read_json_lines(str(file))
            return [Row(**{**row, "captions": tuple(row["captions"])}) for row in rows]
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"{file}: not a table of cc-train serve", "Give a folder of its own"
            ) from None


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """What the disk refuses, as a UserError that begins with `what`."""
    try:
        yield
    except OSError as error:
        remedy = "Check the folder, and whether its disk is full"
        raise UserError(f"{what} ({error.strerror or error})", remedy) from None


def levir(rows: list[Row]) -> dict[str, Any]:
    """LevirCCcaptions.json: ids of pairs and sentences count up, as in the published file."""
    pairs = []
    sentence_id = 0
    for number, row in enumerate(rows):
        sentences = []
        for text in row.captions:
            sentences.append(
                {
                    "tokens": ptb.tokenize(text).split(),
                    "raw": text,
                    "imgid": number,
                    "sentid": sentence_id,
                }
            )
            sentence_id += 1
        pairs.append(
            {
                "filepath": row.split,
                "filename": Path(row.before).name,
                "imgid": number,
                "sentids": [one["sentid"] for one in sentences],
                "split": row.split,
                "changeflag": int(row.kind == CHANGE),
                "sentences": sentences,
            }
        )
    return {"images": pairs, "dataset": "collected with cc-train serve"}


def _checked(before: bytes, after: bytes) -> tuple[list[bytes], str]:
    """Both encoded images, and their extension, which is one: LEVIR-CC has one name for both.

    They are kept as they are if both are PNG, both JPEG or both WebP, else they become PNG.
    """
    pixels = []
    for data, side in ((before, "before"), (after, "after")):
        try:
            pixels.append(images.decode(data, f"the image {side}"))
        except RejectedPair as error:
            raise UserError(error.detail, "Give two images") from None
    image_pairs.require_one_size(pixels, ("the image before", "the image after"))
    extensions = {images.extension(data) for data in (before, after)}
    extension = extensions.pop() if len(extensions) == 1 else None
    if extension is not None:
        return [before, after], extension
    return [images.encode_image(image, "png", 0) for image in pixels], ".png"
