"""The processes of a running job, and what can be done to them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import commands
from tests.conftest import BIN, ROOT

AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # of Ray's node manager
PATIENCE = 600.0  # a slow machine is no fault


WITHOUT_RAY = """
from pipelines.cli import main
from tests.commands import without_ray
with without_ray():
    main()
"""


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """A `cc-prep` in a session of its own."""
    return _started([str(BIN / "cc-prep")], *arguments, **options)


def start_alone(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """The same as one process, whose worker needs no Ray: for what Ray has no part in."""
    return _started([sys.executable, "-c", WITHOUT_RAY], *arguments, cwd=ROOT, **options)


def _started(program: list[str], *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )


class Training:
    """A `cc-train` forked from a process that has torch already, which takes two seconds.

    It is in a session of its own. As far as tests use one, it is a `Popen` of standard error alone.
    """

    def __init__(self, *arguments: object, **variables: object) -> None:
        self._folder = tempfile.TemporaryDirectory()  # for as long as this object
        self._said = Path(self._folder.name, "said")
        given = ([*map(str, arguments)], self._said, {**os.environ, **variables})
        self._process = commands.forkserver().Process(target=_train, args=given)
        self._process.start()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("cc-train", timeout or 0)
        return "", self._said.read_text()


def _train(arguments: list[str], said: Path, environment: dict[str, str]) -> None:
    """What a forked process does."""
    from cc_train.cli import main

    os.setsid()
    os.environ.clear()
    os.environ |= environment
    with open(os.devnull, "w") as nothing, said.open("w") as file:
        os.dup2(nothing.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["cc-train", *arguments]
    main()


Job = subprocess.Popen[str] | Training


def wait_for(happened: Callable[[], object], job: Job, every: float = 0.05) -> bool:
    """Whether it happened before the job ended. It is asked after so many seconds each time."""
    deadline = time.monotonic() + PATIENCE
    while job.poll() is None:
        if happened():
            return True
        assert time.monotonic() < deadline, "nothing happened for minutes"
        time.sleep(every)
    return False


def kill_when(reached: Callable[[], object], *arguments: object, **options: object) -> None:
    """Starts a `cc-prep` without Ray and kills it as soon as it has reached something."""
    job = start_alone(*arguments, **options)
    try:
        assert wait_for(reached, job), f"it was over already: {ended(job)}"
    finally:
        job.kill()
        job.communicate()


HOLD = """
import os, sys, time

