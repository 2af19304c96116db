"""How the process of `cc-train` ends."""

from __future__ import annotations

import subprocess
import sys

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
