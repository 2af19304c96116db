"""Provenance and rejects survive their files, and provenance says what differs."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.formats import provenance, rejects
from cc_prep.formats.rejects import Reject
from cc_prep.formats.tar import VERSIONS


def test_differences_are_named() -> None:
    old = {"a": {"b": 1, "c": 2}, "d": 3}
    assert provenance.differences(old, old) == []
    assert provenance.differences(old, {"a": {"b": 1, "c": 5}, "e": 4}) == [
        "a.c: 2 → 5",
        "d: 3 → None",
        "e: None → 4",
    ]
    assert provenance.differences(old, {"a": 4, "d": 5}, free={"a"}) == ["d: 3 → 5"]
    assert provenance.differences(old, {"a": {"b": 1}, "d": 3}, free={"a.c"}) == []
    # A section that one of them lacks, or has as a plain value.
    assert provenance.differences({"a": {"b": 1}}, {}) == ["a: {'b': 1} → None"]
    assert provenance.differences({"a": 1}, {"a": {"b": 1}}) == ["a: 1 → {'b': 1}"]


def test_versions_of_what_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a job that ends for want of a library for videos, and one without torch."""
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package"))
    with pytest.raises(metadata.PackageNotFoundError):
        provenance.software()
    monkeypatch.setattr(provenance, "OPTIONAL", ("no-such-package",))
    assert provenance.software().keys() == {"python", "numpy"}


@pytest.mark.parametrize("text", ["{", "[]", '{"settings": 3}', "[" * 10**5])
def test_damaged_provenance(tmp_path: Path, text: str) -> None:
    assert provenance.read(str(tmp_path)) is None
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(UserError, match=r"provenance\.json"):
        provenance.read(str(tmp_path))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"format": "cc-scores", "format_version": 1}, "of version 1, and this package reads 2"),
        ({"format": "cc-scores"}, "of version None"),
        ({"format": "cc-tables", "format_version": 2}, "no format of ours"),
        ({"format": ["cc-scores"], "format_version": 2}, "no format of ours"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, record: dict, message: str) -> None:
    """Keeps away: a folder of an older format read as if it were one of today's."""
    (tmp_path / "provenance.json").write_text(json.dumps({"settings": {}, **record}))
    with pytest.raises(UserError, match=message) as caught:
        provenance.read(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1
    for name, version in VERSIONS.items():
        record = {"format": name, "format_version": version, "settings": {}}
        provenance.write(str(tmp_path), record)
        assert provenance.read(str(tmp_path)) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planned": {"../../x": 1}}, "planned.../../x"),
        ({"planned": {"train-000000": "4"}}, "planned.train-000000"),
        ({"shards": {"train-000000": {"samples": "4"}}}, "shards.train-000000.samples"),
        ({"shards": {"/etc/x": {}}}, "shards./etc/x"),
        ({"shards": []}, "shards"),
        ({"weights": {"rife": 7}}, "weights.rife"),
    ],
)
def test_values_of_other_types_are_named(tmp_path: Path, change: dict, message: str) -> None:
    """Keeps away: a traceback of whichever command adds up a text, a shard whose name leads out of
    its folder, and a remedy that loses what is there.
    """
    record = {"format": "cc-scores", "format_version": VERSIONS["cc-scores"], "settings": {}}
    provenance.write(str(tmp_path), {**record, **change})
    with pytest.raises(UserError, match=re.escape(f"damaged ({message}")) as caught:
        provenance.read(str(tmp_path))
    assert "Restore it from a copy. Without one, remove the folder" in str(caught.value)


def test_rejects_are_sorted_and_the_same_bytes(tmp_path: Path) -> None:
    rows = [Reject(f"k{i}", "i", "s", "change", f"s{i % 2}", "r", "ü\n\0") for i in range(5)]
    rejects.write(str(tmp_path), rows)
    data = (tmp_path / rejects.FILE).read_bytes()
    rejects.write(str(tmp_path), rows[::-1])
    assert (tmp_path / rejects.FILE).read_bytes() == data
    assert rejects.read(str(tmp_path)) == sorted(rows, key=lambda r: (r.shard, r.key))
    rejects.write(str(tmp_path), [])
    assert rejects.read(str(tmp_path)) == []
    assert rejects.read(str(tmp_path / "none")) == []
