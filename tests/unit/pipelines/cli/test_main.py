"""What ends a command becomes one line and an exit code."""

from __future__ import annotations

import importlib

import pytest

from cc_prep.formats.tar import DamagedShard


def test_a_damaged_shard_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: a traceback where a table of an earlier job is damaged."""

    def read() -> None:
        raise DamagedShard("out/changes/rejects.parquet: no table")

    main = importlib.import_module("pipelines.cli.main")  # the package has a function of its name
    monkeypatch.setattr(main, "cli", read)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    line = "cc-prep: out/changes/rejects.parquet: no table. Look closer with: cc-prep verify\n"
    assert capsys.readouterr().err == line
