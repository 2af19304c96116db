"""What a worker says of a file that is not there, cannot be read, or is damaged."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import sequences
from cc_prep.formats.tar import DamagedShard
from pipelines.shard_worker import RunInfo, ShardWorker, explained
from pipelines.shards import PlannedShard, Sequences
from pipelines.state.journal import State
from tests import job_factory

AGAIN = "or run the job that wrote it again"


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "x"), JobFailed, "a worker met: No space left on device"),
        (OSError(errno.EIO, "x", "/a.tar"), JobFailed, "a worker met: /a.tar: Input/output error"),
        (
            FileNotFoundError(errno.ENOENT, "x", "/data/a.png"),
            UserError,
            f"a worker met: /data/a.png: No such file or directory. Put it back, {AGAIN}",
        ),
        (
            FileNotFoundError("no key."),
            UserError,
            f"a worker met: no key: No such file or directory. Put it back, {AGAIN}",
        ),
        (
            DamagedShard("/out/train-000000.tar: is cut short"),
            UserError,
            "/out/train-000000.tar: is cut short. "
            "Look closer with: cc-prep verify; remove the file, "
            "then run the job that wrote it again",
        ),
        (OSError("no disk"), OSError, "no disk"),
    ],
)
def test_an_error_of_a_file_has_a_remedy(
    cause: Exception, kind: type[Exception], message: str
) -> None:
    error = explained(cause)
    assert type(error) is kind
    assert str(error) == message


@pytest.mark.parametrize("damaged", [True, False])
def test_an_input_shard_that_is_not_whole_is_named(tmp_path: Path, damaged: bool) -> None:
    """Keeps away: "the same command resumes", which fails in the same way for ever; and a file's
    name that Ray has replaced by words of its own."""
    path = tmp_path / "sequences-000000.tar"
    if damaged:
        path.write_bytes(b"half a header")
    State(str(tmp_path)).write_run("run")
    run_info = RunInfo(str(tmp_path), "run", sequences.FORMAT, "cpu")
    worker = ShardWorker(lambda device: job_factory.NumberStep(str(tmp_path)), run_info)
    shard = PlannedShard("train", "train-000000", Sequences(str(path), 2, "digest"))
    with pytest.raises(UserError, match=rf"{path}.*run the job that wrote it again$"):
        worker({"shard": [json.dumps(shard.to_json())]})
