"""Jobs that end with an error: a Ray of its own each, which nothing is left in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cc_prep.errors import JobFailed, UserError
from tests import job_factory
from tests.commands import without_ray
from tests.conftest import ROOT
from tests.job_factory import run, spec


@pytest.fixture(autouse=True)
def workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_broken_machine_ends_the_job_with_its_error_and_resumes(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        run(spec(tmp_path, fails=range(10, 20), seconds=0.05))
    message = str(caught.value)
    assert "ZeroDivisionError" in message
    assert "the same command resumes" in message
    assert "\n" not in message
    with without_ray():
        summary = run(spec(tmp_path))
    assert (summary.samples, summary.rejected) == (20, 0)
    assert 1 <= summary.made_now <= 3
    assert not list((tmp_path / "out").glob("*.tmp"))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [("raises", UserError, "no weights on this node. Put them there"),
     ("dies", JobFailed, "its worker died 3 times between pairs")],
)  # fmt: skip
def test_a_worker_that_cannot_start_ends_the_job(
    tmp_path: Path, how: str, error: type[Exception], message: str
) -> None:
    """Keeps away: Ray's silent restarts of an actor whose constructor dies."""
    hopeless = spec(tmp_path)
    object.__setattr__(hopeless, "make_step", partial(job_factory.BrokenStep, how))
    with pytest.raises(error) as caught:
        run(hopeless)
    assert message in str(caught.value)
