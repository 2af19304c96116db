"""A pair that needs more memory than there is: rejected, or set aside after two deaths."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import ray

from cc_prep.formats import rejects
from tests.conftest import ROOT
from tests.job_factory import run, spec

ROOM, LEAST = 3 * 2**30, 6 * 2**30  # what a worker may take, what must be free


def test_memory_that_is_refused_and_that_ray_takes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that fails is a reject; a worker that grows is killed by Ray's own monitor.

    The machine and all other pairs live on. The worker asks for nearly all that is free, little by
    little: another test that ends meanwhile, and gives memory back, must not make it fit.
    """
    memory = psutil.virtual_memory()
    if memory.available < LEAST:
        pytest.skip(f"needs {LEAST >> 30} GB of free memory")
    appetite = memory.available - 2**30
    used = memory.total - memory.available
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + ROOM) / memory.total:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False,
             log_to_driver=False, object_store_memory=128 * 2**20)  # fmt: skip
    try:
        greedy = spec(tmp_path, allocates={2: 2**50, 7: appetite})
        summary = run(greedy)
    finally:
        ray.shutdown()
    assert (summary.samples, summary.rejected) == (18, 2)
    reasons = {reject.id: reject.reason for reject in rejects.read(greedy.folder)}
    assert reasons == {"0002": "out of memory", "0007": "killed its process"}
