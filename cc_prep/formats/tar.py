"""Kinds of shards, and the tar files that some of them are.

A tar follows the WebDataset convention: members `key.extension`, those of a key adjacent. It is
written with fixed owner, mode and time, so that the same samples give the same bytes, and read
without extracting: only regular members are looked at, their sizes are bounded, and nothing is
unpickled.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, TypeVar

import google_crc32c

from cc_prep import storage

# Of each format by its name in the provenance; a folder of another version is refused.
VERSIONS = {"cc-sequences": 4, "cc-scores": 2, "cc-training-shards": 6}
VERSIONS |= {"cc-changes": 1, "cc-region-features": 1, "cc-entities": 1, "cc-captions": 1}

KEY = re.compile(r"[A-Za-z0-9_-]+")
END_MARK = 2 * tarfile.BLOCKSIZE  # of zeros, at the end of every whole tar
MAX_MEMBER_BYTES = 1 << 30
MAX_JSON_BYTES = 1 << 24

Sample = TypeVar("Sample")


class DamagedShard(Exception):
    """A shard that cannot be read to its end, or that breaks the rules of its kind."""


@dataclass
class Written:
    """What a finished shard holds.

    Attributes:
        spans: Offset and bytes of each sample's members by its key.
        checksums: The CRC-32C of these bytes, likewise.
        index: A row a sample, in order, for a format with an index.
    """

    samples: int = 0
    bytes: int = 0
    sha256: str = ""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)
    index: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ShardFormat:
    """A kind of shard.

    Attributes:
        name: As in the provenance.
        folder: Below an --out.
        write: A function of a path that returns a writer with `add(key, sample)`, and a record of
            the file once the block ends.
        read: A function of a path that yields (key, sample) in order.
        indexed: Whether `index.parquet` holds the positions of samples.
    """

    name: str
    folder: str
    extension: str
    write: Callable[[str], AbstractContextManager[tuple[Any, Written]]]
    read: Callable[[str], Iterator[tuple[str, Any]]]
    indexed: bool = False

    @property
    def version(self) -> int:
        """The version of the format, as provenance.json records it."""
        return VERSIONS[self.name]

    def file(self, shard: str) -> str:
        """File name of a shard named `<split>-000000`."""
        return f"{shard}.{self.extension}"


def split_of(shard: str) -> str:
    """The split of a shard named `<split>-000000`."""
    return shard.rpartition("-")[0]


def require_as_written(digests: Mapping[str, str]) -> None:
    """Raises DamagedShard for a file that changed since it was written, and FileNotFoundError.

    Args:
        digests: The recorded SHA-256 of each file by its path.
    """
    for path, sha256 in digests.items():
        if storage.sha256(path) != sha256:
            raise DamagedShard(f"{path}: is not as it was written (another SHA-256)")


class _CheckedHeader(tarfile.TarInfo):
    """The header of a member. One with a wrong checksum is damage.

    Python's reader takes any such header but the first for the end of the tar, and leaves out
    everything behind it without a word.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _CheckedHeader:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"the header of a member is damaged ({error})") from None


def open_tar(file: BinaryIO, mode: Literal["r:", "r|"] = "r:") -> tarfile.TarFile:
    """A tar for reading its members in order.

    Opening and reading it raise tarfile.TarError, EOFError and ValueError for damage.

    Args:
        mode: `r|` for a file that cannot seek.
    """
    return tarfile.open(fileobj=file, mode=mode, tarinfo=_CheckedHeader, errorlevel=2)


class ShardWriter:
    """Adds samples to a tar stream; made by `write_shard`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = _HashingFile(file)
        self._tar = tarfile.open(  # noqa: SIM115, closed by `close`
            fileobj=self._file, mode="w", format=tarfile.USTAR_FORMAT
        )
        self._spans: dict[str, tuple[int, int]] = {}
        self._checksums: dict[str, int] = {}

    def add(self, key: str, members: Mapping[str, bytes]) -> None:
        """A sample: its members by extension, written in the order given."""
        assert KEY.fullmatch(key), key
        assert key not in self._spans, f"{key} twice"
        start, self._file.checksum = self._file.count, 0
        for extension, data in members.items():
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size, member.mode, member.mtime = len(data), 0o644, 0
            self._tar.addfile(member, io.BytesIO(data))
        self._spans[key] = (start, self._file.count - start)
        self._checksums[key] = self._file.checksum

    def close(self, written: Written) -> None:
        """Ends the tar, and notes in `written` what it holds."""
        self._tar.close()
        written.samples, written.bytes = len(self._spans), self._file.count
        written.sha256 = self._file.digest.hexdigest()
        written.spans, written.checksums = self._spans, self._checksums


@contextmanager
def write_shard(path: str) -> Iterator[tuple[ShardWriter, Written]]:
    """A shard that appears under its name only when complete.

    The second value is filled in when the block ends.
    """
    written = Written()
    with storage.write_whole(path) as file:
        writer = ShardWriter(file)
        yield writer, written
        writer.close(written)


def read_shard(path: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(key, members by extension) of each sample in order, one sample in memory at a time.

    Raises FileNotFoundError, and DamagedShard for what is no complete, well-formed shard.
    """
    with storage.open_read(path) as file:
        counted: Any = _CountedFile(file)
        end = yield from read_members(counted, path)
        is_empty = not counted.since(end).strip(b"\0")
        while part := counted.read(1 << 20):
            is_empty = is_empty and not part.strip(b"\0")
        if counted.count < end + END_MARK:
            raise DamagedShard(f"{path}: is cut short")
        if not is_empty:  # a header was lost, or another tar was appended
            raise DamagedShard(f"{path}: goes on behind its end")


