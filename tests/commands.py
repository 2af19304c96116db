"""Our commands in the process of the tests, with one Ray for a test module, or with none.

A process and a Ray for each job cost some ten seconds of a processor, so what a test merely sets
out from, and what need not die to be tested, runs here. `cc_prep` in conftest.py is the real thing.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from cc_prep.synth.dataset import Settings

ROOT = Path(__file__).parent.parent
Done = subprocess.CompletedProcess[str]
# What make starts: it hands its arguments on, and says and returns what comes back.
PROGRAM = """#!{python} -ES
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as tests:
    tests.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n")
    code, out, err = json.load(tests.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


def in_process(main: Callable[[], None], *arguments: object) -> Done:
    """What the program that `main` is prints and ends with, given these arguments."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    texts = [str(part) for part in arguments]
    before, sys.argv = sys.argv, [main.__module__, *texts]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return Done(texts, code, out.getvalue(), err.getvalue())


def cc_train(*arguments: object) -> Done:
    """`cc-train` in this process."""
    from cc_train.cli import main

    return in_process(main, *arguments)


def zoo(*arguments: object) -> Done:
    """`python -m tools.zoo` in this process."""
    from tools.zoo.__main__ import main

    return in_process(main, *arguments)


def cc_prep(*arguments: object) -> Done:
    """`cc-prep` in this process, on the Ray that it has, if it has one.

    Only the line of an error is in `stderr`: the rest goes past Python, as Ray's own lines do.
    """
    from pipelines.cli import main

    return in_process(main, *arguments)


@contextlib.contextmanager
def without_ray(workers: int = 1) -> Iterator[None]:
    """The workers of jobs run in this process. Several take the shards in turn.

    Each shard is made by the same `ShardWorker` from the same row as by Ray, so the files are too.
    """
    from cc_prep.steps.base import MakeStep
    from pipelines import engine, timing
    from pipelines.cluster.pool import Pool, Resources
    from pipelines.shard_worker import RunInfo, ShardWorker
    from pipelines.shards import PlannedShard
    from pipelines.state.journal import Done

    def run(
        shards: Sequence[PlannedShard], make_step: MakeStep, run_info: RunInfo, pool: Pool
    ) -> Iterator[Done]:
        turns = itertools.cycle([ShardWorker(make_step, run_info) for _ in range(workers)])
        for shard, worker in zip(shards, turns, strict=False):
            [row] = worker({"shard": [json.dumps(shard.to_json())]})["done"]
            yield Done.from_json(row)

    def try_out(
        shards: Sequence[PlannedShard], make_step: MakeStep, pool: Pool
    ) -> tuple[list[timing.Trial], float]:
        return [timing.try_out(shards[0], make_step, pool.device)], 0.0

    replaced: dict[str, Callable[..., object]] = {
        "start": lambda: (Resources(2, 0),),
        "stop": lambda: None,
        "run": run,
        "try_out": try_out,
    }
    originals = {name: getattr(engine, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(engine, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(engine, name, function)
        # Not imported here: a worker that needs no network would wait seconds for it.
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)


@contextlib.contextmanager
def one_ray(gpus: int = 0) -> Iterator[None]:
    """A Ray in this process with two processors; its workers find the tests' modules.

    gpus: that Ray counts, whatever there is.
    """
    import ray

    from cc_prep.devices import ONE_ARENA

    # As `engine.start` has it, but for the folder of the tests.
    with mock.patch.dict(os.environ, {**ONE_ARENA, "PYTHONPATH": str(ROOT)}):
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=gpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=128 * 2**20,
        )
        try:
            yield
        finally:
            ray.shutdown()


@functools.cache
def _renderer() -> ProcessPoolExecutor:
    """A process that renders; it lives as long as this one, however that ends."""
    from cc_prep.synth import dataset

    context = multiprocessing.get_context("spawn")
    prepared = {"initializer": dataset._prepare, "initargs": (os.getpid(), dataset._one_thread)}
    return ProcessPoolExecutor(1, context, **prepared)


def render(root: Path, scenes: int, settings: Settings) -> None:
    """`cc_prep.synth.dataset.make`, all of whose calls share one process.

    Otherwise each call starts two, and Mitsuba takes each of them a second to import.
    """
    from cc_prep.synth import dataset

    def run_all(tasks: Sequence[Callable[[], int]], *_: object) -> Iterator[int]:
        return iter([job.result() for job in [_renderer().submit(task) for task in tasks]])

    with mock.patch.object(dataset, "run_all", run_all):
        assert sorted(dataset.make(str(root), scenes, settings)) == list(range(scenes))


def forkserver() -> ForkServerContext:
    """Of processes that train; it has what they import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "cc_train.cli",
            "cc_train.start",
            "cc_train.systems.procap.stage2",
            "tests.shard_factory",
            "torch._dynamo",
            "torch.utils.tensorboard",
            "nltk.tokenize.destructive",
        ]
    )
    return context


def outside_make() -> dict[str, str]:
    """The environment without what a `make` above these tests left in it.

    `make test ARGS=…` hands its arguments on to every make below it.
    """
    inherited = ("MAKE", "MFLAGS", "ARGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(inherited)}


def make(*arguments: object, **more: object) -> Done:
    """`make` in the checkout; it installs nothing. more: variables of the environment."""
    with (
        mock.patch.dict(os.environ, {name: str(value) for name, value in more.items()}),
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        for name in ("cc-prep", "cc-train"):
            port = server.getsockname()[1]
            program = Path(folder, name)
            program.write_text(PROGRAM.format(python=sys.executable, port=port, name=name))
            program.chmod(0o755)
        given = ["make", "-s", "SETUP=", f"BIN={folder}", *map(str, arguments)]
        job = subprocess.Popen(given, cwd=ROOT, env=outside_make(), stdout=out, stderr=err)
        server.settimeout(0.05)
        while job.poll() is None:
            _answer(server)
        out.seek(0)
        err.seek(0)
        return Done(given, job.returncode, out.read(), err.read())


def _answer(server: socket.socket) -> None:
    """Runs the command that a program of make asks for, if one does."""
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return
    connection.settimeout(None)
    with connection, without_ray():
        name, *arguments = json.loads(connection.makefile().readline())
        run = {"cc-prep": cc_prep, "cc-train": cc_train}[name]
        done = run(*arguments)
        answer = [done.returncode, done.stdout, done.stderr]
        connection.sendall(json.dumps(answer).encode())
