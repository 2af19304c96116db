"""Folders taken out of texts, and what must stay."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from cc_prep.redaction import values_without_folders, without_folders


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/set/0001.png: Permission denied", "0001.png: Permission denied"),
        ("/data/my set/img 1.png", "img 1.png"),
        ("no weights at ~/.cache/w.pt, get them", "no weights at w.pt, get them"),
        ("ValueError: x (/usr/lib/python3/foo/bar.py:12)", "ValueError: x (bar.py:12)"),
        ("file:///data/x/y.tar", "y.tar"),
        ("jar:file:/opt/x/y.jar is damaged", "jar:file:y.jar is damaged"),
        ("C:\\Users\\me\\x.png is missing", "x.png is missing"),
        ("[Errno 2] No such file: '/a/b/c.json'", "[Errno 2] No such file: 'c.json'"),
        ("/data/shards/test-*.tar", "test-*.tar"),
        ("C://Users/me/run", "run"),
        ("/home/me/bin/cc-train pair --out s3://bucket/run", "run"),
    ],
)
def test_only_the_last_part_of_a_path_stays(text: str, shown: str) -> None:
    assert without_folders(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/folder/a.png is missing",
        "https://example.org/x/y",
        "out/clevr/shards/test-*.tar",
        "before/after, 1/8, 50 / 3, and/or",
        "/",
        "",
    ],
)
def test_urls_and_relative_paths_stay(text: str) -> None:
    assert without_folders(text) == text


@pytest.mark.parametrize("folder", [Path.home(), Path(tempfile.gettempdir()), Path.cwd()])
def test_folders_of_this_machine_go_even_before_a_blank(folder: Path) -> None:
    shown = without_folders(f"{folder}/my pictures/a b.png: damaged")
    assert str(folder) not in shown
    assert shown.endswith("pictures/a b.png: damaged")


def test_values_of_any_depth() -> None:
    value = {"/key": ["/a/b.tar", {"c": ("~/d.pt", 3, None, True)}]}
    assert values_without_folders(value) == {"/key": ["b.tar", {"c": ["d.pt", 3, None, True]}]}
