"""What may be passed on is told from what may not, and files are found in Qt's resource files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tools import photo_sources

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2010 One
           2011 Two
License: GPL-3+

Files: src/photos/*
Copyright: Three
License: CC-BY-SA-3.0

Files: src/photos/lake.jpg
       src/photos/hill.*
Copyright: 2004, Four <four@example.org>
License: CC-BY-2.0
Comment: https://example.org

License: CC-BY-2.0
 The text.
"""


def test_the_last_paragraph_that_fits_counts(tmp_path: Path) -> None:
    """Keeps away: a photograph under CC-BY-SA that is taken for one that may be passed on."""
    (tmp_path / "copyright").write_text(COPYRIGHT)
    paragraphs = photo_sources._copyright(tmp_path / "copyright")
    assert photo_sources._licence_of("src/photos/lake.webp", paragraphs) == (
        "2004, Four <four@example.org>",
        "CC-BY-2.0",
    )
    assert photo_sources._licence_of("src/photos/hill.webp", paragraphs)[1] == "CC-BY-2.0"
    assert photo_sources._licence_of("src/photos/sea.webp", paragraphs)[1] == "CC-BY-SA-3.0"
    assert photo_sources._licence_of("src/other.webp", paragraphs) == (
        "2010 One 2011 Two",
        "GPL-3+",
    )


@pytest.mark.parametrize(
    ("licence", "free"),
    [
        ("public-domain", True),
        ("CC0-1.0", True),
        ("CC-BY-3.0", True),
        ("CC-BY-3.0-USA", True),
        ("CC-BY-SA-3.0", False),
        ("CC-BY-NC-4.0", False),
        ("CC0-1.0 and CC-BY-3.0", True),
        ("CC0-1.0 and CC-BY-SA-3.0", False),
        ("CC-BY-3.0 and Bitstream", False),
        ("GPL-3+", False),
        ("", False),
    ],
)
def test_only_free_licences_are_taken(licence: str, free: bool) -> None:
    assert bool(photo_sources.FREE.fullmatch(licence)) == free


def resource_file(names: list[str], contents: list[bytes], flags: int = 0) -> bytes:
    """A resource file of Qt, version 2: a root with files."""
    texts = b""
    nodes = [struct.pack(">IHIIQ", 0, 2, len(names), 1, 0)]
    data = b""
    for name, content in zip(names, contents, strict=True):
        nodes.append(struct.pack(">IHHHIQ", len(texts), flags, 0, 0, len(data), 0))
        texts += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
        data += struct.pack(">I", len(content)) + content
    at = 20
    tree = b"".join(nodes)
    header = struct.pack(">4I", 2, at, at + len(tree), at + len(tree) + len(data))
    return b"qres" + header + tree + data + texts


def test_files_in_resource_files_are_found() -> None:
    made = resource_file(["a.webp", "ö.png"], [b"one", b"three"])
    assert list(photo_sources._resources(made)) == [("a.webp", b"one"), ("ö.png", b"three")]
    assert list(photo_sources._resources(resource_file(["a"], [b"zzz"], flags=1))) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Oak chair", "chair"),
        ("Armchair", "chair"),
        ("Desk lamp", "lamp"),
        ("Sink cabinet", "cabinet"),
        ("Table tennis bat", ""),
        ("Wall RJ45 plug", ""),
        ("Sitting girl", "person"),
        ("Seat Leon", ""),
        ("Hot dog", ""),
    ],
)
def test_models_are_named_by_their_words(name: str, expected: str) -> None:
    assert photo_sources._class_of(name) == expected
