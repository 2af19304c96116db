"""The report of a preparation, on data sets of any size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cc_prep import storage
from cc_prep.formats import scores, training_shards
from cc_prep.inspect.report import page
from cc_prep.inspect.report.strips import Strip


def test_tables_are_read_once_and_not_once_a_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: 24 strips, each of which reads 80,000 rows of scores and of the index."""
    reads: list[str] = []

    def read(path: str, rows: Any) -> Any:
        reads.append(path)
        return rows

    monkeypatch.setattr(storage, "exists", lambda path: True)
    monkeypatch.setattr(scores, "read_shard", lambda path: read(path, {}))
    monkeypatch.setattr(training_shards, "read_index", lambda folder: read(folder, []))
    tables = page._Tables("scores", "tokens", None)
    for shard in ("train-000000", "train-000001"):
        for number in range(12):
            strip = cast(Strip, SimpleNamespace(key=f"{shard}-{number}"))
            assert tables.completed(strip, shard) is strip
    assert reads == ["tokens", "scores/train-000000.parquet", "scores/train-000001.parquet"]
