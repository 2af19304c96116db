"""The same job on a Ray cluster that RAY_ADDRESS names: two nodes, GPUs as Ray counts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pipelines import engine, job
from tests import fakes
from tests.conftest import BIN, ROOT

PORT = 46379


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[subprocess.Popen]]:
    """A head without CPUs and two nodes with two CPUs and a logical GPU each."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def node(*arguments: str) -> subprocess.Popen:
        log = subprocess.DEVNULL
        command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *arguments]
        common = ["--object-store-memory", "80000000"]
        return subprocess.Popen(
            [*command, *common], stdout=log, stderr=log, env=environment, start_new_session=True
        )

    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], check=True, capture_output=True)
    head = node("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
    deadline = time.monotonic() + 60
    while not listens() and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = [
        node(f"--address=127.0.0.1:{PORT}", "--num-cpus=2", "--num-gpus=1") for _ in range(2)
    ]
    nodes = [head, *workers]
    try:
        yield nodes
    finally:
        for process in nodes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in nodes:
            process.wait(timeout=60)


def listens() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT), 1).close()
    except OSError:
        return False
    return True


def make(folder: str, seconds: float, device: str) -> partial:
    # A logical GPU computes nothing: the step only tells that it was asked for one.
    Path(folder, f"asked-for-{device}").touch()
    return partial(fakes.NumberStep, folder=folder, seconds=seconds)


def work(tmp_path: Path, name: str, seconds: float = 0.0) -> job.Work:
    return job.Work(
        format="test",
        version=1,
        folder=str(tmp_path / name),
        shards=fakes.shards(40, 5),
        make_step=partial(make, str(tmp_path), seconds),
        settings={},
        weights={},
        threads=1,
        bytes_a_pair=100,
        memory_a_worker=1,
    )


def wait_for(gpus: int) -> None:
    """Until the nodes have joined."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            if engine.start().gpus == gpus:
                return
        except job.UserError:
            pass
        finally:
            engine.stop()
        time.sleep(1)
    raise AssertionError(f"the cluster did not come up: {Path(engine.LOG).read_text()[-2000:]}")


def test_gpu_workers_on_two_nodes_and_one_node_lost(
    tmp_path: Path, cluster: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is killed in the middle; the job ends on the other one, with the same bytes."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{PORT}")
    wait_for(gpus=2)
    summary = job.run(work(tmp_path, "whole"), job.Options(), engine.messages())
    assert summary is not None
    assert (summary.samples, summary.rejected) == (40, 0)
    assert (tmp_path / "asked-for-cuda").exists(), "GPUs are taken where there are some"
    with pytest.raises(job.UserError, match="3 workers ask for 3 GPUs, Ray has 2 free"):
        job.run(work(tmp_path, "greedy"), job.Options(workers=3), engine.messages())

    lossy = work(tmp_path, "lossy", seconds=0.3)
    kill = subprocess.Popen(
        ["sh", "-c", 'while [ ! -e "$0"/*-000001.tar ]; do sleep 0.1; done; kill -9 -"$1"',
         lossy.folder, str(cluster[-1].pid)]
    )  # fmt: skip
    summary = job.run(lossy, job.Options(), engine.messages())
    kill.wait()
    cluster[-1].wait(timeout=30)
    assert summary is not None
    assert (summary.samples, summary.rejected) == (40, 0)
    for shard in sorted((tmp_path / "whole").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "lossy" / shard.name).read_bytes()
