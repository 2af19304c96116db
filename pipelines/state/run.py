"""What all workers of a run share; the check that a worker has the driver's code and folder."""

from __future__ import annotations

import hashlib
import socket
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cc_prep.errors import UserError
from cc_prep.formats.base import ShardFormat
from pipelines.state.journal import State

# A file of a name that was never asked for is seen at once even on NFS; some seconds all the same.
VISIBLE_SECONDS = 10.0
PACKAGES = ("cc_prep", "pipelines")


@cache
def code_digest() -> str:
    """SHA-256 of the source files that make shards, on this machine."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class RunInfo:
    """What all workers of a run share.

    folder: output folder of the shards. id: new in every run. device: where networks run.
    code: `code_digest` of the driver.
    """

    folder: str
    id: str
    format: ShardFormat
    device: str
    code: str = field(default_factory=code_digest)


def check_node(run_info: RunInfo) -> None:
    """Raises UserError on a node with other code than the driver, or that does not see its folder.

    Without the second check a worker might write to its own disk, and its shards would be lost.
    """
    host = socket.gethostname()
    if code_digest() != run_info.code:
        raise UserError(
            f"{host} runs another version of this package than the driver",
            "Install the same version on every node",
        )
    state, deadline = State(run_info.folder), time.monotonic() + VISIBLE_SECONDS
    while not state.has_run(run_info.id):
        if time.monotonic() > deadline:
            raise UserError(
                f"{host} does not see {run_info.folder} as the driver does: "
                "the plan of this run is not there",
                "Give an --out that all nodes share: a mounted folder or an object store",
            )
        time.sleep(0.2)
