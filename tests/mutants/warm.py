"""A process with the large libraries loaded, which runs tests in a fork of itself for each request.

Loading torch and its like takes longer than most unit tests; Ray is not among them, since it reads
settings of tests/conftest.py when it is loaded. Nothing of the project is imported
here before the fork, so each fork sees the modules as they then lie on the disk. A request is a
line of JSON {tests, seconds}; the answer is {ended, seconds, first}: pytest's exit code, or
"timeout", or the signal's name; first: the first test that failed. Arguments are other libraries.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

LIBRARIES = (
    "pytest",
    "hypothesis",
    "numpy",
    "torch",
    "torchvision",
    "cv2",
    "scipy.sparse",
    "pyarrow.parquet",
    "pydantic",
    "webdataset",
    "rich.console",
)
LOG = Path("mutant.log")


def run(tests: list[str]) -> int:
    """pytest's exit code; the first failure ends it, and is not looked into."""
    import hypothesis
    import pytest

    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider"]
    fixed = ["--hypothesis-seed=0", "--hypothesis-profile=mutants", "--basetemp=pytest-temporary"]
    return int(pytest.main([*options, *fixed, *tests]))


def fork(tests: list[str], seconds: float) -> dict[str, object]:
    """Runs tests in a fork; whatever it leaves running is killed with it."""
    started = time.monotonic()
    child = os.fork()
    if not child:
        code = 3
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            code = run(tests)
        finally:
            sys.stdout.flush()
            os._exit(code)
    ended: int | str | None = None
    while ended is None:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            ended = code if code >= 0 else signal.Signals(-code).name
        elif time.monotonic() - started > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended = "timeout"
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", LOG.read_text(errors="replace"), re.MULTILINE)
    took = round(time.monotonic() - started, 1)
    return {"ended": ended, "seconds": took, "first": failed[1] if failed else ""}


def main() -> None:
    """Answers requests until the input ends."""
    sys.path[0] = os.getcwd()  # the copy, and not this program's folder
    for library in sys.argv[1:] or LIBRARIES:
        importlib.import_module(library)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(fork(request["tests"], request["seconds"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
