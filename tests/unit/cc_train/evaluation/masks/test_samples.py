"""A captioner that says where: its masks against those of the samples."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.records import FrameSequence, ImagePair
from cc_train.captioner import Caption, Inputs
from cc_train.evaluation import evaluation, score_captioner, shard_items
from cc_train.evaluation.masks import files
from cc_train.evaluation.validation import Validation

QUIET = Console(file=io.StringIO())
FRAMES = np.zeros((2, 32, 32, 3), np.uint8)


class Points:
    """Says that the left half changed, in half the size of the images."""

    device = torch.device("cpu")

    def __init__(self, class_id: int = 1, classes: tuple[str, ...] = ()) -> None:
        self.class_id, self.inputs = class_id, Inputs((32, 32), mask_classes=classes)

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        mask = np.zeros((16, 16), np.uint8)
        mask[:, :8] = self.class_id
        return [Caption("it moved", mask=mask) for _ in before_after]


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """One measure of captions: the others start Java, which takes most of a minute."""
    quick = partial(evaluation.evaluate, measures=("CIDEr",))
    monkeypatch.setattr(evaluation, "evaluate", quick)


def write(folder: Path, *masks: tuple[np.ndarray | None, tuple[str, ...]]) -> str:
    shards = {}
    for number, (mask, classes) in enumerate(masks):
        pair = ImagePair(
            "d", "test", str(number), "change", "b", "a", ("it moved",), mask_classes=classes
        )
        members = training_shards.encode(
            FrameSequence(pair, FRAMES, mask=mask),
            np.zeros((2, 0, 0)), np.zeros((2, 1, 2)), [0, 1], quality=95, processing_meta={},
        )  # fmt: skip
        name = f"test-{number:06d}"
        with training_shards.write_shard(str(folder / f"{name}.tar")) as (writer, written):
            writer.add(pair.key, members)
        shards[name] = written.index
    training_shards.write_index(str(folder), shards)
    return str(folder / "*.tar")


def band(left: int, right: int) -> np.ndarray:
    mask = np.zeros((32, 32), np.uint8)
    mask[:, left:right] = 1
    return mask


def test_masks_of_samples_are_scored(tmp_path: Path) -> None:
    """Keeps away: a sample without a mask as one where nothing changed; masks of another size."""
    one = ("change",)
    pattern = write(
        tmp_path, (band(0, 32), one), (band(0, 0), one), (None, one), (band(8, 16), one)
    )
    entries, items = shard_items.captioned([pattern])
    scores, captions = score_captioner.score(Points(), entries, items, 1, QUIET)
    assert scores.masks is not None
    assert scores.swapped_captions is not None  # which a judge is asked about
    assert scores.swapped_captions.keys() == captions.keys()
    figures = scores.to_json()["masks"]
    assert (figures["pairs"], figures["unchanged pairs"], figures["false alarms"]) == (3, 1, 100)
    assert figures["IoU"]["change"] == pytest.approx(100 * (16 + 8) / (32 + 16 + 16))
    evaluation.write(tmp_path / "out", scores, items, captions)
    assert "Masks of 3 pairs: mIoU" in (tmp_path / "out/table.md").read_text()


def test_each_sample_is_read_once_for_its_caption_and_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: twice the requests on an object store, in every validation."""
    entries, items = shard_items.captioned([write(tmp_path, *[(band(0, 8), ("change",))] * 3)])
    reads: list[str] = []
    plain = training_shards.read_at

    def counted(path: str, key: str, *where: int | None) -> training_shards.TrainingSample:
        reads.append(key)
        return plain(path, key, *where)

    monkeypatch.setattr(training_shards, "read_at", counted)
    validation = Validation(entries, tmp_path / "run")
    reads.clear()
    assert "mIoU_change" in validation(Points())
    assert len(reads) == 3
    reads.clear()
    score_captioner.score(Points(), entries, items, 1, QUIET)
    assert len(reads) == 2 * 3 + 3, "in order and swapped, and before them the first of each shard"


def test_a_captioner_or_shards_without_masks(tmp_path: Path) -> None:
    entries, items = shard_items.captioned([write(tmp_path, (None, ("change",)))])
    scores, _ = score_captioner.score(Points(), entries, items, 1, QUIET)
    assert scores.masks is None
    assert "masks" not in scores.to_json()


def test_masks_of_other_classes_are_left_out(tmp_path: Path) -> None:
    """Keeps away: road counted as building, because both are class 1 of their data."""
    roads, buildings = ("road", "building"), ("building",)
    pattern = write(tmp_path, (band(0, 16), roads), (band(0, 16), buildings))
    entries, items = shard_items.captioned([pattern])
    captioner, screen = Points(1, roads), io.StringIO()
    scores, captions = score_captioner.score(
        captioner, entries, items, 1, Console(file=screen, width=200)
    )
    assert scores.masks is not None
    assert (scores.masks.pairs, *scores.masks.classes) == (1, *roads)
    assert len(captions) == 2
    left_out = "masks of building (1) are not scored: the captioner masks road, building"
    assert left_out in screen.getvalue()


def test_masks_are_written_as_anybody_s_are_scored(tmp_path: Path) -> None:
    """Keeps away: masks that are counted and gone, or lie beside those of an earlier evaluation."""
    one = ("change",)
    pattern = write(tmp_path, (band(0, 32), one), (band(8, 16), one), (None, one))
    entries, items = shard_items.captioned([pattern])
    out = tmp_path / "out"
    score_captioner.score(Points(), entries, items, 1, QUIET, path=out)
    scores, _ = score_captioner.score(Points(), entries[1:], items[1:], 1, QUIET, path=out)
    predicted, true = out / "predicted_masks", out / "true_masks"
    keys = [entry.key for entry in entries]
    assert [file.stem for file in sorted(predicted.iterdir())] == keys[1:]
    assert [file.stem for file in sorted(true.iterdir())] == keys[1:2]
    (predicted / f"{keys[2]}.png").unlink()
    assert scores.masks is not None
    assert files.score(str(predicted), str(true)).to_json() == scores.masks.to_json()


def test_masks_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    """Keeps away: a folder emptied that no evaluation wrote."""
    entries, items = shard_items.captioned([write(tmp_path, (band(0, 32), ("change",)))])
    own = tmp_path / "out/true_masks/own.png"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"own")
    with pytest.raises(UserError, match="true_masks: masks of no evaluation"):
        score_captioner.score(Points(), entries, items, 1, QUIET, path=tmp_path / "out")
    assert own.read_bytes() == b"own"


def test_classes_that_do_not_fit(tmp_path: Path) -> None:
    """Keeps away: two data sets in one matrix, and an index beyond it."""
    entries, items = shard_items.captioned(
        [write(tmp_path, (band(0, 8), ("change",)), (band(0, 8), ("road", "building")))]
    )
    with pytest.raises(UserError, match=r"other classes \(change and road, building\)"):
        score_captioner.score(Points(), entries, items, 1, QUIET)
    with pytest.raises(UserError, match="class 2 is predicted, of 1"):
        score_captioner.score(Points(2), entries[:1], items[:1], 1, QUIET)
