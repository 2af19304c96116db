"""A GPU that fails in the middle of a job: its worker ends, and neither pairs nor the job do."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.errors import JobFailed
from pipelines import job
from tests import job_factory
from tests.commands import one_ray


def run(tmp_path: Path, name: str, broken: str, workers: int) -> tuple[job.Summary | None, str]:
    spec = job_factory.spec(tmp_path, name)
    step = partial(job_factory.StepOnGpu, str(tmp_path), broken)
    object.__setattr__(spec, "make_step", step)
    out = io.StringIO()
    options = job.Options(workers=workers)
    return job.run(spec, options, Console(file=out, width=500)), out.getvalue()


def test_the_other_gpu_goes_on(tmp_path: Path) -> None:
    """Keeps away: good pairs that are rejected, and a job that ends on all nodes, for one GPU."""
    with one_ray(gpus=2):
        summary, output = run(tmp_path, "out", "1", workers=2)
        assert summary is not None
        assert (summary.samples, summary.rejected, summary.made_now) == (20, 0, 4)
        assert "broken: GPU 1 of " in output
        assert "illegal memory access" in output
        assert (tmp_path / "worked-on-1").exists(), "it was broken from the start on"
        with pytest.raises(JobFailed, match="no GPU is left to work on, the last was broken: GPU"):
            run(tmp_path, "none", "01", workers=1)
