"""Pairs are left out by a list, and a list that does not fit is no list."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.datasets import exclusions
from cc_prep.datasets.exclusions import Exclusion
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from pipelines import fingerprint
from tests.dataset_factory import clevr


def excluding(root: Path, *rows: Exclusion) -> Manifest:
    clevr(root)
    exclusions.write(str(root / "out.csv"), rows)
    return manifest.load("clevr", [f"exclude={root / 'out.csv'}"], root=str(root))


def row(split: str, id: str, kind: str, detail: str = "x") -> Exclusion:
    return Exclusion(split, id, kind, "contradiction", detail)


def test_a_pair_is_left_out_and_not_its_neighbour(tmp_path: Path) -> None:
    """Keeps away: the unchanged pair of a scene that goes with the changed one."""
    settings = excluding(tmp_path, row("train", "000001", "change", 'it, "so"\nto say'))
    left = [(pair.id, pair.kind) for pair in datasets.pairs(settings, "train")]
    assert left == [("000000", "change"), ("000000", "no_change"), ("000001", "no_change")]
    assert len(datasets.pairs(settings, "test")) == 2


def test_the_provenance_names_the_file(tmp_path: Path) -> None:
    rows = [row("train", "000001", "change", detail) for detail in "ab"]
    settings = excluding(tmp_path, *rows, row("test", "000003", "no_change"))
    recorded = fingerprint.recorded_settings(settings, fingerprint.SEQUENCE_KEYS)
    assert recorded["exclude"] == {
        "file": "out.csv",
        "sha256": hashlib.sha256((tmp_path / "out.csv").read_bytes()).hexdigest(),
        "pairs": {"test": 1, "train": 1},
    }
    plain = manifest.load("clevr", root=str(tmp_path))
    assert "exclude" not in fingerprint.recorded_settings(plain, fingerprint.SEQUENCE_KEYS)


@pytest.mark.parametrize(
    "wrong",
    [row("train", "000002", "change"), row("train", "1", "change"), row("train", "000001", "add")],
)
def test_a_list_of_other_data(tmp_path: Path, wrong: Exclusion) -> None:
    """Keeps away: a list that silently leaves nothing out."""
    settings = excluding(tmp_path, wrong, row("train", "9", "change"))
    message = rf"out\.csv: 2 rows name no pair of clevr, such as train, {wrong.id}"
    with pytest.raises(UserError, match=message):
        datasets.pairs(settings, "train")


def test_a_list_of_a_split_that_is_not_there(tmp_path: Path) -> None:
    """Keeps away: rows of a mistyped split, which leave nothing out and are counted as left out."""
    wrong = row("trian", "000001", "change")
    settings = excluding(tmp_path, wrong, row("test", "000003", "change"))
    with pytest.raises(UserError, match=r"out\.csv: 1 rows are of other splits, such as trian"):
        datasets.pairs(settings, "val")
    with pytest.raises(UserError, match="such as trian"):
        fingerprint.recorded_settings(settings, fingerprint.SEQUENCE_KEYS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "out.csv: no list of exclusions. Its columns are split,id,kind,reason,detail"),
        (b"a,b\n1,2\n", "out.csv: no list of exclusions. Its columns are"),
        (b"split,id,kind,reason,detail\n\ntrain,1\n", "out.csv, line 3: 2 values. Its columns"),
        (b"\xff\xfe", "out.csv: is not UTF-8 text (line 1). Save it as UTF-8"),
        (b'split,"', "out.csv, line 1: unexpected end of data"),
        (b'split,id,kind,reason,detail\ntrain,1,change,x,"open', "out.csv, line 2: unexpected end"),
    ],
)
def test_files_that_are_no_list(tmp_path: Path, content: bytes, message: str) -> None:
    """Keeps away: "no list" of a list with one wrong line, or in another encoding."""
    settings = excluding(tmp_path)
    (tmp_path / "out.csv").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        datasets.pairs(settings, "train")
    (tmp_path / "out.csv").unlink()
    with pytest.raises(UserError, match="exclude: no file"):
        datasets.pairs(settings, "train")
