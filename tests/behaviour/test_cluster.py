"""The same job on a Ray cluster that RAY_ADDRESS names: two nodes, GPUs as Ray counts them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cc_prep.formats import sequences
from pipelines import engine, job
from pipelines.cluster.session import messages
from tests import job_factory
from tests.conftest import BIN, ROOT

TRIES = 5
STARTED = "Ray runtime started"  # what Ray says once a node is there
# The head asks a node that refuses it five times, this far apart, before it takes it for lost. One
# that answers late still has its ten seconds each time.
SOON_LOST = {"RAY_health_check_period_ms": "500"}
PATIENCE = 300.0  # a slow machine is no fault


class Cluster:
    """A head without CPUs, and nodes with two CPUs and a logical GPU each."""

    def __init__(self, log: Path) -> None:
        self.log, self.processes = log, list[subprocess.Popen]()
        self.nodes = 0  # that came up, in all
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def start_head(self) -> None:
        port = self.port
        head = self.start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            assert head.poll() is None, f"no head came up:\n{self.end_of_log()}"
            assert time.monotonic() < deadline, f"the head does not listen:\n{self.end_of_log()}"
            time.sleep(0.2)

    def start(self, *arguments: str, hidden: Path | None = None) -> subprocess.Popen:
        """A process of Ray's.

        hidden: a folder in whose place the process sees an empty disk of its own.
        """
        command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *arguments]
        command += ["--object-store-memory", "80000000"]
        if hidden is not None:
            mount = 'mount -t tmpfs -o size=10m tmpfs "$0" && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, str(hidden), *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **SOON_LOST}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.processes.append(process)
        return process

    def add_node(self, gpus: int, hidden: Path | None = None) -> subprocess.Popen:
        """A further node, once the cluster has so many GPUs with it.

        Of two that start at a time, Ray gives one up after 30 s.
        """
        for _ in range(TRIES):  # a busy machine needs more than 30 s for one alone
            node = self.start(f"--address={self.address}", "--num-cpus=2", "--num-gpus=1",
                              hidden=hidden)  # fmt: skip
            while node.poll() is None:
                # To ask for the GPUs is to join as a driver, which costs a second of a processor.
                started = self.log.read_text().count(STARTED) - 1  # without the head
                if started > self.nodes and free_gpus() == gpus:
                    self.nodes += 1
                    return node
                time.sleep(0.2)
        raise AssertionError(f"no node came up:\n{self.end_of_log()}")

    def end_of_log(self) -> str:
        return self.log.read_text()[-3000:]

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # asked to end, it takes half a minute
        for process in self.processes:
            process.wait(timeout=60)


def free_gpus() -> int:
    try:
        return sum(node.gpus for node in engine.start())
    except job.UserError:
        return -1
    finally:
        engine.stop()


def free_port() -> int:
    """A port that nobody listens at, below those that Linux gives to connections by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def spec(tmp_path: Path, name: str, seconds: float = 0.0) -> job.JobSpec:
    return job.JobSpec(
        format=sequences.FORMAT,
        folder=str(tmp_path / name),
        shards=job_factory.shards(40, 5),
        make_step=partial(job_factory.number_step, {"folder": str(tmp_path), "seconds": seconds}),
        settings={},
        weights={},
        threads=1,
        bytes_a_pair=100,
        memory="",
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = Cluster(tmp_path_factory.mktemp("cluster") / "nodes.log")
    try:
        nodes.start_head()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes
    finally:
        nodes.stop()


def test_gpu_workers_on_two_nodes_and_one_node_lost(tmp_path: Path, cluster: Cluster) -> None:
    """The job ends on the other one, with the same bytes, its workers with half a GPU each."""
    cluster.add_node(gpus=1)
    lost = cluster.add_node(gpus=2)
    summary = job.run(spec(tmp_path, "whole"), job.Options(workers=3), messages())
    assert summary is not None, "a third worker may come with a node that the cluster starts"
    assert (summary.samples, summary.rejected) == (40, 0)
    assert (tmp_path / "made-for-cuda").exists(), "GPUs are taken where there are some"

    lossy = spec(tmp_path, "lossy", seconds=0.3)
    kill = subprocess.Popen(
        ["sh", "-c", 'while [ ! -e "$0"/*-000001.tar ]; do sleep 0.1; done; kill -9 -"$1"',
         lossy.folder, str(lost.pid)]
    )  # fmt: skip
    try:
        halves = job.Options(workers=3, gpus_per_worker=0.5)
        summary = job.run(lossy, halves, messages())
        kill.wait()
    finally:
        kill.kill()
    lost.wait(timeout=30)
    assert summary is not None
    assert (summary.samples, summary.rejected) == (40, 0)
    for shard in sorted((tmp_path / "whole").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "lossy" / shard.name).read_bytes()


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs the right to make a mount namespace: root",
)
def test_a_node_that_does_not_share_the_output_folder(tmp_path: Path, cluster: Cluster) -> None:
    """Keeps away: shards that lie on a node's own disk, in a job that ends with exit code 0."""
    apart = tmp_path / "apart"
    apart.mkdir()
    there = max(free_gpus(), 0)
    if not there:
        cluster.add_node(gpus=1)
    cluster.add_node(gpus=max(there, 1) + 1, hidden=apart)
    with pytest.raises(job.UserError, match=r"does not see .*apart/out as the driver does"):
        job.run(spec(tmp_path, "apart/out", seconds=0.4), job.Options(), messages())
    whole = {path.name for path in (apart / "out").glob("*.tar")}
    assert whole < {f"train-{number:06d}.tar" for number in range(8)}


def test_an_unreachable_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(job.UserError, match=r"no Ray at RAY_ADDRESS=127\.0\.0\.1:1"):
        job.run(spec(tmp_path, "out"), job.Options(), messages())
    assert time.monotonic() - started < 60, "Ray by itself waits for many minutes"