def hold(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        while os.path.abspath(arguments[0]) == {file!r} and os.path.exists({mark!r}):
            open({reached!r}, "a").close()
            time.sleep(0.02)

sys.addaudithook(hold)
"""


class Hold:
    """Holds each process that opens a file, from `begin` on, if it was started in `environment`.

    Args:
        at_start: Further code of such a process.
    """

    def __init__(self, folder: Path, file: Path, at_start: str) -> None:
        self._mark = folder / "held"
        self._reached = folder / "reached"
        text = HOLD.format(
            file=str(file.absolute()), mark=str(self._mark), reached=str(self._reached)
        )
        (folder / "sitecustomize.py").write_text(text + at_start)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def begin(self) -> None:
        self._mark.touch()

    def end(self) -> None:
        self._mark.unlink(missing_ok=True)

    def is_reached(self) -> bool:
        """Whether a process was held."""
        return self._reached.exists()


@contextlib.contextmanager
def held(file: Path, at_once: bool = True, at_start: str = "") -> Iterator[Hold]:
    """Whoever opens the file within the block waits there until its end.

    The file stays as it is: a pipe in its place, which holds too, is refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        hold = Hold(Path(folder), file, at_start)
        if at_once:
            hold.begin()
        try:
            yield hold
        finally:
            hold.end()


def in_flight(journal: Path) -> list[str]:
    """The keys of the pairs that a worker is at; none where it is at none."""
    try:
        keys: list[str] = json.loads(journal.read_text())["in_flight"]
    except FileNotFoundError:
        return []
    return keys


def below(job: Job) -> list[psutil.Process]:
    """All processes that the job has started, Ray's among them."""
    try:
        return psutil.Process(job.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def actors(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers that are at a shard."""
    return [p for p in below(job) if _named(p, "ray::MapWorker")]


def _named(process: psutil.Process, *names: str) -> bool:
    try:
        command_line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(name in command_line for name in names)


def kill(processes: list[psutil.Process]) -> int:
    """SIGKILL to all of them; how many were still there."""
    killed = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
            killed += 1
    return killed


def strike(job: subprocess.Popen[str], victim: str) -> int:
    """SIGKILL to an actor, the driver, Ray's node manager, one of its agents or everything; or a
    SIGTERM to the driver, or a pause of an actor.

    How many processes it hit: 0 where there is no such process yet, or no more.
    """
    if victim == "pause":
        return _pause(actors(job)[:1])
    if victim == "SIGTERM":
        job.terminate()
        return int(job.poll() is None)
    victims = {
        "actor": lambda: actors(job)[:1],
        "driver": lambda: itself(job),
        "raylet": lambda: [p for p in below(job) if _named(p, "raylet/raylet")],
        "agent": lambda: [p for p in below(job) if _named(p, *AGENTS)][:1],
        "session": lambda: [*below(job), *itself(job)],
    }
    return kill(victims[victim]())


def _pause(processes: list[psutil.Process]) -> int:
    """Stops them for three seconds; how many were still there."""
    stopped = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.suspend()
            stopped.append(process)
    if stopped:
        time.sleep(3)
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.resume()
    return len(stopped)


def ended(job: Job) -> str:
    """What the job said at its end, which is not far away."""
    try:
        return job.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        kill([*below(job), psutil.Process(job.pid)])
        raise AssertionError("the job hangs") from None


def leftovers(folder: Path) -> list[str]:
    """Temporaries of killed writers."""
    return sorted(p.name for p in folder.rglob("*.tmp"))


def run(command: list[str], more: dict[str, str]) -> int:
    """A command's exit code, with more in its environment."""
    return subprocess.run(command, env={**os.environ, **more}, check=False).returncode


@contextlib.contextmanager
def mounted(path: Path, megabytes: float) -> Iterator[Path]:
    """A disk of its own at `path`. Skips the test for who may not mount one."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={int(megabytes * 1024)}k", "tmpfs", str(path)]
    if not _as_root("mount", *options):
        pytest.skip("needs the right to mount a disk: root, or sudo without a password")
    try:
        yield path
    finally:
        assert _as_root("umount", "--lazy", str(path))
        while _as_root("umount", "--lazy", str(path)):
            """A second mount that a failed test left."""


def remount(path: Path, how: str) -> None:
    """Makes a mounted disk `ro`, and `rw` again."""
    # A job holds its lock's file open for writing, and the kernel refuses to make such a mount
    # read-only: a second mount of the same disk, on top of it, is what paths lead to from then on.
    if how == "ro":
        assert _as_root("mount", "--bind", str(path), str(path))
        # It refuses as long as a file is open for writing there, as the journal now and then.
        assert any(_as_root("mount", "-o", "remount,ro,bind", str(path)) for _ in range(200))
    else:
        assert _as_root("umount", "--lazy", str(path))


def enlarge(path: Path, megabytes: int) -> None:
    """Gives a mounted disk more room."""
    assert _as_root("mount", "-o", f"remount,size={megabytes}m", str(path))


def fill(path: Path) -> None:
    """A file that takes all the room there is, at once and then to the last page."""
    for size in (2**20, 4096):
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)


def _as_root(*command: str) -> bool:
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    try:
        done = subprocess.run([*sudo, *command], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def itself(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The job's own process, while it is there."""
    try:
        return [psutil.Process(job.pid)]
    except psutil.NoSuchProcess:
        return []
