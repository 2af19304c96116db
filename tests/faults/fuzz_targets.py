"""Every parser of ours, each with files that are right, to be damaged by a fuzzer.

A target reads what it is given and may refuse it by the errors of `REFUSALS`; anything else that it
raises is a defect. Nothing here knows how the damage is made.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

from cc_prep import datasets, manifest, settings, weights
from cc_prep.errors import RejectedPair, UserError
from cc_prep.formats import procap, provenance, rejects, scores, tar, training_shards
from cc_prep.formats.coco import references
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.records import ImagePair
from cc_train.evaluation.captions import coco
from cc_train.runs import checkpoints
from cc_train.systems.procap import import_checkpoint
from cc_train.text import VOCABULARY, Vocabulary
from pipelines.state.journal import State
from tests import dataset_factory
from tests.conftest import golden
from tests.faults import test_strangers as strangers

REFUSALS = (UserError, RejectedPair, tar.DamagedShard)


@dataclass(frozen=True)
class Target:
    """A parser. seed: a right file. parse: reads the file at a path; `folder` is its own."""

    seed: bytes
    parse: Callable[[Path], object]
    name: str = "file"


def _table(rows: list[dict[str, object]], schema: pa.Schema | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()


def _saved(make: Callable[[Path], object], folder: Path, name: str) -> bytes:
    make(folder / name)
    return (folder / name).read_bytes()


SCORES = {
    "key": "a", "captions": ["one"], "bef_inter_sim": [[1.0, 2.0]], "inter_aft_sim": [[2.0, 1.0]],
    "bef_inter_visual": [1.0, 2.0], "inter_aft_visual": [1.0, 2.0], "penalty": [0.0, 1.0],
    "keyframes": [1], "scorer": "x", "scorer_sha256": "y",
}  # fmt: skip
REJECT = rejects.Reject("a", "b", "c", "d", "e", "f", "g").__dict__
STATE = {
    "shard": "train-000000", "pairs": 1, "input_digest": "x", "samples": 1, "bytes": 9,
    "sha256": "y", "seconds": 1.0, "rejects": [REJECT], "index": [{"key": "a"}],
}  # fmt: skip
PROVENANCE = {
    "format": "cc-scores", "format_version": scores.FORMAT.version, "settings": {"a": 1},
    "weights": {},
}  # fmt: skip
ROWS = [{"before": "a.png", "after": "b.png", "caption": "a dog", "id": "1", "split": "train"}]
TENSORS = {"a.weight": torch.ones(2, 3), "b": torch.zeros(1)}


def _scores(path: Path) -> None:
    for _, row in scores.read_shard(str(path)):
        scores.decode(row)


def _rejects(path: Path) -> None:
    try:
        rejects.read(str(path.parent))
    except ValueError:  # as its docstring says: pyarrow.ArrowInvalid is one
        raise UserError("no rejects") from None


def _override(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    manifest.load("synth", [text])


SPOT = procap.Names("spot", "spot_the_diff")
SEVEN = ImagePair("spot", "train", "7", "change", "b.png", "a.png")


def _procap_scores(path: Path) -> None:
    entries = procap.read_scores(str(path.parent), SPOT)
    procap.scores_of(entries, SPOT, SEVEN, ("one",), 3)


def _videos(path: Path) -> None:
    videos = procap.Videos(str(path.parent), SPOT)
    videos.count("change")
    videos.frames(SEVEN)


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("7", data=np.zeros((3, 3, 4, 4), np.uint8), compression="gzip")


def _checkpoint(path: Path) -> None:
    for name in (checkpoints.MODEL, checkpoints.TRAINING):
        save_file(TENSORS, path.parent / name)
    checkpoints.read(path.parents[2], 5)


def _rows(path: Path) -> None:
    _pairs(manifest.load("own", root=str(path.parent)))


def _import(path: Path) -> None:
    run = path.parent / "run"
    shutil.rmtree(run, ignore_errors=True)
    list(import_checkpoint.make_run(str(path), run, None, 8, 20, None))


def simple(folder: Path) -> dict[str, Target]:
    """Parsers of one file."""
    return {**_of_jobs(folder), **_of_weights(folder), **_of_people(folder)}


def _of_weights(folder: Path) -> dict[str, Target]:
    """Parsers of files that hold weights."""
    tensors = _saved(lambda p: torch.save(TENSORS, p), folder, "a.pt")
    [stage1, *_] = golden("procap_stage1")
    whole = load_file(stage1 / "weights.safetensors")
    theirs = _saved(lambda p: torch.save({"weights": whole, "epoch": 3}, p), folder, "b.pt")
    safe = _saved(lambda p: save_file(TENSORS, p), folder, "a.safetensors")
    same = hashlib.sha256(safe).hexdigest()
    digests = {checkpoints.MODEL: same, checkpoints.TRAINING: same}
    return {
        "weights as .pt": Target(tensors, weights.read_tensors, "a.pt"),
        "weights as safetensors": Target(safe, weights.read_tensors, "a.safetensors"),
        "ProCap's checkpoints": Target(theirs, _import, "a.pt"),
        "checkpoint's state": Target(
            json.dumps({"sha256": digests, "step": 5}).encode(),
            _checkpoint,
            "checkpoints/000005/state.json",
        ),
    }


def _of_jobs(folder: Path) -> dict[str, Target]:
    """Parsers of what jobs and trainings write besides weights."""
    shard = Path(strangers.shard(folder / "a.tar")).read_bytes()
    return {
        "sequence shard": Target(shard, lambda p: strangers.read_all(str(p))),
        "training shard": Target(shard, lambda p: strangers.train_all(str(p))),
        "shard index of members": Target(shard, lambda p: strangers.index_all(str(p))),
        "scores": Target(_table([SCORES], scores.SCHEMA), _scores),
        "index of samples": Target(
            _table([{"key": "a", "shard": "b"}], training_shards.INDEX_SCHEMA),
            lambda p: training_shards.read_index(str(p.parent)),
            training_shards.INDEX,
        ),
        "rejects": Target(_table([REJECT], rejects.SCHEMA), _rejects, rejects.FILE),
        "provenance": Target(
            json.dumps(PROVENANCE).encode(),
            lambda p: provenance.read(str(p.parent)),
            provenance.FILE,
        ),
        "done file": Target(
            json.dumps(STATE).encode(),
            lambda p: State(str(p.parents[1])).done(),
            ".state/train-000000.done.json",
        ),
        "image of a shard": Target(
            strangers.IMAGE, lambda p: images.decode_stored(p.read_bytes())
        ),
        "vocabulary": Target(
            Vocabulary.of(["a dog", "a cat"], 1).files()[VOCABULARY],
            lambda p: Vocabulary.read(str(p)),
        ),
    }  # fmt: skip


def _of_people(folder: Path) -> dict[str, Target]:
    """Parsers of what people write, and other programs."""
    scores_json = {"7": {name: [[1.0, 2.0, 3.0]] for name in procap.MATRICES}}
    text = manifest.text_of("synth").encode()
    return {
        "manifest": Target(text, lambda p: manifest.load(str(p)), "m.yaml"),
        "override": Target(b"interpolate.depth=2", _override),
        "settings": Target(text, lambda p: settings.parse(p.read_text("latin1"), "x")),
        "image": Target(strangers.IMAGE, lambda p: images.read(str(p))),
        "ProCap's scores": Target(
            json.dumps(scores_json).encode(), _procap_scores, "spot_similarity_scores.json"
        ),
        "ProCap's sequences": Target(_saved(_hdf5, folder, "a.h5"), _videos, "spot_videos.h5"),
        "predictions": Target(
            json.dumps([{"image_id": "a", "caption": "a dog"}]).encode(),
            lambda p: coco.read_predictions([str(p)]),
        ),
        "references": Target(
            json.dumps(references([{"key": "a", "captions": ["a dog"]}])).encode(),
            lambda p: coco.read_references(str(p)),
        ),
        "a table as parquet": Target(_table(ROWS), _rows, "pairs.parquet"),
        "a table as JSON lines": Target(
            "\n".join(map(json.dumps, ROWS)).encode(), _rows, "pairs.jsonl"
        ),
    }  # fmt: skip


def of_datasets(folder: Path) -> dict[str, Target]:
    """A reader a layout: each of its annotation files is damaged by itself."""
    targets = {}
    for name, make in dataset_factory.MAKERS.items():
        root = folder / name
        dataset = make(root)
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.suffix in (".json", ".csv", ".jsonl", ".txt"):
                where = str(file.relative_to(root))
                targets[f"{name}: {where}"] = Target(
                    file.read_bytes(), lambda p, dataset=dataset: _pairs(dataset), str(file)
                )
    return targets


def _pairs(dataset: Manifest) -> None:
    for split in dataset.splits:
        datasets.pairs(dataset, split)
    datasets.reader(dataset).faults(dataset)
