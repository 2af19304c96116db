"""Training shards: step by step or in one stream, by one worker or two, elsewhere: equal bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import sequences, tar, training_shards
from tests import weight_factory
from tests.conftest import Command, digests
from tests.faults import processes

ELSEWHERE = {
    "OMP_NUM_THREADS": "7", "TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8",
    "PYTHONHASHSEED": "12345", "PYTHONUTF8": "0",
}  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> list[str]:
    return weight_factory.build_options(tmp_path_factory.mktemp("weights"), synth_root, 2)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory, options: list[str], prepare: Command) -> Path:
    out = tmp_path_factory.mktemp("fused") / "out"
    done = prepare("build", "synth", "--out", out, "--workers", 1, *options)
    assert done.returncode == 0, done.stderr
    assert len(digests(out, "shards")) == 8
    return out


@pytest.fixture(scope="module")
def stepwise(
    tmp_path_factory: pytest.TempPathFactory, options: list[str], prepare: Command
) -> Path:
    """Three jobs with two workers each."""
    out = tmp_path_factory.mktemp("steps") / "out"
    for step in ("interpolate", "score-frames", "build"):
        done = prepare(step, "synth", "--out", out, *options, workers=2)
        assert done.returncode == 0, done.stderr
    return out


def test_one_stream_writes_what_three_jobs_write(fused: Path, stepwise: Path) -> None:
    assert digests(fused, "shards") == digests(stepwise, "shards")
    # Nothing in between is written.
    assert sorted(path.name for path in fused.iterdir()) == ["shards"]


def test_elsewhere(tmp_path: Path, fused: Path, options: list[str]) -> None:
    """RIFE, CLIP4IDC and VQGAN in real processes that find another machine, of one core.

    One split is enough for that.
    """
    core = min(os.sched_getaffinity(0))  # a container need not have core 0
    job = processes.start(
        "build", "synth", "--out", tmp_path / "out", "--workers", 1, *options, "--split", "val",
        env={**os.environ, **ELSEWHERE}, cwd=tmp_path,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    output = processes.ended(job)
    assert job.returncode == 0, output
    there, here = (digests(out, "shards") for out in (tmp_path / "out", fused))
    val = [name for name in here if name.startswith("val-")]
    assert val
    assert {name: there[name] for name in val} == {name: here[name] for name in val}


def test_all_folders_verify(fused: Path, stepwise: Path, prepare: Command) -> None:
    for out, folders in ((fused, 1), (stepwise, 3)):
        done = prepare("verify", out)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count(": OK") == folders


def test_masks_and_facts_go_the_whole_way(fused: Path, stepwise: Path) -> None:
    """Byte by byte from the sequences into both folders of shards, in the size of the frames."""
    for split in ("train", "val", "test"):
        for file in sorted(stepwise.glob(f"sequences/{split}-*.tar")):
            for key, members in tar.read_shard(str(file)):
                samples = [
                    dict(tar.read_shard(str(out / "shards" / file.name)))[key]
                    for out in (fused, stepwise)
                ]
                assert samples[0] == samples[1]
                changed = key.endswith("-change")
                for name in sequences.MASKS:
                    assert samples[0][name] == members[name]
                sample = training_shards.decode(key, samples[0])
                assert sample.meta["facts"] == json.loads(members["json"])["facts"]
                assert (sample.meta["facts"]["type"] == "none") == (not changed)
                mask, gone, new = sample.mask(), sample.mask_before(), sample.mask_after()
                assert mask.shape == sample.image(0).shape[:2] == (64, 64)
                assert mask.any() == changed
                assert np.array_equal(mask, gone | new)


def test_stored_sequences_without_scores_are_scored_on_the_way(
    fused: Path, stepwise: Path, tmp_path: Path, options: list[str], prepare: Command
) -> None:
    (tmp_path / "sequences").symlink_to(stepwise / "sequences")
    done = prepare("build", "synth", "--out", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path, "shards") == digests(fused, "shards")


def test_lossy_frames_too(tmp_path: Path, options: list[str], prepare: Command) -> None:
    """Keeps away: a stream whose later steps see better frames than the files would hold."""
    fast = ("--set", "interpolate.method=crossfade")
    arguments = (*options, *fast, "--set", "interpolate.codec=jpg", "--split", "val")
    done = prepare("build", "synth", "--out", tmp_path / "fused", *arguments)
    assert done.returncode == 0, done.stderr
    for step in ("interpolate", "build"):  # which scores on the way
        assert prepare(step, "synth", "--out", tmp_path / "steps", *arguments).returncode == 0
    assert digests(tmp_path / "fused", "shards") == digests(tmp_path / "steps", "shards")


def test_another_rule_takes_the_scores_there_are(
    stepwise: Path, tmp_path: Path, options: list[str], prepare: Command
) -> None:
    """Without the scorer's weights even: only the digest in the provenance is needed."""
    arguments = [*options, "--set", "keyframes.k=1", "--set", "keyframes.strategy=uniform"]
    missing = [o for o in arguments if not o.startswith("score.weights=")]
    missing = [o for i, o in enumerate(missing) if not (o == "--set" and missing[i + 1] == "--set")]
    refused = prepare("build", "synth", "--out", tmp_path, "--from", stepwise, *missing)
    assert refused.returncode == 2
    assert "score" in refused.stderr  # made with other weights than the manifest's default
    done = prepare("build", "synth", "--out", tmp_path, "--from", stepwise, *arguments)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "shards/provenance.json").read_text())
    assert record["settings"]["keyframes"]["k"] == 1
    named = {name.partition("@")[0] for name in record["weights"]}
    assert named == {"rife-v4.0", "clip4idc-test.safetensors", "vqgan-test.safetensors"}


