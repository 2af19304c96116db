"""What the commands of jobs say at their end, and what exports refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cc_prep.errors import UserError
from cc_prep.formats import provenance, rejects, scores, sequences, training_shards
from cc_prep.formats.rejects import Reject
from cc_prep.formats.tar import ShardFormat
from pipelines import procap
from pipelines.cli import cli, jobs
from pipelines.job import Summary


def test_rejects_come_with_their_reason_and_the_way_on(tmp_path: Path) -> None:
    """Keeps away: the path of an image that nobody says is missing, and a command that says the
    same again after it was put there, or that fails for ever where rejects are known."""
    one = Reject("d-train-1-change", "1", "train", "change", "s", "missing image", "/d/1.png")
    rejects.write(str(tmp_path), [one])
    summary = Summary(str(tmp_path), 30, 28, 2, 1, 1.0, 1, 1)
    assert jobs._first_rejects(summary) == (
        f"1 (train): missing image, /d/1.png; all reasons: {tmp_path}/rejects.parquet. "
        "Fix them and run the same command with --retry-rejects, or accept them with "
        "--max-rejects 0.07"
    )


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (training_shards.FORMAT, ("export", "scorer", "--out", "x")),
        (sequences.FORMAT, ("export", "procap", "--out", "x")),
        (training_shards.FORMAT, ("card",)),
    ],
)
def test_what_is_not_finished_is_not_passed_on(
    tmp_path: Path, kind: ShardFormat, command: tuple[str, ...]
) -> None:
    """Keeps away: the half of a data set in another system's format, with exit code 0."""
    record = {"format": kind.name, "format_version": kind.version, "complete": False}
    names = {"name": "synth", "layout": "clevr"}
    shards = {"train-000000": {"samples": 1, "rejected": 0, "sha256": ""}}
    provenance.write(str(tmp_path / "o"), {**record, "settings": names, "shards": shards})
    arguments = [str(tmp_path / part) if part == "x" else part for part in command]
    result = CliRunner().invoke(cli, [*arguments, str(tmp_path / "o")])
    assert isinstance(result.exception, UserError)
    assert "planned shards" in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_scores_of_other_sequences_are_not_exported(tmp_path: Path) -> None:
    for kind, more in ((sequences.FORMAT, {}), (scores.FORMAT, {"input_digest": "of others"})):
        shard = {"samples": 1, "rejected": 0, "sha256": "", **more}
        record = {"format": kind.name, "format_version": kind.version, "complete": True}
        record |= {"settings": {"name": "synth", "layout": "clevr"}}
        record |= {"shards": {"train-000000": shard}}
        provenance.write(str(tmp_path / kind.folder), record)
    with pytest.raises(UserError, match=r"train-000000 .*sequences"):
        procap.export(str(tmp_path), str(tmp_path / "x"))
