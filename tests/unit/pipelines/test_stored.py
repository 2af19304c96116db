"""Shards made from finished sequences: which, how many, and from what exactly."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.formats import changes, entities, provenance, rejects, scores, sequences
from cc_prep.formats.rejects import Reject
from cc_prep.formats.tar import VERSIONS, DamagedShard, write_shard
from cc_prep.inspect import verification
from cc_prep.records import FrameScores, FrameSequence
from pipelines import fingerprint
from pipelines.shards import FindingFiles, PlannedShard, Sequences, remaining
from pipelines.state.journal import Done
from pipelines.stored import (
    Findings,
    finished_shards,
    note_what_is_missing,
    plan_from_sequences,
    read_findings,
    with_findings,
)
from tests import job_factory

SIZES = {"train-000000": 3, "train-000001": 2, "val-000000": 2}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def record(folder: Path, shards: dict[str, dict[str, Any]], kind: str, **more: object) -> str:
    """A folder's provenance as an ended job leaves it."""
    version = {"format": kind, "format_version": VERSIONS[kind]}
    content = {**version, "settings": {}, "complete": True, "shards": shards, **more}
    provenance.write(str(folder), content)
    return str(folder)


@pytest.fixture
def sequences_folder(tmp_path: Path) -> str:
    shards = {name: {"samples": size, "sha256": f"s-{name}"} for name, size in SIZES.items()}
    return record(tmp_path / "sequences", shards, "cc-sequences")


def scored(folder: Path, **counts: int) -> str:
    """A folder of scores, each of the whole of its sequences, unless another count is given."""
    shards = {}
    for name, size in SIZES.items():
        count = counts.get(name.replace("-", "_"), size)
        digest = sha256(f"s-{name}:{count}")
        shards[name] = {"sha256": f"t-{name}", "input_digest": digest, "samples": count - 1}
        shards[name]["rejected"] = 1
    return record(folder / "scores", shards, "cc-scores")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, {"train-000000": 3, "train-000001": 2, "val-000000": 2}),
        (4, {"train-000000": 3, "train-000001": 1, "val-000000": 2}),
        (3, {"train-000000": 3, "val-000000": 2}),
        (1, {"train-000000": 1, "val-000000": 1}),
    ],
)
def test_each_split_has_its_own_limit(
    sequences_folder: str, limit: int | None, expected: dict[str, int]
) -> None:
    """Keeps away: a limit that all splits share, and shards of no samples."""
    shards = plan_from_sequences(sequences_folder, ["train", "val"], limit)
    assert {shard.name: shard.count for shard in shards} == expected
    for shard in shards:
        assert shard.digest() == sha256(f"s-{shard.name}:{shard.count}")
        assert (shard.split, shard.source.scores) == (shard.name.split("-")[0], None)
        assert shard.source.path == f"{sequences_folder}/{shard.name}.tar"


def test_other_splits_are_left_out(sequences_folder: str) -> None:
    assert [shard.name for shard in plan_from_sequences(sequences_folder, ["val"], None)] == [
        "val-000000"
    ]
    with pytest.raises(UserError, match="no sequences of test"):
        plan_from_sequences(sequences_folder, ["test"], None)


def test_splits_without_sequences_are_named(sequences_folder: str) -> None:
    """Keeps away: training shards of one split alone, where three were expected, without a word."""
    splits = ["train", "val", "test"]
    assert notes(sequences_folder, splits[:2]) == ""
    line = f"no sequences of test in {sequences_folder}: nothing is made of them\n"
    assert notes(sequences_folder, splits) == line


def notes(folder: str, splits: list[str]) -> str:
    """What a job on these sequences says before it starts."""
    out = io.StringIO()
    note_what_is_missing(
        plan_from_sequences(folder, splits, None),
        folder,
        manifest=manifest.load("synth"),
        splits=splits,
        limit=None,
        console=Console(file=out, width=500),
    )
    return out.getvalue()


