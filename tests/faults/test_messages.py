"""Every mistake of messages.md gets its line, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, Command
from tests.faults import mistakes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    path = tmp_path_factory.mktemp("mistakes")
    mistakes.prepare(path, synth_root, prepare)
    return path


@pytest.fixture(scope="module")
def table() -> list[str]:
    text = (ROOT / "tests/faults/messages.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("command", mistakes.MISTAKES)
def test_the_line(
    folder: Path, table: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    assert mistakes.row(command, mistakes.line_of(command)) in table


def test_the_table_is_whole(table: list[str]) -> None:
    assert len(table) == len(mistakes.MISTAKES) == len(set(mistakes.MISTAKES)) >= 40
