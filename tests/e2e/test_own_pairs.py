"""A user's own spreadsheet, with the faults that spreadsheets have, from `init` to sequences."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cc_prep.formats import rejects, sequences
from tests.conftest import Command
from tests.dataset_factory import image

ROWS = [
    ("fotos/vor 1.png", "fotos/nach 1.png", "eine Lampe brennt", "train", "1"),
    ("fotos/vor 2.png", "fotos/größer ☂.png", "der Schirm ist größer", "train", "2"),
    ("fotos/vor 3.png", "fotos/fehlt.png", "etwas fehlt", "train", "3"),
    ("fotos/vor 1.png", "fotos/nach 1.png", "die Lampe ist an", "train", "4"),
    ("fotos/vor 5.png", "fotos/nach 5.png", "nichts", "val", "5"),
    ("fotos/vor 6.png", "fotos/nach 6.png", "ein Tippfehler", "tset", "6"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "meine Daten"
    root.mkdir()
    with (root / "paare ä.csv").open("w", newline="", encoding="utf-8-sig") as file:
        written = csv.writer(file)
        written.writerow(["before", "after", "caption", "split", "id"])
        written.writerows(ROWS)
    for number, row in enumerate(ROWS):
        for at, name in enumerate(row[:2]):
            if "fehlt" not in name and not (root / name).exists():
                # OpenCV cannot write every name on every system; Python can.
                image(root / "made.png", 10 * number + at)
                (root / name).parent.mkdir(exist_ok=True)
                (root / "made.png").rename(root / name)
    return tmp_path


def test_a_spreadsheet_with_faults(
    folder: Path, cc_prep: Command, prepare: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = cc_prep("init", "mine", "--root", "meine Daten", cwd=folder)
    assert created.returncode == 0, created.stderr
    assert "table, pairs: train 4, val 1" in created.stdout
    wrong = "split 'tset' of 1 pair is not in the manifest (train, val)"
    assert f"fault: {wrong}" in created.stdout

    monkeypatch.chdir(folder)
    seen = prepare("inspect", "mine")
    assert seen.returncode == 1
    faults = [line for line in seen.stdout.splitlines() if line.startswith("fault: ")]
    assert len(faults) == 3
    assert f"fault: {wrong}" in faults
    assert "fault: 4 has the same images as 1" in faults
    assert any("fotos/fehlt.png" in fault for fault in faults)
    assert "train: 1 captions have characters beyond ASCII (ß 1, ö 1)" in seen.stdout.replace(
        "ö 1, ß 1", "ß 1, ö 1"
    )
    assert "2 pairs show what another shows: 1 (train) = 4 (train)" in seen.stdout

    done = prepare(
        "interpolate", "mine", "--out", "out",
        "--set", "interpolate.method=crossfade", "--set", "image_size=32",
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 of 5 pairs rejected" in done.stderr
    assert "fotos/fehlt.png" in done.stderr
    [rejected] = rejects.read(str(folder / "out/sequences"))
    assert (rejected.id, rejected.reason) == ("3", "missing image")
    assert "fotos/fehlt.png" in rejected.message
    written = {
        stored.id: stored.meta
        for shard in (folder / "out/sequences").glob("*.tar")
        for stored in sequences.read(str(shard))
    }
    assert set(written) == {"1", "2", "4", "5"}
    assert written["2"]["after"] == "fotos/größer ☂.png"
    assert written["2"]["captions"] == ["der Schirm ist größer"]