def test_empty_shards_are_not_planned(tmp_path: Path) -> None:
    """Keeps away: a shard all of whose pairs were rejected, as a shard without samples."""
    shards = {"train-000000": {"samples": 0, "sha256": "a"}}
    folder = record(tmp_path, shards, "cc-sequences")
    with pytest.raises(UserError, match="all pairs of train were rejected") as caught:
        plan_from_sequences(folder, ["train"], None)
    assert "--retry-rejects" in str(caught.value)
    shards["val-000000"] = {"samples": 1, "sha256": "b"}
    record(tmp_path, shards, "cc-sequences")
    line = f"all pairs of train were rejected in {folder}: nothing is made of them\n"
    assert notes(folder, ["train", "val"]) == line


def test_scores_take_part_in_the_digest(sequences_folder: str, tmp_path: Path) -> None:
    """Keeps away: training shards that stay as they are when the scores are made anew."""
    folder = scored(tmp_path)
    for shard in plan_from_sequences(sequences_folder, ["train", "val"], None, folder):
        sequence_digest = sha256(f"s-{shard.name}:{shard.count}")
        assert shard.digest() == sha256(f"{sequence_digest}:t-{shard.name}")
        assert shard.source.scores == f"{folder}/{shard.name}.parquet"


def test_scores_are_of_the_whole_shard_or_of_a_part(sequences_folder: str, tmp_path: Path) -> None:
    """Keeps away: "of other sequences" of scores of the same ones, and a remedy that is refused."""
    folder = scored(tmp_path, train_000000=2)
    for limit in (1, 2):
        [shard] = plan_from_sequences(sequences_folder, ["train"], limit, folder)
        assert shard.digest() == sha256(f"{sha256(f's-train-000000:{limit}')}:t-train-000000")
    message = "of 3 sequences of train-000000, 2 have scores. Run cc-prep score-frames without"
    with pytest.raises(UserError, match=message):
        plan_from_sequences(sequences_folder, ["train"], 3, folder)
    assert plan_from_sequences(sequences_folder, ["val"], 1, folder)[0].count == 1


def test_scores_of_other_sequences_are_refused(sequences_folder: str, tmp_path: Path) -> None:
    folder = scored(tmp_path)
    shards = {name: {"samples": size, "sha256": "new"} for name, size in SIZES.items()}
    record(tmp_path / "sequences", shards, "cc-sequences")
    with pytest.raises(UserError, match="scores of train-000000 are of other sequences"):
        plan_from_sequences(sequences_folder, ["train"], None, folder)


def test_missing_scores_are_named(sequences_folder: str, tmp_path: Path) -> None:
    digest = sha256("s-val-000000:2")
    one = {"sha256": "t", "input_digest": digest, "samples": 2, "rejected": 0}
    shards = {"val-000000": one}
    folder = record(tmp_path / "scores", shards, "cc-scores")
    assert plan_from_sequences(sequences_folder, ["val"], None, folder)
    with pytest.raises(UserError, match="no scores of train-000000"):
        plan_from_sequences(sequences_folder, ["train"], None, folder)


def test_what_is_not_finished_is_refused(tmp_path: Path) -> None:
    """Keeps away: training shards of the half of a data set that was there at the time."""
    kind = sequences.FORMAT
    with pytest.raises(UserError, match="no sequences there"):
        finished_shards(str(tmp_path), kind, "interpolate")
    record(tmp_path, {}, "cc-scores")
    with pytest.raises(UserError, match="no sequences there"):
        finished_shards(str(tmp_path), kind, "interpolate")
    record(tmp_path, {}, "cc-sequences", complete=False)
    with pytest.raises(UserError, match="planned shards") as caught:
        finished_shards(str(tmp_path), kind, "interpolate")
    assert "cc-prep interpolate" in str(caught.value)
    record(tmp_path, {"a-000000": {"samples": 1}}, "cc-sequences")
    assert finished_shards(str(tmp_path), kind, "interpolate") == {"a-000000": {"samples": 1}}


