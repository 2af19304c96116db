"""What ends a command becomes one line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cc_prep import storage
from cc_prep.formats.tar import DamagedShard
from pipelines.cli.options import job_options


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_any_command_as_ctrl_c_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """Keeps away: half an export in a hidden folder, where a scheduler ends it; "Aborted!" alone,
    which does not say whether the same command goes on."""
    main = importlib.import_module("pipelines.cli.main")

    def command() -> None:
        with storage.write_folder(tmp_path) as folder:
            (folder / "half").write_text("an export")
            os.kill(os.getpid(), number)

    monkeypatch.setitem(main.cli.commands, "half", click.Command("half", callback=command))
    monkeypatch.setattr(sys, "argv", ["cc-prep", "half"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "cc-prep: stopped. Run the same command again; jobs and trainings go on from what is "
        "finished\n"
    )
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("name", "device"), [("gpu", "gpu"), ("cuda", "gpu"), ("cpu", "cpu")])
def test_a_gpu_has_both_names(name: str, device: str) -> None:
    """Keeps away: `--device cuda`, as cc-train has it, that cc-prep refuses."""
    command = click.command()(job_options(lambda device, **_: click.echo(device)))
    assert CliRunner().invoke(command, ["--out", "a", "--device", name]).output == f"{device}\n"


def options(*names: str) -> set[str]:
    """The options of a command of cc-prep."""
    command: click.Command = importlib.import_module("pipelines.cli.main").cli
    for name in names:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def test_an_import_without_networks_has_no_options_of_devices() -> None:
    """Keeps away: a choice of the device for a job that runs no network."""
    assert not options("import", "procap") & {"--device", "--gpus-per-worker"}
    assert options("import", "procap") >= {"--workers", "--limit", "--dry-run"}


@pytest.mark.parametrize("system", ["procap", "scorer"])
def test_exports_name_their_folder_as_all_commands_do(system: str) -> None:
    """Keeps away: `--out` that only the exports refuse."""
    assert "--out" in options("export", system)