def decoded(path: str, decode: Callable[[str, dict[str, bytes]], Sample]) -> Iterator[Sample]:
    """The samples of a shard, one in memory at a time. Raises DamagedShard, which names the shard.

    Args:
        decode: From a key and its members by extension to a sample; it may raise DamagedShard.
    """
    for key, members in read_shard(path):
        try:
            yield decode(key, members)
        except DamagedShard as error:
            raise DamagedShard(f"{path}: {error}") from None


def read_members(file: BinaryIO, path: str) -> Generator[tuple[str, dict[str, bytes]], None, int]:
    """The samples of an open file, or of a part of one that begins at a sample, as `read_shard`.

    Returns the offset behind the last member. What is cut between two members looks whole here.
    """
    key, members, done, end = None, dict[str, bytes](), set[str](), 0
    try:
        # What is in memory already is not streamed, which costs a copy of each block.
        mode: Literal["r:", "r|"] = "r:" if isinstance(file, io.BytesIO) else "r|"
        with open_tar(file, mode) as tar:
            for member in tar:
                name, extension = parts_of(member, path)
                if name != key:
                    if key is not None:
                        yield key, members
                        done.add(key)
                    if name in done:
                        raise DamagedShard(f"{path}: the members of {name} are not adjacent")
                    key, members = name, {}
                if extension in members:
                    raise DamagedShard(f"{path}: {member.name} twice")
                content = tar.extractfile(member)
                data = content.read() if content else b""
                if len(data) != member.size:
                    raise DamagedShard(f"{path}: ends inside {member.name}")
                members[extension] = data
                end = padded_end(member)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DamagedShard(f"{path}: {error}") from None
    if key is not None:
        yield key, members
    return end


def read_part(data: bytes, path: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a part of a shard that holds whole samples and nothing else, as `read_shard`.

    Raises DamagedShard, after the samples, if they do not fill the part.
    """
    end = yield from read_members(io.BytesIO(data), path)
    if end != len(data):
        raise DamagedShard(f"{path}: {len(data) - end:,} bytes belong to no member")


def check_end(file: BinaryIO, end: int, path: str) -> None:
    """Raises DamagedShard unless zeros alone, at least the end mark, are behind the last member.

    Args:
        file: One that can seek.
        end: The offset behind the last member.
    """
    if file.seek(0, io.SEEK_END) < end + END_MARK:
        raise DamagedShard(f"{path}: is cut short")
    file.seek(end)
    while part := file.read(1 << 20):
        if part.strip(b"\0"):
            raise DamagedShard(f"{path}: goes on behind its end")


def padded_end(member: tarfile.TarInfo) -> int:
    """The offset behind a member, which fills whole blocks."""
    return member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def spans(path: str) -> dict[str, tuple[int, int]]:
    """Offset and bytes of each sample's members by its key, from the headers alone.

    Raises FileNotFoundError and DamagedShard.
    """
    ranges: dict[str, tuple[int, int]] = {}
    try:
        with storage.open_read(path) as file, open_tar(file) as tar:
            for member in tar:
                key, _ = parts_of(member, path)
                start, _ = ranges.get(key, (member.offset, 0))
                ranges[key] = (start, padded_end(member) - start)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DamagedShard(f"{path}: {error}") from None
    return ranges


def checksum(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes."""
    return int(google_crc32c.value(data))


def checksums(path: str, spans: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The CRC-32C of each sample's bytes by its key.

    Raises FileNotFoundError.

    Args:
        spans: Offset and bytes of the samples by their keys.
    """
    with storage.open_read(path) as file:
        found = {}
        for key, (offset, size) in spans.items():
            file.seek(offset)
            found[key] = checksum(file.read(size))
    return found


def parts_of(member: tarfile.TarInfo, path: str) -> tuple[str, str]:
    """Key and extension of a member.

    Raises:
        DamagedShard: For what has no place in a shard.
    """
    key, _, extension = member.name.partition(".")
    if not member.isfile():
        raise DamagedShard(f"{path}: {member.name!r} is no regular file")
    if not KEY.fullmatch(key) or not extension:
        raise DamagedShard(f"{path}: {member.name!r} is not key.extension")
    if member.size > (MAX_JSON_BYTES if extension == "json" else MAX_MEMBER_BYTES):
        raise DamagedShard(f"{path}: {member.name} declares {member.size:,} bytes")
    return key, extension


class _CountedFile:
    """Counts the bytes that are read from a file, and keeps those of the last reads.

    A tar reader reads records of 20 blocks, and has the first block behind the last member in one
    of the last two when it ends.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.count = file, 0
        self.last: tuple[bytes, bytes] = b"", b""

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.count += len(data)
        self.last = self.last[1], data
        return data

    def since(self, offset: int) -> bytes:
        """What was read from an offset on, as far as it is kept."""
        data = b"".join(self.last)
        return data[max(0, len(data) - (self.count - offset)) :]


class _HashingFile(io.RawIOBase):
    """Passes writes on and digests them, so that a shard need not be read back.

    checksum: the CRC-32C of what was written since somebody set it to 0.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.count, self.checksum = file, hashlib.sha256(), 0, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.count

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.file.write(data)
        self.digest.update(data)
        self.checksum = google_crc32c.extend(self.checksum, data)
        self.count += len(data)
        return len(data)
