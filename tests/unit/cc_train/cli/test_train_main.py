"""How the process of `cc-train` ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import click
import pytest

from cc_train import cli

PROGRAM = """
import atexit
from cc_prep.errors import JobFailed, LoaderWorkerDied
from cc_train import cli

def command(**options):
    raise {error}("a loader worker died")

atexit.register(print, "the interpreter is being taken apart")
cli.cli.main = command
cli.main()
"""


def ended_with(error: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(error=error)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_after_the_death_of_a_loader_worker_the_process_ends_at_once() -> None:
    """Keeps away: a crash of torch in one of three runs, while the interpreter is taken apart."""
    done = ended_with("LoaderWorkerDied")
    assert done.returncode == 1
    assert done.stderr == "cc-train: a loader worker died\n"
    assert done.stdout == ""


def test_after_other_failures_it_ends_as_usual() -> None:
    done = ended_with("JobFailed")
    assert done.returncode == 1
    assert done.stderr == "cc-train: a loader worker died\n"
    assert done.stdout == "the interpreter is being taken apart\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_stopped_says_how_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Keeps away: a training that is stopped while it starts, and ends without a word."""
    command = click.Command("half", callback=lambda: os.kill(os.getpid(), number))
    monkeypatch.setitem(cli.cli.commands, "half", command)
    monkeypatch.setattr(sys, "argv", ["cc-train", "half"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "cc-train: stopped. Run the same command again; jobs and trainings go on from what is "
        "finished\n"
    )
    assert signal.getsignal(signal.SIGTERM) == before
