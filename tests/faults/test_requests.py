"""The page's server under requests that are meant to break it.

`TRIES=50 make faults ARGS='-k requests -s'` sends 10,000 of them.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults import request_fuzzer, tries

SECONDS = 1200.0  # in all, however slow the machine is


def test_requests(tmp_path: Path) -> None:
    """Keeps away: a request that ends the server, hangs it, fills its memory, or shows a file."""
    count, until = 200 * tries(1), time.monotonic() + SECONDS
    with request_fuzzer.target(tmp_path) as target:
        sent = request_fuzzer.run(target, 0, lambda sent: sent < count and time.monotonic() < until)
        print(f"{sent} requests: {dict(sorted(target.statuses.items()))}")
        assert target.statuses[200] > sent / 10
