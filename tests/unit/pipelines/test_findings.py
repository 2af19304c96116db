"""`build` takes found changes into training shards, from pairs and from sequences."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.formats import changes, entities, tar, training_shards
from pipelines.shards import FindingFiles, Pairs, PlannedShard, Regions, Sequences
from tests import job_factory
from tests.conftest import Command

SMALL = [
    *("image_size=64", "shards.pairs_per_shard=3", "interpolate.method=crossfade"),
    *("interpolate.depth=1", "score.weights=none", "keyframes.k=0", "tokenize.weights=none"),
]


def arguments(command: str, root: Path | str, out: Path, *settings: str) -> list[object]:
    values = [part for value in (*SMALL, *settings) for part in ("--set", value)]
    return [command, "synth", "--root", root, "--out", out, *values]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """An OUT with found changes and the training shards that took them in."""
    folder = tmp_path_factory.mktemp("findings") / "out"
    for command in ("changes", "build"):
        done = prepare(*arguments(command, synth_root, folder))
        assert done.returncode == 0, done.stderr
    return folder


def samples(out: Path) -> dict[str, training_shards.TrainingSample]:
    files = sorted((out / "shards").glob("*.tar"))
    return {one.key: one for file in files for one in training_shards.read(str(file))}


def test_training_shards_hold_what_was_found(out: Path, prepare: Command) -> None:
    """Keeps away: masks of another pair, or found masks in the place of true ones."""
    stored = {
        one.key: one
        for file in sorted((out / "changes").glob("*.tar"))
        for one in changes.read(str(file))
    }
    built = samples(out)
    assert built.keys() == stored.keys()
    assert any(one.change.mask is not None for one in stored.values())
    for key, sample in built.items():
        change = stored[key].change
        assert sample.meta["regions"] == json.loads(
            json.dumps([region.to_json() for region in change.regions])
        )
        assert "entities" not in sample.meta
        mask = sample.change()
        if change.mask is None:
            assert mask is None
        else:
            assert mask is not None
            assert (mask.dtype, mask.max()) == (np.uint8, 1)
            assert np.array_equal(mask > 0, change.mask)
    assert prepare("verify", out).returncode == 0


def test_all_else_is_as_without_them(
    out: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: a build that computes something else because masks lie beside it."""
    done = prepare(*arguments("build", synth_root, tmp_path))
    assert done.returncode == 0, done.stderr
    for file in sorted((tmp_path / "shards").glob("*.tar")):
        plain = dict(tar.read_shard(str(file)))
        enriched = dict(tar.read_shard(str(out / "shards" / file.name)))
        for key, members in plain.items():
            other = enriched[key]
            other.pop("change.png", None)
            meta = json.loads(other.pop("json"))
            assert meta.pop("regions") is not None
            assert meta == json.loads(members.pop("json"))
            assert other == members


