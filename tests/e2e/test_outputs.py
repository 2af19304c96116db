"""What comes out: read by others' tools, verified, counted, and looked at in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser import opened
from tests.conftest import ROOT, Command

MARK = "<script>document.title='RAN'</script>"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Sequences of a data set with one broken image and a caption that is HTML."""
    folder = tmp_path_factory.mktemp("outputs")
    root = folder / "root"
    shutil.copytree(synth_root, root)
    (root / "nsc_images/CLEVR_nonsemantic_000003.png").write_text("hello")
    sentences_of = json.loads((root / "change_captions.json").read_text())
    for captions in sentences_of.values():
        captions.insert(0, MARK)
    (root / "change_captions.json").write_text(json.dumps(sentences_of))
    done = prepare(
        "interpolate", "synth", "--root", root, "--out", folder / "out", "--max-rejects", 0.5,
        "--set", "image_size=64", "--set", "shards.pairs_per_shard=4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_plain_webdataset_reads_it(out: Path) -> None:
    """In a process that imports nothing of ours."""
    program = """
import glob, io, json, sys, webdataset, PIL.Image
import numpy as np
shards = sorted(glob.glob(sys.argv[1] + '/sequences/*.tar'))
samples = list(webdataset.WebDataset(shards, shardshuffle=False))
for sample in samples:
    meta = json.loads(sample['json'])
    frames = [PIL.Image.open(io.BytesIO(sample[f'f{i:02d}.png'])) for i in range(9)]
    assert {f.size for f in frames} == {(64, 64)} and meta['key'] == sample['__key__']
    assert PIL.Image.open(io.BytesIO(sample['t04.png'])).size == (64, 64)
    mask = np.asarray(PIL.Image.open(io.BytesIO(sample['mask.png'])))
    assert mask.any() == (meta['kind'] == 'change')
import pyarrow.parquet
assert pyarrow.parquet.read_table(sys.argv[1] + '/sequences/rejects.parquet').num_rows == 1
assert not [m for m in sys.modules if m.startswith(('cc_prep', 'pipelines'))]
print(len(samples))
"""
    import sys

    done = subprocess.run(
        [sys.executable, "-c", program, str(out)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert done.stdout == "11\n"


def test_provenance_names_everything(out: Path) -> None:
    record = json.loads((out / "sequences/provenance.json").read_text())
    assert record["complete"] is True
    assert record["weights"] == {
        "rife-v4.0": "b234ad8d0acfcb6d9eaf2791eb7ddebdaab58bd862b229c703f8073e56d99c29"
    }
    assert record["settings"]["interpolate"]["depth"] == 3
    assert record["settings"]["device"] == "cpu"
    assert {"torch", "ray", "python"} <= record["software"].keys()
    assert sum(s["samples"] for s in record["shards"].values()) == 11


def test_stats(out: Path, prepare: Command) -> None:
    stats = json.loads(prepare("stats", out, "--json").stdout)
    assert (stats["sequences"], stats["frames"]) == (11, 99)
    assert stats["by kind"] == {"change": 6, "no_change": 5}
    assert stats["rejects by reason"] == {"unreadable image": 1}
    assert sum(stats["motion in px"].values()) == 11
    assert stats["against true frames"]["PSNR"]["frames"] == 77
    assert stats["against true frames"]["PSNR"]["mean"] > 18
    assert "PSNR" in prepare("stats", out).stdout


@pytest.mark.parametrize(
    "damage", ["flip", "cut", "remove", "extra", "rejects", "no parquet", "temporary"]
)
def test_verify_finds_every_damage(
    out: Path, tmp_path: Path, prepare: Command, damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shard = copy / "sequences/train-000000.tar"
    data = bytearray(shard.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[: len(data) // 2])
    elif damage == "remove":
        shard.unlink()
    elif damage == "extra":
        shutil.copy(shard, copy / "sequences/train-000009.tar")
    elif damage == "rejects":
        (copy / "sequences/rejects.parquet").unlink()
    elif damage == "no parquet":
        (copy / "sequences/rejects.parquet").write_text("hello")
    else:
        (copy / "sequences/.train-000000.tar.0123456789ab.tmp").touch()
    done = prepare("verify", copy, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["faults"]
    assert "Traceback" not in done.stderr
    assert prepare("verify", out).returncode == 0


def test_report_in_a_real_browser(out: Path, tmp_path: Path, prepare: Command) -> None:
    """Every picture is loaded, nothing lies outside the page, and no caption runs."""
    page = tmp_path / "report.html"
    done = prepare("report", out, "--out", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert MARK not in text
    assert html.escape(MARK).replace("&#x27;", "&#39;") in text
    assert "CLEVR_nonsemantic_000003.png: " in text  # the reject's file, and no folder
    for path in (out.parent, tmp_path, Path.home(), ROOT):
        assert str(path) not in text
    dom = opened(text, tmp_path)
    # 11 strips of 9 frames, 7 true ones, a difference and a mask; of four changed pairs both sides
    # of the mask, of the added and the dropped object one.
    assert 'data-pictures="208/208"' in dom
    assert int(re.search(r'data-wide="(\d+)"', dom)[1]) <= 1560
    assert "<title>RAN</title>" not in dom
