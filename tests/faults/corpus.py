"""Files with which a stranger attacks a reader, each made here from nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Make = Callable[[Path], None]
MANY = 100_000_000
ESCAPE = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m\x9b"


def png(more: bytes = b"", data: bytes | None = None, side: int = 64) -> bytes:
    """A black PNG with more chunks, or other data than its pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(side * (side * 3 + 1))) if data is None else data
    chunks = (chunk(b"IHDR", header), more, chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(size: int) -> bytes:
    """So many equal bytes, compressed a thousandfold."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(size >> 20)) + packer.flush()


def tiff(*tags: tuple[int, int, int, int]) -> bytes:
    """A directory of tags (number, type, count, value), and nothing that it points to."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4100)


def float_tiff() -> bytes:
    file = io.BytesIO()
    Image.new("F", (64, 64)).save(file, "TIFF")
    return file.getvalue()


def half_jpeg() -> bytes:
    """A JPEG whose second half is missing, with the mark that ends a whole one."""
    file, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG", quality=95)
    return file.getvalue()[: len(file.getvalue()) // 2] + b"\xff\xd9"


def content(data: bytes) -> Make:
    return lambda path: path.write_bytes(data) and None


def later(make: Callable[[], bytes]) -> Make:
    """Its bytes are made only when the file is."""
    return lambda path: path.write_bytes(make()) and None


def link_to(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


# In the place of one image among good ones.
IMAGES: dict[str, Make] = {
    "pipe": os.mkfifo,
    "device without end": link_to("/dev/zero"),
    "device": link_to("/dev/tty"),
    "link to itself": loop,
    "folder": Path.mkdir,
    "6 GB of nothing": sparse,
    "empty": content(b""),
    "HTML": content(b"<!doctype html><title>404</title>"),
    "pointer of Git LFS": content(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    ),
    "half a JPEG with an end": later(half_jpeg),
    "PNG of 100,000 px": content(png(side=100_000, data=b"")),
    "PNG with a text of 900 MB": later(lambda: png(chunk(b"zTXt", b"k\0\0" + bomb(900 << 20)))),
    "PNG with a profile of 900 MB": later(lambda: png(chunk(b"iCCP", b"k\0\0" + bomb(900 << 20)))),
    "PNG with too much data": later(lambda: png(data=bomb(900 << 20))),
    "PNG with 400,000 chunks": later(lambda: png(chunk(b"tEXt", b"k\0v") * 400_000)),
    "APNG of 2 billion frames": content(png(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))),
    "TIFF with a billion strips": content(
        tiff((256, 4, 1, 4000), (257, 4, 1, 4000), (273, 4, 10**9, 100), (279, 4, 10**9, 100))
    ),
    "TIFF without end": content(
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIII", 256, 4, 1, 64, 8)
    ),
    "TIFF of floats": later(float_tiff),
    "GIF of 60,000 px": content(
        b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0x80, 0, 0) + bytes(6) + b";"
    ),
    "FITS in GZIP": later(lambda: b"SIMPLE  =" + gzip.compress(bytes(64 << 20))),
}  # fmt: skip

# Those whose pixels are whole; what is around them is passed over.
READ = {
    "PNG with too much data", "PNG with 400,000 chunks", "APNG of 2 billion frames",
    "TIFF of floats",
}  # fmt: skip


def table(path: Path) -> None:
    """40 million equal rows: 7.7 GB, if all of them are read."""
    column = pa.array(["a.png"]).take(pa.array(np.zeros(40_000_000, np.int32)))
    pq.write_table(pa.table({"before": column, "after": column}), path, compression="zstd")


def rows(*cells: str) -> bytes:
    return "".join(json.dumps({"before": "0.png", "after": c}) + "\n" for c in cells).encode()


URLS = (
    "reference://a::data:application/json;base64,e30=", "simplecache::http://127.0.0.1:9/x.png",
    "zip://a.png::file:///etc/passwd", "github://a:b@main/x.png", "generic://x", "python://os",
    "file::///etc/passwd", "http://[::1", "http://127.0.0.1:99999/x.png", "://x", "local:///x",
    "arrow_hdfs://x/y", "asyncwrapper://x", "git://:README.md@x", "memory://x", "s3://", "data://x",
)  # fmt: skip

# Tables of pairs, alone or beside good images. The name's last part is the file's ending.
TABLES: dict[str, Make] = {
    "40 million rows.parquet": table,
    "deep.jsonl": content(b"[" * 1_000_000 + b"\n"),
    "a number of 5 MB.jsonl": content(b'{"before":"0.png","id":' + b"9" * 5 * 10**6 + b"}\n"),
    "a cell of 200 MB.csv": later(
        lambda: b'before,after,caption\n0.png,1.png,"' + b"x" * 2 * MANY + b'"\n'
    ),
    "2 million columns.csv": later(
        lambda: ",".join(map(str, range(2_000_000))).encode() + b"\nbefore,after\n"
    ),
    "NUL.csv": content(b"before,after\n0.png,a\0b.png\n"),
    "a name of 300 letters.jsonl": content(rows("x" * 300 + ".png")),
    "escapes of a terminal.jsonl": content(rows(f"{ESCAPE}.png")),
    "no UTF-8.csv": content("before,after\n0.png,é.png\n".encode("utf-16")),
    **{f"{url}.jsonl": content(rows(url)) for url in URLS},
}  # fmt: skip


def tar(*members: tuple[str, bytes], **headers: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), headers
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


SHARDS: dict[str, Make] = {
    "header of 50 MB": later(lambda: tar(("a.json", b"{}"), comment="x" * 50_000_000)),
    "size of 30 digits": content(tar(("a.json", b"{}"), size="9" * 30)),
    "name of 5 MB": later(lambda: tar(("a" * 5_000_000 + ".json", b"{}"))),
    "sparse file of 1 TB": content(
        tar(("a.json", b"{}"), **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                  "GNU.sparse.realsize": str(2**40), "GNU.sparse.name": "a.json"})
    ),
    "deep JSON": later(lambda: tar(("a.json", b"[" * 16_000_000))),
    "number of 10 MB": later(lambda: tar(("a.json", b'{"frames":' + b"9" * 10**7 + b"}"))),
    "pipe": os.mkfifo,
    "device": link_to("/dev/zero"),
    "empty": content(b""),
}  # fmt: skip
