"""Where Ray's own output goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipelines.cluster import session


def test_every_process_has_a_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: two jobs of a user of which the second empties the log that an error names."""
    assert session.LOG.name == f"ray-{os.getpid()}.log"
    log, other, old = (tmp_path / f"ray-{name}.log" for name in ("own", "other", "old"))
    monkeypatch.setattr(session, "LOG", log)
    other.write_text("of another job")
    old.touch()
    long_ago = time.time() - session.KEEP_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    session.divert_output()
    try:
        os.write(1, b"Ray talks")
    finally:
        session.restore_output()
    assert log.read_text() == "Ray talks"
    assert other.read_text() == "of another job"
    assert not old.exists()


def test_messages_stay_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    """Keeps away: lines of a job that rich breaks at 80 columns in a log file."""
    line = "the folder [v2] also has shards " + "of a split with a long name " * 10
    session.messages().print(line)
    assert capfd.readouterr().err == f"{line}\n"
