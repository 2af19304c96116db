"""The table of rejects takes whatever text a pair may have."""

from __future__ import annotations

from pathlib import Path

from cc_prep.formats import rejects
from cc_prep.formats.rejects import Reject


def test_names_that_are_not_utf8_are_written(tmp_path: Path) -> None:
    """Keeps away: a folder that no run can finish, since its rejects cannot be written."""
    id, message = map(rejects.encodable, ("caf\udce9", "x\ud800é"))
    reject = Reject("k", id, "train", "change", "train-000000", "failed", message)
    rejects.write(str(tmp_path), [reject])
    [row] = rejects.read(str(tmp_path))
    assert (row.id, row.message) == ("caf\\udce9", "x\\ud800é")
