"""From captions in Chinese to a captioner and its scores: training, evaluation and captions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import training_shards
from cc_prep.steps.imported_features import UNKNOWN
from cc_train.evaluation import evaluation
from tests.commands import cc_train
from tests.shard_factory import npy

CAPTIONS = ("左侧出现了一辆白色的汽车。", "右侧出现了一辆红色的SUV。")
STILL = "没有变化。"
CHANNELS, GRID = 4, 2
SMALL = (
    "encoder.width=32", "encoder.heads=2", "encoder.layers=1", "encoder.dropout=0",
    "decoder.word_width=16", "decoder.heads=2", "decoder.layers=1", "decoder.dropout=0",
    "loop.batch_size=4", "loop.learning_rate=3e-3", "loop.validate_every=40",
)  # fmt: skip


def shards(folder: Path, split: str, scenes: int) -> str:
    """Pairs whose features say which of the sentences is true of them; no image is stored."""
    with training_shards.write_shard(str(folder / f"{split}-000000.tar")) as (writer, written):
        for scene in range(scenes):
            for kind in ("change", "no_change"):
                changed = kind == "change"
                meta = {
                    "frames": 2, "height": 8, "width": 8, "kind": kind,
                    "captions": [CAPTIONS[scene % 2] if changed else STILL],
                    "features": {"backbone": "planted", "sha256": UNKNOWN, "frames": [0, 1]},
                }  # fmt: skip
                values = np.zeros((2, CHANNELS, GRID, GRID), np.float16)
                values[:, 3] = 1
                values[1, scene % 2] = changed
                writer.add(
                    f"zh-{split}-{scene:06d}-{kind}",
                    {
                        "json": json.dumps(meta).encode(),
                        "tokens.npy": npy(np.zeros((2, 0, 0), np.int16)),
                        "scores.npy": npy(np.zeros((2, 0, 2), np.float32)),
                        "features.npy": npy(values),
                    },
                )
    training_shards.write_index(str(folder), {f"{split}-000000": written.index})
    return str(folder / f"{split}-000000.tar")


def test_a_captioner_of_chinese(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a vocabulary with an entry for each sentence, scores of 0 for near-equal
    captions, captions with blanks between characters, and all of that without a note."""
    quick = partial(evaluation.evaluate, measures=("BLEU-4", "CIDEr"))
    monkeypatch.setattr(evaluation, "evaluate", quick)  # the other measures start Java
    train, test = shards(tmp_path, "train", 8), shards(tmp_path, "test", 4)

    def trained(run: Path, *more: str) -> str:
        settings = [option for one in (*SMALL, *more) for option in ("--set", one)]
        files = ("--shards", train, "--valid", test, "--out", run)
        done = cc_train("scorer", *files, *settings)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "words=characters" in trained(tmp_path / "words", "loop.steps=1")
    told = trained(tmp_path / "run", "words=characters", "loop.steps=40")
    assert "words=characters" not in told
    vocabulary = json.loads((tmp_path / "run/vocabulary.json").read_text(encoding="utf-8"))
    assert {"汽", "车", "suv", "。"} <= set(vocabulary)

    done = cc_train("evaluate", tmp_path / "run", "--shards", test, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert "tok:ptb+characters,lowercase,nopunct" in scores["signature"]
    assert scores["groups"]["total"]["CIDEr"] > 100
    written = json.loads((tmp_path / "run/evaluation/predictions.json").read_text("utf-8"))
    assert {row["caption"] for row in written} <= {one.lower() for one in (*CAPTIONS, STILL)}

    done = cc_train("evaluate", tmp_path / "run", "--shards", test, "--words", "treebank")
    assert "--words characters" in done.stdout
    assert evaluation.NO_CIDER not in done.stdout, "another reason"
