"""A killed `cc-prep synth` takes its renderers along, which no signal tells of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.conftest import BIN
from tests.faults import processes


def group(number: int) -> list[int]:
    """Living processes of a process group."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == number and fields[0] != "Z":
            pids.append(int(entry.name))
    return pids


def test_renderers_end_with_their_parent(tmp_path: Path) -> None:
    """Keeps away: renderers that worked on for an hour after their job was killed."""
    command = [str(BIN / "cc-prep"), "synth", str(tmp_path), "--scenes", "5000", "--size", "32"]
    job = subprocess.Popen(
        [*command, "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert processes.wait_for(lambda: list(tmp_path.glob("scenes/*.json")), job)
        assert len(group(job.pid)) >= 3
    finally:
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
    deadline = time.monotonic() + processes.PATIENCE
    while group(job.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not group(job.pid)
