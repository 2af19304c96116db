"""The only door to files and object stores.

A path is a local path or a URL of one of `object_store.SCHEMES` (`s3://bucket/folder`). Only
regular files are read, and whole ones up to a bound: paths come from strangers' files too. A file
appears under its name whole or not at all: locally by writing beside it and renaming, on an object
store by one put of a finished file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from cc_prep import strict_json
from cc_prep.errors import FileRefused, FileTooLarge, UserError, first_line
from cc_prep.storage import object_store

TEMPORARY_SUFFIX = ".tmp"
MAX_BYTES = 2**30  # of a file that is read whole: a table, JSON or text
A_DAY = 86_400.0  # in s
# What a file system says of a name or of the right to read it, with a remedy. Other errors are the
# disk's.
OF_NAMES = {
    errno.EACCES: "Make it readable",
    errno.EPERM: "Make it readable",
    errno.ELOOP: "Remove the links that lead to each other",
    errno.ENAMETOOLONG: "Give a shorter name",
}
TEMPORARY = re.compile(r"\.(.+\.)?[0-9a-f]{12}\.tmp")  # names that are given here


def is_remote(path: str) -> bool:
    """Whether `path` is on an object store or another machine rather than on a mounted disk."""
    return "://" in path and not path.startswith("file://")


def join(path: str, *parts: str) -> str:
    """`path` with `parts` below it."""
    return "/".join([local_path(path).rstrip("/"), *parts])


def resolve(root: str, reference: str) -> str:
    """`reference` below `root`, unless it is absolute or a URL already."""
    if "://" in reference or os.path.isabs(reference):
        return reference
    return join(root, reference)


def is_below(root: str, reference: str) -> bool:
    """Whether `reference` is below `root`, by the text of the path: links are not followed."""
    path, top = (_normalized(one) for one in (resolve(root, reference), root))
    return path == top or path.startswith(top.rstrip("/") + "/")


def _normalized(path: str) -> str:
    if is_remote(path):
        scheme, _, key = path.partition("://")
        return f"{scheme}://{posixpath.normpath(key)}"
    return os.path.abspath(local_path(path))


def absolute(path: str) -> str:
    """`path` as a process in another folder finds it."""
    return path if is_remote(path) else os.path.abspath(local_path(path))


def local_path(path: str) -> str:
    """`path` without `file://`; URLs of object stores stay as they are."""
    return path[len("file://") :] if path.startswith("file://") else path


def with_home(path: str) -> str:
    """A path that a user gave, with a leading `~` or `~name` as the folder of whoever runs this, or
    of that user. Where there is no such user it stays: `Path.expanduser` raises RuntimeError."""
    return os.path.expanduser(path)


def local_folder(path: str) -> str:
    """A folder for what is written to disks alone.

    Raises:
        UserError: For one of an object store.
    """
    if is_remote(path):
        raise UserError(
            f"{path}: this output is written to a disk", "Give a local folder, and copy it there"
        )
    return local_path(path)


def cache_folder() -> Path:
    """The folder of what is fetched or made once: `$CC_PREP_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("CC_PREP_CACHE") or platformdirs.user_cache_dir("cc-prep"))


def exists(path: str) -> bool:
    """Whether a file or folder is there."""
    if not is_remote(path):
        return os.path.exists(local_path(path))
    return bool(object_store.call(path, lambda fs, key: fs.exists(key)))


def is_folder(path: str) -> bool:
    """Whether a folder is there."""
    if not is_remote(path):
        return os.path.isdir(local_path(path))
    return bool(object_store.call(path, lambda fs, key: fs.isdir(key)))


def size(path: str) -> int:
    """Bytes of a file. Raises FileNotFoundError."""
    if not is_remote(path):
        with _names_refused(path):
            return os.path.getsize(local_path(path))
    return int(object_store.call(path, lambda fs, key: fs.info(key)["size"]))


def list_files(folder: str, suffix: str = "") -> list[str]:
    """Sorted names (not paths) of what is directly in `folder`, is no folder, and ends in `suffix`.

    Also of what cannot be read, such as a link that leads nowhere: its reader says what is wrong.
    """
    if not is_remote(folder):
        files = [entry.name for entry in _entries(folder) if not _is(entry.is_dir)]
    else:
        files = [_last_part(e["name"]) for e in _remote_entries(folder) if e["type"] == "file"]
    return sorted(name for name in files if name.endswith(suffix))


def list_folders(folder: str) -> list[str]:
    """Sorted names (not paths) of the folders directly in `folder`."""
    if not is_remote(folder):
        return sorted(entry.name for entry in _entries(folder) if _is(entry.is_dir))
    entries = _remote_entries(folder)
    return sorted(_last_part(e["name"]) for e in entries if e["type"] == "directory")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What is in a local folder; nothing if there is no such folder."""
    folder = local_path(folder)
    if not os.path.isdir(folder):
        return []
    with _names_refused(folder):
        return list(os.scandir(folder))


def _is(kind: Callable[[], bool]) -> bool:
    """Whether an entry is of a kind; not if it is a link that leads to itself."""
    try:
        return kind()
    except OSError:
        return False


def sizes(folder: str) -> dict[str, int]:
    """Bytes of each file directly in `folder` by its name, from one listing."""
    if is_remote(folder):
        files = [entry for entry in _remote_entries(folder) if entry["type"] == "file"]
        return {_last_part(file["name"]): int(file["size"]) for file in files}
    sizes = {}
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):  # a temporary file that is renamed meanwhile
            if _is(entry.is_file):
                sizes[entry.name] = entry.stat().st_size
    return sizes


def _remote_entries(folder: str) -> list[dict[str, Any]]:
    try:
        entries = object_store.call(folder, lambda fs, key: fs.ls(key, detail=True))
    except FileNotFoundError:
        return []
    # Empty objects like `images/`, by which some tools mark a folder, are no files.
    return [e for e in entries if e["type"] != "file" or not e["name"].endswith("/")]


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def glob(pattern: str) -> list[str]:
    """Sorted paths of the files that `pattern` names (`*`, `?`, `[…]`)."""
    if not is_remote(pattern):
        import glob as local

        return sorted(p for p in local.glob(local_path(pattern)) if os.path.isfile(p))
    return sorted(
        object_store.call(
            pattern, lambda fs, key: [fs.unstrip_protocol(match) for match in fs.glob(key)]
        )
    )


def open_read(path: str) -> BinaryIO:
    """A regular file for reading bytes. Raises FileNotFoundError, and FileRefused for what is no
    regular file or may not be read."""
    if is_remote(path):
        return object_store.open_read(path)
    path = local_path(path)
    with _names_refused(path):
        _require_regular(path, os.stat(path))  # to open some devices is to use them
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115, closed by the caller
        try:
            _require_regular(path, os.fstat(file.fileno()))  # it may have been replaced meanwhile
        except BaseException:
            file.close()
            raise
        return file


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file without waiting for a pipe's other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileRefused(f"{path}: is a folder", "Give a file")
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused(f"{path}: is no regular file", "Give one, not a pipe or a device")


@contextmanager
def _names_refused(path: str) -> Iterator[None]:
    """Turns what a file system says of a name into FileRefused, or FileNotFoundError."""
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except OSError as error:
        if error.errno not in OF_NAMES:
            raise
        raise FileRefused(f"{path}: {error.strerror}", OF_NAMES[error.errno]) from None
    except ValueError as error:  # a NUL in the name
        raise FileRefused(f"{path!r}: {error}", "Correct the name") from None


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file in hexadecimal, read in pieces. Raises FileNotFoundError."""
    digest = hashlib.sha256()
    with open_read(os.fspath(path)) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_bytes(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """A whole file.

    Args:
        path: a local path or a URL.
        max_bytes: of the file. It is checked while reading: a size may be unknown, or wrong.

    Raises:
        FileNotFoundError: if there is no such file.
        FileTooLarge: if it has more bytes.
        FileRefused: if it is no regular file, or may not be read.
    """
    if is_remote(path):
        return _bounded(path, object_store.read_bytes(path, max_bytes), max_bytes)
    with open_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise _too_large(path, max_bytes)
        data = file.read(size + 1)  # not the bound: Python allocates what it is asked for
        if len(data) > size:  # a file of /proc states none, and one may grow meanwhile
            data += file.read(max_bytes + 1 - len(data))
        return _bounded(path, data, max_bytes)


def _bounded(path: str, data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def _too_large(path: str, max_bytes: int) -> FileTooLarge:
    return FileTooLarge(f"{path}: has more than {max_bytes:,} bytes", "Give a smaller file")


def read_many(paths: Sequence[str], max_bytes: int = MAX_BYTES) -> list[bytes | None]:
    """Whole small files, from an object store many at a time; None for those not there.

    Raises FileTooLarge and FileRefused, see `read_bytes`.
    """
    if paths and is_remote(paths[0]):
        answers = object_store.read_many(paths, max_bytes)
        return [
            None if data is None else _bounded(path, data, max_bytes)
            for path, data in zip(paths, answers, strict=True)
        ]
    contents: list[bytes | None] = []
    for path in paths:
        try:
            contents.append(read_bytes(path, max_bytes))
        except FileNotFoundError:
            contents.append(None)
    return contents


def read_range(path: str, offset: int, size: int) -> bytes:
    """`size` bytes of a file from `offset` on, fewer at its end. Raises FileNotFoundError."""
    if is_remote(path):
        return object_store.read_range(path, offset, size)
    with open_read(path) as file:
        file.seek(offset)
        rest = os.fstat(file.fileno()).st_size - offset  # an index may state any size
        return file.read(min(size, max(0, rest)))


def read_json(path: str) -> Any:
    """A whole JSON file. Raises FileNotFoundError and ValueError, see `strict_json`."""
    return strict_json.loads(read_bytes(path))


def read_json_lines(path: str) -> list[Any]:
    """The value of each line of a file of JSON lines but the empty ones.

    Only a newline ends a line. `str.splitlines` also breaks at characters that captions may hold,
    such as U+2028. Raises FileNotFoundError, and ValueError for what is not UTF-8 or, with the
    number of the line, for what is not JSON.
    """
    values = []
    for number, line in enumerate(read_bytes(path).decode("utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                values.append(strict_json.loads(line))
            except json.JSONDecodeError as error:  # which counts the lines of `line` alone
                raise ValueError(f"line {number}: {error.msg} at column {error.colno}") from None
            except ValueError as error:
                raise ValueError(f"line {number}: {first_line(error)}") from None
    return values


def named(path: str) -> str:
    """The path of a file that a user names for output: where a link leads, which stays a link.

    Links in the folders of jobs are replaced, so that `cp -rs` gives a copy to work on, once its
    link to the lock is removed (see `file_lock`).
    """
    path = path if is_remote(path) else local_path(path)
    return os.path.realpath(path) if not is_remote(path) and os.path.islink(path) else path


@contextmanager
def write_whole(path: str, durable: bool = True) -> Iterator[BinaryIO]:
    """A file for writing that appears under its name only when the block ends without an error.

    A pipe, or another thing that is no regular file, is written into directly. A link is replaced:
    see `named`.

    Args:
        durable: Wait until the disk has it, so that a power cut cannot leave an empty file.
    """
    if is_remote(path):
        # Without a name in its folder, from which a process that is killed would not remove it.
        with tempfile.TemporaryFile() as nameless:
            yield nameless
            nameless.flush()
            length = os.fstat(nameless.fileno()).st_size

            # Not a copy into an opened file, whose closing would keep what a broken copy left.
            def put(fs: Any, key: str) -> None:
                nameless.seek(0)  # on some systems /dev/fd shares the position
                fs.put_file(f"/dev/fd/{nameless.fileno()}", key)

            with _bucket_is_there(path):
                object_store.call(path, put, upload=length)
        return
    path = local_path(path)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "wb") as file:
            yield file
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = os.path.join(
        os.path.dirname(path),
        f".{os.path.basename(path)}.{uuid.uuid4().hex[:12]}{TEMPORARY_SUFFIX}",
    )
    try:
        with open(temporary, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


@contextmanager
def write_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty local folder, whose content moves into the folder `path` when the block ends.

    After an error nothing of it is there. A file that is there already is replaced; of a folder
    that is there, OSError is raised.

    Raises:
        UserError: For a folder of an object store.
    """
    target = Path(local_folder(os.fspath(path)))
    target.mkdir(parents=True, exist_ok=True)
    temporary = target / f".{uuid.uuid4().hex[:12]}{TEMPORARY_SUFFIX}"
    temporary.mkdir()
    try:
        yield temporary
        moves = [(file, target / file.name) for file in sorted(temporary.iterdir())]
        for _, there in moves:
            if there.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(there))
        for file, there in moves:
            os.replace(file, there)
    finally:
        shutil.rmtree(temporary)


def write_bytes(path: str, data: bytes) -> None:
    """Writes a whole file."""
    with write_whole(path) as file:
        file.write(data)


def write_json(path: str, value: Any, durable: bool = True) -> None:
    """Writes a whole JSON file: sorted keys, two spaces, a final newline."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with write_whole(path, durable) as file:
        file.write(text.encode("utf-8", "surrogatepass") + b"\n")


def create_json(path: str, value: Any) -> bool:
    """Writes a JSON file that is not there yet; whether it was written. Only one of many can.

    After an error it is not there. Until it is whole, others may find a part of it on a disk.
    """
    data = json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
    try:
        if is_remote(path):
            with _bucket_is_there(path):
                object_store.call(path, lambda fs, key: fs.pipe_file(key, data, mode="create"))
            return True
        os.makedirs(os.path.dirname(local_path(path)) or ".", exist_ok=True)
        with open(local_path(path), "xb") as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # some disks say only now that they are full
            except BaseException:  # not by renaming: a name that is there must not be replaced
                remove(path)
                raise
    except FileExistsError:
        return False
    return True


@contextmanager
def _bucket_is_there(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: {error}", "Create the bucket first") from None


def remove(path: str) -> None:
    """Removes a file; one that is not there is no error."""
    if not is_remote(path):
        Path(local_path(path)).unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        object_store.call(path, lambda fs, key: fs.rm_file(key))


def remove_temporaries(folder: str, seconds: float = 0.0) -> int:
    """Removes what killed writers left behind in a local folder, and how many of these there were:
    files of `write_whole`, folders of `write_folder`.

    Args:
        seconds: Those that changed since stay, where others may be writing.
    """
    if is_remote(folder):
        return 0
    paths = [
        Path(local_path(join(folder, name)))
        for name in (*list_files(folder), *list_folders(folder))
        if TEMPORARY.fullmatch(name)
    ]
    removed = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # its writer has just ended
            if time.time() - path.lstat().st_mtime < seconds:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed += 1
    return removed


def free_bytes(folder: str) -> int | None:
    """Free bytes on the disk of `folder`, which need not exist; None on an object store."""
    if is_remote(folder):
        return None
    folder = os.path.abspath(local_path(folder))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free
