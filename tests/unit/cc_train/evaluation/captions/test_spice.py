"""SPICE's Java: one that never answers is not waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_train.evaluation.captions import spice


def test_spice_does_not_wait_for_a_java_that_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: an evaluation that never ends."""
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(spice, "PATIENCE_S", 0.2)
    with pytest.raises(spice.Unavailable, match=r"bin/java does not work: .* timed out"):
        spice._require_answer(spice.find_java())
