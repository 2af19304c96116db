"""What the commands of jobs say at their end."""

from __future__ import annotations

from pathlib import Path

from cc_prep.formats import rejects
from cc_prep.formats.rejects import Reject
from pipelines.cli import jobs


def test_rejects_come_with_their_reason_and_the_way_on(tmp_path: Path) -> None:
    """Keeps away: the path of an image that nobody says is missing, and a command that says the
    same again after it was put there."""
    one = Reject("d-train-1-change", "1", "train", "change", "s", "missing image", "/d/1.png")
    rejects.write(str(tmp_path), [one])
    assert jobs._first_rejects(str(tmp_path)) == (
        f"d-train-1-change: missing image, /d/1.png; all reasons: {tmp_path}/rejects.parquet. "
        "Fix them and run the same command with --retry-rejects"
    )