def test_how_much_of_a_split_is_finished_is_told(tmp_path: Path) -> None:
    """Keeps away: "not finished" of a folder, and nothing of how far it is."""
    planned = {"train-000000": 3, "train-000001": 3, "val-000000": 2}
    shards = {
        "train-000000": {"samples": 2, "rejected": 1},
        "train-000001": {"samples": 1, "rejected": 0},
        "val-000000": {"samples": 1, "rejected": 1},
    }
    folder = record(tmp_path, shards, "cc-sequences", complete=False, planned=planned)
    with pytest.raises(UserError, match=r"are finished \(train: 4 of 6 pairs\)\. Run: .* --limit"):
        finished_shards(folder, sequences.FORMAT, "interpolate")


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Findings]:
    """An OUT with changes of four pairs, and with entities of the three that were not rejected."""
    monkeypatch.setattr(fingerprint, "continue_from", lambda manifest, folder, keys: None)
    for kind, count in ((changes.FORMAT, 4), (entities.FORMAT, 3)):
        shards = {"train-000000": {"samples": 3, "rejected": count - 3, "sha256": kind.folder}}
        more = {
            "settings": {kind.folder: {"of": kind.name}},
            "weights": {kind.name: "a"},
            "planned": {"train-000000": count},
        }
        record(tmp_path / kind.folder, shards, kind.name, **more)
    aside = Reject(job_factory.pair(1).key, "1", "train", "change", "train-000000", "r", "m")
    rejects.write(str(tmp_path / "changes"), [aside])
    return str(tmp_path), read_findings(manifest.load("synth"), str(tmp_path))


def test_findings_of_both_jobs_go_into_a_shard(found: tuple[str, Findings]) -> None:
    """Keeps away: settings or weights of one job alone, and a refusal for a rejected pair."""
    out, findings = found
    assert findings.settings == {name: {"of": f"cc-{name}"} for name in ("changes", "entities")}
    assert findings.weights == {"cc-changes": "a", "cc-entities": "a"}
    shard = job_factory.shards(4, 4)[0]
    [enriched] = with_findings([shard], out, findings)
    files = (f"{out}/changes/train-000000.tar", f"{out}/entities/train-000000.parquet")
    assert enriched.findings == FindingFiles(
        sha256(f"{sha256(':changes')}:entities"),
        *files,
        rejected=(job_factory.pair(1).key,),
        digests=dict(zip(files, ("changes", "entities"), strict=True)),
    )
    with pytest.raises(UserError, match="changes: covers 4 of the 5 pairs of train-000000"):
        with_findings(job_factory.shards(5, 5), out, findings)


def test_findings_without_entities(found: tuple[str, Findings]) -> None:
    out, findings = found
    [shard] = with_findings(job_factory.shards(4, 4), out, replace(findings, entities=None))
    assert (shard.findings.changes, shard.findings.entities) == (
        f"{out}/changes/train-000000.tar", None
    )  # fmt: skip
    shards = job_factory.shards(4, 4)
    assert with_findings(shards, out, Findings({}, {})) == shards


def frame_scores(value: float) -> FrameScores:
    rows, nothing = np.full((2, 3), value, np.float32), np.zeros(0, np.float32)
    return FrameScores(job_factory.CHANGE_CAPTIONS, rows, rows, nothing, nothing)


def test_each_sequence_comes_with_its_own_scores(tmp_path: Path) -> None:
    """Keeps away: scores of the neighbour, and more samples than were planned."""
    path, table = str(tmp_path / "a.tar"), str(tmp_path / "a.parquet")
    with write_shard(path) as (writer, _):
        for i in range(3):
            frames = np.full((3, 8, 8, 3), i, np.uint8)
            members = sequences.encode(FrameSequence(job_factory.pair(i), frames), "png", 90, {})
            writer.add(job_factory.pair(i).key, members)
    with scores.write_shard(table) as (rows, _):
        for i in (2, 0):
            row = scores.encode(frame_scores(i), np.zeros(3), [0], "x", "y")
            rows.add(job_factory.pair(i).key, row)
    shard = PlannedShard("train", "a", Sequences(path, 2, "d", table))
    first, second = shard.items()
    assert first.scores is not None
    assert (first.scores.bef_inter_sim == 0).all()
    assert (second.key, second.scores) == (job_factory.pair(1).key, None)
    unscored = PlannedShard("train", "a", Sequences(path, 2, "d"))
    assert [s.scores for s in unscored.items()] == [None] * 2
    *_, third = PlannedShard("train", "a", Sequences(path, 3, "d", table)).items()
    assert third.scores is not None
    assert (third.scores.bef_inter_sim == 2).all()


