"""The table of paraphrases: kept in the cache folder, read from the text where it is not there."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cc_train.evaluation.captions import metrics
from cc_train.evaluation.captions.meteor import paraphrases, tables

TEXT = """\
0.5
in front of
before
0.25
before
in front of
0.25
before
prior to
0.125
caf\u00e9 now
\u201c
"""
WORDS = ["in", "front", "of", "before", "prior", "to", "caf\u00e9", "now", "\u201c"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and a small table in place of METEOR's."""
    source = tmp_path / "table.gz"
    source.write_bytes(gzip.compress(TEXT.encode()))
    monkeypatch.setattr(tables, "file", lambda name: source)
    monkeypatch.setenv("CC_PREP_CACHE", str(tmp_path / "cache"))
    paraphrases.read.cache_clear()
    yield tmp_path / "cache"
    paraphrases.read.cache_clear()


def listed(*phrases: str) -> dict[str, list[str]]:
    """The paraphrases among some phrases."""
    numbers = {}
    for phrase in phrases:
        words = phrase.split()
        numbers[paraphrases.phrase_numbers(paraphrases.word_numbers(words), len(words))[0]] = phrase
    ordered = np.array(sorted(numbers), np.uint64)
    found = paraphrases.read().among(ordered)
    return {
        numbers[ordered[place]]: [numbers[ordered[other]] for other in others]
        for place, others in found.items()
    }


def test_paraphrases_are_those_of_the_text_in_its_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phrases = ("before", "in front of", "prior to", "caf\u00e9 now", "\u201c", "front of", "now")
    expected = {
        "in front of": ["before"],
        "before": ["in front of", "prior to"],
        "caf\u00e9 now": ["\u201c"],
    }
    assert listed(*phrases) == expected
    assert listed("front of", "now") == listed(*"abcdefgh") == {}
    assert all(listed(phrase) == {} for phrase in phrases)
    monkeypatch.setattr(paraphrases, "BLOCK", 8)  # bytes: entries that lie across blocks
    for file in folder.iterdir():
        file.unlink()
    paraphrases.read.cache_clear()
    assert listed(*phrases) == expected


def test_a_later_process_reads_the_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: seconds of reading the text in each process."""
    before = listed("before", "in front of")
    monkeypatch.setattr(paraphrases, "_packed", None)
    paraphrases.read.cache_clear()
    assert listed("before", "in front of") == before
    assert [path.suffix for path in folder.iterdir()] == [".npy"]  # and nothing half-written


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY nonsense", None])
def test_a_broken_file_is_written_anew(folder: Path, content: bytes | None) -> None:
    """Keeps away: an evaluation that a full disk broke once, and that fails for ever."""
    before = listed("before", "in front of")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] if content is None else content)
    paraphrases.read.cache_clear()
    assert listed("before", "in front of") == before
    assert file.read_bytes() == whole


def test_without_a_cache_folder(folder: Path) -> None:
    """Keeps away: no METEOR where nothing may be written."""
    folder.write_text("a file in its place")
    assert listed("before", "in front of") == {"before": ["in front of"], "in front of": ["before"]}


def test_a_table_that_is_missing_or_cut_leaves_meteor_out() -> None:
    """Keeps away: a traceback, or figures without paraphrases."""
    with pytest.raises(zlib.error, match="incomplete"):
        _read_cut(tables.file(""))
    tables.read.cache_clear()
    scores = metrics.score({"a": ["it moved"]}, {"a": "it moved"}, ["METEOR", "ROUGE-L"])
    assert "a table of METEOR is broken" in scores.left_out["METEOR"]
    assert set(scores.corpus) == {"ROUGE-L"}
    tables.file("").unlink()
    scores = metrics.score({"a": ["it moved"]}, {"a": "it moved"}, ["METEOR"])
    assert "No such file" in scores.left_out["METEOR"]


def _read_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])
    paraphrases.read()
