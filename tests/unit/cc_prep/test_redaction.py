"""Folders taken out of texts, and what must stay."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest

from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.redaction import values_without_folders, without_credentials, without_folders


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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://bob:s3cret@127.0.0.1:80/d1: no folder", "http://127.0.0.1:80/d1: no folder"),
        ("root: https://token@host/d, x@y", "root: https://host/d, x@y"),
        ("s3://KEY:se/cr+et@bucket/out", "s3://bucket/out"),
        ("sftp://bob:p@ss@host/d", "sftp://host/d"),
        ("https://h/x?sig=a:b: no folder", "https://h/x?sig=***: no folder"),
        (
            "https://b.s3.amazonaws.com/k.png?X-Amz-Date=1&X-Amz-Signature=ab12&x=1 failed",
            "https://b.s3.amazonaws.com/k.png?X-Amz-Date=1&X-Amz-Signature=***&x=1 failed",
        ),
        (
            '{"a": "https://h/x?sv=1&sig=a%2Bb", "b": "https://h/y?access_token=t#f"}',
            '{"a": "https://h/x?sv=1&sig=***", "b": "https://h/y?access_token=***#f"}',
        ),
        (
            "?AWSAccessKeyId=A&Signature=B of https://h/?AWSAccessKeyId=A&Signature=B",
            "?AWSAccessKeyId=***&Signature=*** of https://h/?AWSAccessKeyId=***&Signature=***",
        ),
    ],
)
def test_credentials_are_taken_out(text: str, kept: str) -> None:
    """Keeps away: a password in provenance.json, which is published with the shards."""
    assert without_credentials(text) == kept
    assert without_credentials(kept) == kept


@pytest.mark.parametrize(
    "text",
    ["http://" + ":" * 20_000, "http://h/?sig=" + "," * 20_000 + "x ", "https://a:" * 2_000],
)
def test_a_long_text_of_a_stranger_takes_no_time(text: str) -> None:
    """Keeps away: minutes for one line, since the search begins anew at each character."""
    begun = time.process_time()
    without_credentials(text)
    assert time.process_time() - begun < 0.4


@pytest.mark.parametrize("caption", ['see http://h/?key=x"y', "http://h/?key=x\\, http://a:\\b@h"])
def test_json_stays_json(caption: str) -> None:
    """Keeps away: an output of --json that cannot be read, for a caption with an odd address."""
    shown = json.loads(without_credentials(json.dumps({"caption": caption, "last": 1})))
    assert shown["last"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://bob@host/x",
        "http://host:8080/a@b.png",
        "http://[::1]:80/a@b.png",
        "s3://bucket/a@b/c:d.png?versionId=12",
        "memory://a/b::c@d",
        "/data/a?key=1",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


def test_errors_hold_no_credentials() -> None:
    address = "http://bob:s3cret@host/a.png"
    for error in (UserError(address, address), RejectedPair(Reason.FAILED, address)):
        assert "s3cret" not in f"{error} {error.args} {error!r}"