def test_a_stored_shard_that_changed_is_refused(tmp_path: Path) -> None:
    """Keeps away: a flipped bit of sequences or scores that goes into training shards, whose
    digests then say that all is well.
    """
    path, table = str(tmp_path / "a.tar"), str(tmp_path / "a.parquet")
    key = job_factory.pair(0).key
    with write_shard(path) as (writer, of_frames), scores.write_shard(table) as (rows, of_scores):
        frames = FrameSequence(job_factory.pair(0), np.zeros((3, 8, 8, 3), np.uint8))
        writer.add(key, sequences.encode(frames, "jpg", 90, {}))
        rows.add(key, scores.encode(frame_scores(0), np.zeros(3), [0], "x", "y"))
    digests = {path: of_frames.sha256, table: of_scores.sha256}
    stored = PlannedShard("train", "a", Sequences(path, 1, "d", table, digests=digests))
    assert [item.key for item in stored.items()] == [key]
    for file in (Path(path), Path(table)):
        whole = file.read_bytes()
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(DamagedShard, match=f"{file}: is not as it was written"):
            list(stored.items())
        file.write_bytes(whole)


def test_damaged_scores_are_named_by_their_key(tmp_path: Path) -> None:
    """Keeps away: "None: its scores are not captions × frames", which names no row."""
    path, table = str(tmp_path / "a.tar"), str(tmp_path / "a.parquet")
    key = job_factory.pair(0).key
    row = {**scores.encode(frame_scores(0), np.zeros(3), [0], "x", "y"), "penalty": [0.0] * 5}
    with write_shard(path) as (writer, _), scores.write_shard(table) as (rows, _):
        frames = FrameSequence(job_factory.pair(0), np.zeros((3, 8, 8, 3), np.uint8))
        writer.add(key, sequences.encode(frames, "png", 90, {}))
        rows.add(key, row)
    with pytest.raises(DamagedShard, match=f"{key}: its scores are not captions × frames"):
        list(PlannedShard("train", "a", Sequences(path, 1, "d", table)).items())
    [fault] = verification._score_faults(key, row, 3, "png")
    assert fault.startswith(f"{key}: its scores")


def test_what_is_made_anew() -> None:
    """Keeps away: a shard that is kept though its sequences changed, or made again for nothing."""
    shard = PlannedShard("train", "a", Sequences("a.tar", 2, "d"))
    reject = Reject("k", "i", "s", "change", "a", "r", "m")

    def left(digest: str, rejects: int, retry: bool) -> list[object]:
        done = Done(
            "a", 2, digest, samples=1, bytes=1, sha256="", seconds=0.0, rejects=(reject,) * rejects
        )
        return list(remaining([shard], {"a": done}, retry))

    assert remaining([shard], {}, False) == [shard]
    assert left("d", 0, False) == left("d", 1, False) == left("d", 0, True) == []
    assert left("d", 1, True) == left("e", 0, False) == [shard]


def test_both_kinds_of_shards_survive_json() -> None:
    """Keeps away: a worker that takes one kind of shard for the other."""
    stored = PlannedShard("train", "a", Sequences("a.tar", 2, "d", "a.parquet"))
    assert PlannedShard.from_json(stored.to_json()) == stored
    [planned] = job_factory.shards(3, 3)
    assert PlannedShard.from_json(planned.to_json()) == planned


def test_a_smaller_limit_does_not_shrink_a_finished_shard(sequences_folder: str) -> None:
    """Keeps away: `score-frames --limit 1` that overwrites the scores of a whole shard."""
    whole = plan_from_sequences(sequences_folder, ["train"], None)
    done = {
        shard.name: Done(
            shard.name,
            shard.count,
            shard.digest(),
            samples=shard.count,
            bytes=1,
            sha256="",
            seconds=1.0,
        )
        for shard in whole
    }
    limited = plan_from_sequences(sequences_folder, ["train"], 1)
    with pytest.raises(UserError, match=r"holds 3 sequences, this run plans 1\. Give the"):
        remaining(limited, done, False)
    assert remaining(whole, done, False) == []
    [shard] = plan_from_sequences(sequences_folder, ["train"], 2)
    fewer = {shard.name: Done(shard.name, 1, "of one", samples=1, bytes=1, sha256="", seconds=1.0)}
    assert remaining([shard], fewer, False) == [shard], "a larger one extends"
    assert PlannedShard.from_json(shard.to_json()) == shard
