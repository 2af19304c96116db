"""A GPU that fails in the middle of a job: its worker ends, and neither pairs nor the job do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.errors import JobFailed
from pipelines import job
from pipelines.cluster.broken import BrokenDevices, release, without_devices
from pipelines.cluster.pool import Pool
from pipelines.state.device import Device, this_device
from tests import job_factory
from tests.commands import one_ray


@pytest.fixture(autouse=True, scope="module")
def ray() -> Iterator[None]:
    with one_ray(gpus=2):
        yield


def test_the_other_gpu_goes_on(tmp_path: Path) -> None:
    """Keeps away: good pairs that are rejected, and a job that ends on all nodes, for one GPU."""
    spec = job_factory.spec(tmp_path)
    object.__setattr__(spec, "make_step", partial(job_factory.StepOnGpu, str(tmp_path), "1"))
    out = io.StringIO()
    summary = job.run(spec, job.Options(workers=2), Console(file=out, width=500))
    assert summary is not None
    assert (summary.samples, summary.rejected, summary.made_now) == (20, 0, 4)
    assert "broken: GPU 1 of " in out.getvalue()
    assert "illegal memory access" in out.getvalue()
    assert (tmp_path / "worked-on-1").exists(), "it was broken from the start on"


def test_no_gpu_is_left() -> None:
    """Keeps away: a job that starts worker after worker on GPUs all of which are broken."""
    host, pool = this_device().host, Pool(2, 1, 1.0)
    try:
        pool = without_devices(pool, BrokenDevices(Device(host, "1")))
        assert pool.workers == 1
        with pytest.raises(JobFailed, match="no GPU is left to work on, the last was broken: GPU"):
            without_devices(pool, BrokenDevices(Device(host, "0")))
    finally:
        release()
