"""Our commands in the process of the tests, and one Ray for all the jobs of a test module.

A process and a Ray for each job cost some ten seconds of a processor, so what a test merely sets
out from, and what need not die to be tested, runs here. `cc_prep` in conftest.py is the real thing.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
Done = subprocess.CompletedProcess[str]


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


def cc_prep(*arguments: object) -> Done:
    """`cc-prep` in this process, on the Ray that it has, if it has one.

    Only the line of an error is in `stderr`: the rest goes past Python, as Ray's own lines do.
    """
    from pipelines.cli import main

    return in_process(main, *arguments)


@contextlib.contextmanager
def one_ray() -> Iterator[None]:
    """A Ray in this process with two processors; its workers find the tests' modules."""
    import ray

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=128 * 2**20,
        )
        yield
    finally:
        ray.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
