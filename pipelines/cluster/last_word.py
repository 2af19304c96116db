"""Says that a job ended where its own process cannot say it any more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.cluster.output import LOG

MESSAGE = (
    "cc-prep: this job's process was killed, or Ray ended it because its node manager had died. "
    f"The same command resumes; Ray's output is in {LOG}"
)
# A scheduler ends all processes of a job at once, this one has to outlive them by a moment.
SCRIPT = """trap "" HUP INT TERM; read -r ended || printf '%s\\n' "$1" >&2"""


@contextmanager
def last_word() -> Iterator[None]:
    """Has a shell say on standard error if this process ends within the block, however it ends.

    When its node manager dies, Ray ends this process in C++, past everything that Python could
    do; and the kernel kills one for which there is no memory.
    """
    shell = subprocess.Popen(
        ["sh", "-c", SCRIPT, "sh", MESSAGE],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield
    finally:
        shell.communicate("ended\n")
