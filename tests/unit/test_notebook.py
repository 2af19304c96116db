"""The notebook runs on the shipped captioner, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import notebook
from tests.conftest import ROOT


def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a notebook that no longer runs, or shows what the code does not do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stored = notebook.read(ROOT / "docs/python.ipynb")
    cells = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    shown = [cell["outputs"] for cell in cells]
    for now, then in zip(notebook.outputs(stored), shown, strict=True):
        assert [one.get("text", "a picture") for one in now] == [
            one.get("text", "a picture") for one in then
        ]
    assert sum(map(len, shown)) >= 8, "it shows nothing"
