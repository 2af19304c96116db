"""A data set that grows while somebody writes captions: our table and LEVIR-CC's file at once.

DIR/pairs.jsonl             a row a pair, as the layout `table` reads it
DIR/LevirCCcaptions.json    the same as the layout `levir_cc` reads it
DIR/images/<split>/A|B/     before and after, the files as they were given
DIR/.lock                   empty; whoever writes holds its lock, so that several servers may
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import RejectedPair, UserError
from cc_prep.media import images
from cc_prep.records import CHANGE, NO_CHANGE
from cc_prep.storage.file_lock import LockHeld, file_lock
from cc_train.data import image_pairs
from cc_train.evaluation.captions import ptb

TABLE, LEVIR = "pairs.jsonl", "LevirCCcaptions.json"
SPLITS = ("train", "val", "test")
KINDS = (CHANGE, NO_CHANGE)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LOCK = ".lock"
LOCK_SECONDS = 60.0  # others write a pair in far less


@dataclass(frozen=True)
class Row:
    """A pair with its captions.

    Attributes:
        before, after: Its files, relative to the folder.
    """

    id: str
    before: str
    after: str
    captions: tuple[str, ...]
    split: str
    kind: str


COLUMNS = {field.name for field in fields(Row)}


class Collection:
    """The pairs of a folder, which is made if it is not there.

    Several processes may have the folder open: each sees and keeps what the others wrote. On a file
    system without locks two that write at once may lose a pair.

    Raises:
        UserError: For a folder that cannot be made, or whose table is not ours; the methods do so
            for a table that is not ours any more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._rows: dict[str, Row] = {}
        self._version: tuple[int, ...] | None = None  # of the table that the rows are from
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}", "Give another folder") from None
        self._refresh()

    def rows(self) -> list[Row]:
        """All pairs in the order in which they came."""
        with self._reading:
            return list(self._refresh().values())

    def get(self, id: str) -> Row:
        """A pair.

        Raises:
            UserError: If it is not there.
        """
        with self._reading:
            return _of(self._refresh(), id)

    def put(
        self,
        id: str,
        before: bytes,
        after: bytes,
        captions: list[str],
        split: str,
        kind: str,
        *,
        replaces: str | None = None,
    ) -> Row:
        """Writes a pair; the files are there before its row is.

        Args:
            before, after: Encoded images.
            replaces: The id of the pair that is edited, which may differ from the new one; None for
                a new pair. New images of a pair that is there get a new name, so that no row ever
                names the images of another.

        Raises:
            UserError: For what is no pair, for an id that another pair has, and where it cannot be
                stored; what was there then stays as it was.
        """
        texts = tuple(text for text in (" ".join(one.split()) for one in captions) if text)
        if not NAME.fullmatch(id):
            raise UserError(f"{id!r} is no name", "Use letters, digits, and _ . - between them")
        if not texts:
            raise UserError("no caption", "Write a sentence a line")
        if not all(map(_is_unicode, texts)):
            raise UserError("a caption with half a character", "Write that sentence again")
        if split not in SPLITS or kind not in KINDS:
            raise UserError(f"{split}, {kind}: no split and kind", f"Give one of {SPLITS}, {KINDS}")
        encoded, extension = _checked(before, after)
        with self._locked() as rows:
            former = None if replaces is None else _of(rows, replaces)
            if id in rows and id != replaces:
                raise UserError(f"another pair is called {id!r}", "Give another name, or edit it")
            old = set() if former is None else {former.before, former.after}
            with _refused(f"{id} cannot be stored"):
                paths = self._paths(f"images/{split}", id, extension, encoded, old)
                row = Row(id, paths[0], paths[1], texts, split, kind)
                self._store(rows, row, dict(zip(paths, encoded, strict=True)), replaces)
            with _refused(f"{id} is stored, but its former images cannot be removed"):
                self._remove(old - set(paths))
        return row

    def remove(self, id: str) -> None:
        """Takes a pair out, with its files.

        Raises:
            UserError: If it is not there, or cannot be.
        """
        with self._locked() as rows:
            row = _of(rows, id)
            with _refused(f"{id} cannot be removed"):
                self._write([rest for rest in rows.values() if rest.id != id])
            with _refused(f"{id} is removed, but its images cannot be"):
                self._remove({row.before, row.after})

    def end(self) -> None:
        """Waits for a pair that is being written; afterwards no other is written or removed."""
        self._writing.acquire()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Row]]:
        """The rows of the table, which no other thread or process changes during the block."""
        with self._writing, contextlib.ExitStack() as held:
            try:
                held.enter_context(file_lock(self.folder / LOCK, LOCK_SECONDS))
            except LockHeld:
                raise UserError(
                    f"{self.folder}: another program has held {LOCK} for {LOCK_SECONDS:.0f} s",
                    "End it, or wait for it",
                ) from None
            except OSError as error:
                raise UserError(
                    f"{self.folder / LOCK}: {error.strerror or error}",
                    "Check the folder, and whether its disk is full",
                ) from None
            with self._reading:
                self._version = None  # whatever the times of its files say
                rows = self._refresh()
            yield rows

    def _paths(
        self, folder: str, id: str, extension: str, encoded: list[bytes], old: set[str]
    ) -> list[str]:
        """Paths for both images of a pair, relative to the folder.

        Args:
            old: The paths of the images stored so far; they are reused if the bytes are the same.
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

    def _store(
        self, rows: Mapping[str, Row], row: Row, images: Mapping[str, bytes], replaces: str | None
    ) -> None:
        """Writes images by path, and then the row.

        After an error nothing of it is there, unless the table was written already.

        Args:
            rows: Those of the table.
            replaces: The id of the row whose position it takes; None puts it at the end.
        """
        new = {path for path in images if not (self.folder / path).exists()}
        try:
            for path in sorted(new):
                storage.write_bytes(str(self.folder / path), images[path])
            others = [row if one.id == replaces else one for one in rows.values()]
            self._write(others if replaces is not None else [*others, row])
        except BaseException:
            with contextlib.suppress(OSError, UserError):  # the first error is the one to tell
                named = {path for one in self.rows() for path in (one.before, one.after)}
                self._remove(new - named)
            raise

    def _remove(self, paths: set[str]) -> None:
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)

    def _write(self, rows: Sequence[Row]) -> None:
        """Both files, each whole or not at all."""
        lines = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
        with storage.write_folder(self.folder) as folder:
            storage.write_bytes(str(folder / TABLE), lines.encode())
            storage.write_json(str(folder / LEVIR), levir(rows))

    def _refresh(self) -> dict[str, Row]:
        """The rows of the table by id, read anew where it changed. Raises UserError."""
        file = self.folder / TABLE
        try:
            about = file.stat()
            version = (about.st_ino, about.st_size, about.st_mtime_ns)
            if version != self._version:
                self._rows, self._version = _table(file), version
        except FileNotFoundError:
            self._rows, self._version = {}, None
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}", "Give another folder") from None
        except ValueError as error:
            raise UserError(
                f"{file}: not a table of cc-train serve ({error})",
                "Give a folder of its own, or mend the row",
            ) from None
        return self._rows


def _of(rows: Mapping[str, Row], id: str) -> Row:
    if id not in rows:
        raise UserError(f"no pair is called {id!r}", "Reload the page")
    return rows[id]


def _table(file: Path) -> dict[str, Row]:
    """The rows of a table by id. Raises ValueError, with the number of the first wrong row."""
    rows: dict[str, Row] = {}
    for number, value in enumerate(storage.read_json_lines(str(file)), 1):
        try:
            row = _row(value)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
        if row.id in rows:
            raise ValueError(f"row {number}: a second pair {row.id}")
        rows[row.id] = row
    return rows


def _row(value: Any) -> Row:
    """A row of the table.

    Its images must be where `Collection` puts them: nothing else of the disk is ever read for it,
    or removed with it.

    Raises:
        ValueError: For one that is not ours.
    """
    if not isinstance(value, dict) or value.keys() != COLUMNS:
        raise ValueError(f"not the columns {', '.join(sorted(COLUMNS))}")
    if not isinstance(value["captions"], list) or not value["captions"]:
        raise ValueError("no captions")
    row = Row(**{**value, "captions": tuple(value["captions"])})
    texts = (row.id, row.before, row.after, row.split, row.kind, *row.captions)
    if not all(isinstance(text, str) and _is_unicode(text) for text in texts):
        raise ValueError("an entry that is no text")
    if not NAME.fullmatch(row.id) or row.split not in SPLITS or row.kind not in KINDS:
        raise ValueError("no name, split or kind of a pair")
    name = rf"{re.escape(row.id)}(-[0-9]+)?\.[a-z]+"
    for path, letter in ((row.before, "A"), (row.after, "B")):
        if not re.fullmatch(rf"images/{row.split}/{letter}/{name}", path):
            raise ValueError(f"images outside images/{row.split}/{letter}/{row.id}…")
    return row


def _is_unicode(text: str) -> bool:
    """Whether a text can be stored; JSON may hold half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """What the disk refuses, as a UserError that begins with `what`."""
    try:
        yield
    except OSError as error:
        remedy = "Check the folder, and whether its disk is full"
        raise UserError(f"{what} ({error.strerror or error})", remedy) from None


def levir(rows: Sequence[Row]) -> dict[str, Any]:
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