def test_from_sequences_the_same_bytes(
    out: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: findings that are lost where sequences lie in OUT already."""
    shutil.copytree(out / "changes", tmp_path / "changes")
    for command in ("interpolate", "build"):
        done = prepare(*arguments(command, synth_root, tmp_path))
        assert done.returncode == 0, done.stderr
    for file in sorted((out / "shards").glob("*.tar")):
        assert (tmp_path / "shards" / file.name).read_bytes() == file.read_bytes()
    target = tmp_path / "report.html"
    done = prepare("report", tmp_path, "--out", target)
    assert done.returncode == 0, done.stderr
    page = target.read_text()
    assert page.count("found in before") == page.count("found in after") > 0
    assert page.count(">change mask<") == 12  # those of unchanged pairs are empty
    assert "IoU of changed pairs" in page


def test_a_part_of_the_data_is_refused(tmp_path: Path, synth_root: Path, prepare: Command) -> None:
    """Keeps away: shards of which some pairs have masks, and others only seem to have none."""
    done = prepare(*arguments("changes", synth_root, tmp_path), "--split", "val")
    assert done.returncode == 0, done.stderr
    done = prepare(*arguments("build", synth_root, tmp_path))
    assert done.returncode == 2
    assert "covers 0 of the 3 pairs of train-000000" in done.stderr
    assert "cc-prep changes" in done.stderr
    done = prepare(*arguments("build", synth_root, tmp_path, "image_size=32"))
    assert done.returncode == 2
    assert "image_size: 64 → 32" in done.stderr


def test_findings_of_other_pairs_are_refused(
    tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: as many findings as pairs, but of others, so that all seem to have none."""
    other = Path(shutil.copytree(synth_root, tmp_path / "data"))
    splits = json.loads((other / "splits.json").read_text())
    (other / "splits.json").write_text(json.dumps({**splits, "val": splits["test"]}))
    out = tmp_path / "out"
    done = prepare(*arguments("changes", other, out), "--split", "val")
    assert done.returncode == 0, done.stderr
    done = prepare(*arguments("build", synth_root, out), "--split", "val")
    assert done.returncode == 2
    assert "changes/val-000000.tar: made of other pairs (synth-val-" in done.stderr
    assert "Run cc-prep changes" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(out.glob("shards/*.tar"))


def test_pairs_that_were_set_aside_have_no_findings(tmp_path: Path) -> None:
    """Keeps away: a build that is refused for an image that `changes` could not read."""
    plan = job_factory.shards(2, 2)[0]
    used, aside = (item.key for item in plan.items())
    files = {"changes": str(tmp_path / "c.tar"), "entities": str(tmp_path / "e.parquet")}
    with changes.FORMAT.write(files["changes"]) as (writer, _):
        writer.add(used, changes.encode({}, changes.FoundChange(8, 8, "fill")))
    with entities.write_shard(files["entities"]) as (writer, _):
        writer.add(used, entities.encode([], "lab"))
    shard = replace(plan, findings=FindingFiles("f" * 64, **files, rejected=(aside,)))
    of_pairs = {item.key: item for item in shard.items()}
    assert of_pairs[used].change is not None
    assert (of_pairs[aside].change, of_pairs[aside].entities) == (None, None)
    for missing in files:  # from one file alone
        whole = files | {missing: str(tmp_path / f"whole-{missing}")}
        kind = {"changes": changes, "entities": entities}[missing].FORMAT
        with kind.write(whole[missing]) as (writer, _):
            for _, item in kind.read(files[missing]):
                writer.add(used, item)
                writer.add(aside, item)
        with pytest.raises(UserError, match=f"made of other pairs .{aside}"):
            list(replace(plan, findings=FindingFiles("f" * 64, **whole)).items())


def test_masks_are_decoded_one_at_a_time(tmp_path: Path) -> None:
    """Keeps away: a worker with the decoded masks of a whole shard, gigabytes of large images."""
    plan, path, side = job_factory.shards(64, 64)[0], str(tmp_path / "c.tar"), 256
    mask = np.zeros((side, side), bool)
    mask[:9, :9] = True
    region = changes.Region((0, 0, 9, 9), (4.0, 4.0), 81, 1.0, 1.0, 1.0, True)
    members = changes.encode({}, changes.FoundChange(side, side, "fill", (region,), mask))
    with changes.FORMAT.write(path) as (writer, _):
        for item in plan.items():
            writer.add(item.key, members)
    tracemalloc.start()
    try:
        for one in replace(plan, findings=FindingFiles("f" * 64, path)).items():
            assert one.change is not None
            assert np.array_equal(one.change.change.mask, mask)
        assert tracemalloc.get_traced_memory()[1] < 32 * side * side
    finally:
        tracemalloc.stop()


def test_shards_pass_through_json() -> None:
    """Keeps away: a worker that gets a shard without the files that were planned for it."""
    plan = job_factory.shards(2, 2)[0]
    stored = PlannedShard("val", "val-000001", Sequences("s.tar", 2, "d" * 64))
    for inner in (plan, stored):
        shard = replace(
            inner, findings=FindingFiles("f" * 64, "c.tar", "e.parquet", ("one", "other"))
        )
        assert PlannedShard.from_json(json.loads(json.dumps(shard.to_json()))) == shard
        assert shard.digest() != inner.digest()
    assert isinstance(PlannedShard.from_json(json.loads(json.dumps(plan.to_json()))).source, Pairs)
    regions = PlannedShard("val", "val-000001", Regions("r.parquet", 2, "d" * 64, limited=True))
    assert PlannedShard.from_json(json.loads(json.dumps(regions.to_json()))) == regions


def test_other_findings_make_the_shard_anew() -> None:
    """Keeps away: training shards with the masks of an earlier run of `cc-prep changes`."""
    from pipelines.state.journal import Done

    plan = job_factory.shards(2, 2)[0]
    shard = replace(plan, findings=FindingFiles("f" * 64, "c.tar"))
    done = Done(
        shard.name,
        2,
        shard.digest(),
        samples=2,
        bytes=10,
        sha256="0" * 64,
        seconds=1.0,
        rejects=(),
        index=None,
    )
    assert shard.remaining(done, False) is None
    assert shard.remaining(None, False) == shard
    other = replace(plan, findings=FindingFiles("e" * 64, "c.tar"))
    assert other.remaining(done, False) == other