def test_plain_readers(stepwise: Path) -> None:
    """webdataset, pyarrow and numpy in a process that imports nothing of ours."""
    program = """
import sys
sys.modules["torch"] = None  # webdataset takes it where it is there, and seconds for it
import glob, io, json, tarfile, numpy as np, webdataset, PIL.Image, pyarrow.parquet as pq
out = sys.argv[1]
rows, metas = {}, {}
for file in sorted(glob.glob(out + '/scores/*-*.parquet')):
    rows |= {row['key']: row for row in pq.read_table(file).to_pylist()}
shards = sorted(glob.glob(out + '/shards/*.tar'))
for sample in webdataset.WebDataset(shards, shardshuffle=False):
    key, meta = sample['__key__'], json.loads(sample['json'])
    tokens, scores = (np.load(io.BytesIO(sample[n]), allow_pickle=False)
                      for n in ('tokens.npy', 'scores.npy'))
    assert tokens.dtype == np.int16 and tokens.shape == (5, 16, 16), tokens.shape
    assert 0 <= tokens.min() and tokens.max() < meta['codes']
    assert meta['facts']['type'] == (meta['change_type'] or 'none')
    mask = np.array(PIL.Image.open(io.BytesIO(sample['mask.png'])))
    assert mask.shape == (64, 64) and meta['mask_classes'] == ['change']
    assert set(np.unique(mask)) == ({0, 1} if meta['kind'] == 'change' else {0})
    metas[key] = meta
    row = rows.pop(key)
    assert scores.dtype == np.float32 and scores.shape == (2, len(meta['captions']), 5)
    assert (scores[0] == np.array(row['bef_inter_sim'], np.float32)).all()
    assert row['captions'] == meta['captions'] and row['keyframes'] == meta['keyframes']
    penalty = (scores[0].mean(0) - scores[1].mean(0)) ** 2
    assert np.allclose(penalty, row['penalty'], rtol=1e-4, atol=1e-6)
    for frame in meta['keyframes']:
        assert PIL.Image.open(io.BytesIO(sample[f'f{frame:02d}.jpg'])).size == (64, 64)
assert not rows
for row in pq.read_table(out + '/shards/index.parquet').to_pylist():
    with open(f"{out}/shards/{row['shard']}.tar", 'rb') as file:
        file.seek(row['offset'])
        part = tarfile.open(fileobj=io.BytesIO(file.read(row['bytes']) + bytes(1024)))
        assert {m.name.split('.')[0] for m in part} == {row['key']}
    meta = metas.pop(row['key'])
    assert len(meta['tokenizer_sha256']) == 64
    for name in ('id', 'image_id', 'kind', 'change_type', 'captions', 'tokenizer',
                 'tokenizer_sha256', 'dataset', 'split', 'frames', 'height', 'width'):
        assert row[name] == meta[name], name
assert not metas
assert not [m for m in sys.modules if m.startswith(('cc_prep', 'pipelines'))]
print('read')
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(stepwise)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "read", done.stderr
