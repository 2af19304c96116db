"""What of a sample reaches a captioner that is evaluated."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from cc_prep import records
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import tar
from cc_prep.formats.training_shards import Features, TrainingSample
from cc_prep.steps.imported_features import UNKNOWN
from cc_prep.synth.facts import attributes as solid
from cc_train.captioner import Caption, Inputs
from cc_train.data import shard_index
from cc_train.data.collate import FeatureSource
from cc_train.evaluation.predict import check, predict
from cc_train.evaluation.validation import Validation
from tests.shard_factory import npy

TOKENIZER = "2" * 64


class ObjectAttributes:
    """Captions a pair by the shape and the mean of what it is shown."""

    device = torch.device("cpu")

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        return [Caption(f"{tuple(pair.shape)} {pair.float().mean():.0f}") for pair in before_after]


def write(path: Path, sides: list[int], captions: list[str]) -> str:
    """A shard of samples whose images are squares of these sides, all of them grey 7."""
    with tar.write_shard(str(path)) as (writer, _):
        for number, side in enumerate(sides):
            meta = {"id": str(number), "captions": captions, "frames": 2, "height": side,
                    "width": side, "tokenizer": "t", "tokenizer_sha256": TOKENIZER}  # fmt: skip
            image = bytes(cv2.imencode(".png", np.full((side, side, 3), 7, np.uint8))[1])
            members = {
                "json": json.dumps(meta).encode(),
                "tokens.npy": npy(np.zeros((2, side // 4, side // 4), np.int16)),
                "scores.npy": npy(np.zeros((2, 1, 2), np.float32)),
                **{f"f0{frame}.png": image for frame in (0, 1)},
            }
            writer.add(f"d-test-{number}-change", members)
    return str(path)


def test_images_reach_a_captioner_in_its_own_size(tmp_path: Path) -> None:
    """Keeps away: a traceback on shards of another image size, or of mixed sizes."""
    entries = shard_index.read([write(tmp_path / "test-000000.tar", [8, 12, 8], ["a"])])
    captions = [caption.text for _, caption in predict(ObjectAttributes(Inputs((8, 8))), entries)]
    assert captions == ["(2, 8, 8, 3) 7"] * 3


def test_tokens_of_mixed_sizes_are_refused(tmp_path: Path) -> None:
    entries = shard_index.read([write(tmp_path / "test-000000.tar", [8, 12], ["a"])])
    with pytest.raises(UserError, match=r"d-test-1-change has the shape \(2, 9\)"):
        list(predict(ObjectAttributes(Inputs((8, 8), "tokens", tokenizer=TOKENIZER)), entries))


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    """Whoever asks: evaluation, captions of samples, calibration."""
    entries = shard_index.read([write(tmp_path / "test-000000.tar", [8], ["a"])])
    with pytest.raises(UserError, match="the captioner's VQGAN"):
        list(predict(ObjectAttributes(Inputs((8, 8), "tokens", tokenizer="3" * 64)), entries))


@pytest.mark.parametrize(
    ("inputs", "what"),
    [(Inputs((8, 8)), "no image of frame 0"), (Inputs((8, 8), entities=1), "its entities are 5")],
)
def test_what_is_damaged_within_a_sample_is_told_in_a_line(
    tmp_path: Path, inputs: Inputs, what: str
) -> None:
    """Keeps away: a traceback at the first validation, hours after the start."""
    (entry,) = shard_index.read([write(tmp_path / "test-000000.tar", [8], ["a"])])
    sample = entry.read()
    if inputs.entities:
        damaged = replace(sample, meta={**sample.meta, "entities": 5})
    else:
        damaged = replace(sample, images={0: b"no image", 1: b""})
    stored: Any = Stored(damaged, shard=entry.shard)
    with pytest.raises(UserError, match=rf"^{entry.shard}: .*{what}.*Give shards that"):
        list(predict(ObjectAttributes(inputs), [stored]))


def validation(
    entries: list[Any], run: Path, skip_bad: float, screen: io.StringIO | None = None
) -> Validation:
    console = Console(file=screen or io.StringIO(), soft_wrap=True)
    return Validation(entries, run, skip_bad=skip_bad, console=console)


def harm(pattern: str, entry: shard_index.Entry) -> None:
    """Damages the members of a sample in its shard."""
    with Path(pattern).open("r+b") as shard:
        shard.seek(entry.offset)
        shard.write(bytes([1]) * entry.bytes)


@pytest.mark.parametrize("rendered", [False, True])
def test_unreadable_samples_to_validate_on_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendered: bool
) -> None:
    """Keeps away: a training that ends at each of its validations, for one damaged sample."""
    pattern, screen = write(tmp_path / "test-000000.tar", [8, 8, 8], ["grey 7"]), io.StringIO()
    entries = shard_index.read([pattern])
    harm(pattern, entries[1])  # of data without facts only the first one is read before
    if rendered:
        attributes = solid("red", "cube", "metal", "small", (0.5, 0.5))
        facts = records.Facts("drop", attributes, None, (attributes,), ())
        read = shard_index.Entry.read

        def with_facts(entry: shard_index.Entry) -> TrainingSample:
            sample = read(entry)
            return replace(sample, meta={**sample.meta, "facts": facts.to_json()})

        monkeypatch.setattr(shard_index.Entry, "read", with_facts)
    validate = validation(entries, tmp_path, 0.4, screen)
    note = "1 of 3 samples to validate on cannot be read, and are left out; the last is "
    assert (note in screen.getvalue()) == rendered
    for _ in range(2):
        figures = validate(ObjectAttributes(Inputs((8, 8))))
    assert {"CIDEr", "BLEU-4"} <= figures.keys()
    assert ("right_exact" in figures) == rendered
    assert screen.getvalue().count(f"{note}d-test-1-change\n") == 1, "once"
    written = json.loads((tmp_path / "validation.json").read_text())
    assert [*written] == ["d-test-0-change", "d-test-2-change"]


def test_unchanged_pairs_have_a_figure_that_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a log whose only figure of unchanged pairs is 0, however good the captions are:
    all their references are alike, of which CIDEr counts no word."""
    (entry,) = shard_index.read([write(tmp_path / "test-000000.tar", [8], ["a"])])
    sample, same = entry.read(), ("(2, 8, 8, 3) 7",)
    entries = [replace(entry, key=n, kind="change", captions=(f"{n} left",)) for n in "ab"]
    entries += [replace(entry, key=n, kind="no_change", captions=same) for n in "cd"]
    monkeypatch.setattr(shard_index.Entry, "read", lambda one: replace(sample, key=one.key))
    figures = validation(entries, tmp_path, 0)(ObjectAttributes(Inputs((8, 8))))
    assert figures["CIDEr_no_change"] == 0
    assert figures["BLEU-4_no_change"] == pytest.approx(100)
    assert figures["BLEU-4_change"] < 1


@pytest.mark.parametrize(
    ("captions", "note"),
    [
        ([["gone"]], "CIDEr is 0 for all captions, as there is 1 pair to validate on: BLEU-4"),
        ([["gone", "Left"], ["left", "gone"]], "as all 2 pairs to validate on have the same ref"),
        ([["gone"], ["left"]], "The best checkpoint is chosen on 2 pairs alone. Give --valid"),
        ([[f"car {number} left"] for number in range(10)], ""),
    ],
)
def test_what_chooses_the_best_checkpoint_badly_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captions: list[list[str]], note: str
) -> None:
    """Keeps away: a training on few pairs whose best checkpoint is that of some step, silently."""
    (entry,) = shard_index.read([write(tmp_path / "test-000000.tar", [8], ["a"])])
    entries = [
        replace(entry, key=f"{number}", captions=tuple(texts))
        for number, texts in enumerate(captions)
    ]
    monkeypatch.setattr(shard_index, "facts", lambda entries, damaged: [None] * len(entries))
    screen = io.StringIO()
    validation(entries, tmp_path, 0.0, screen)
    assert note in screen.getvalue()
    assert bool(note) == bool(screen.getvalue())


def test_too_many_unreadable_samples_to_validate_on_end_the_training(tmp_path: Path) -> None:
    pattern = write(tmp_path / "test-000000.tar", [8, 8], ["grey 7"])
    entries = shard_index.read([pattern])
    harm(pattern, entries[0])
    captioner = ObjectAttributes(Inputs((8, 8)))
    with pytest.raises(JobFailed, match=r"^1 of 2 .* d-test-0-change: .* raise stream.skip_bad$"):
        validation(entries, tmp_path, 0.1)(captioner)
    harm(pattern, entries[1])
    with pytest.raises(JobFailed, match=r"^2 of 2 samples to validate on cannot be read: check"):
        validation(entries, tmp_path, 1.0)(captioner)


SIZE = {"height": 8, "width": 8}


@dataclass(frozen=True)
class Stored:
    """A sample of a shard, read already."""

    sample: TrainingSample
    key: str = "k"
    shard: str = ""

    def read(self) -> TrainingSample:
        return self.sample


def test_features_of_another_backbone_are_refused() -> None:
    """Keeps away: scores of a captioner that saw the features of a network it does not know."""
    features = Features("net", "0" * 64, (0, 1), np.ones((2, 5, 1, 1), np.float16))
    empty = np.zeros((2, 1, 1), np.int16)
    entries: Any = [
        Stored(TrainingSample("k", SIZE, empty, np.zeros((2, 1, 2)), {}, features, None))
    ]
    for backbone in (None, FeatureSource("net", "0" * 64)):
        captioner = ObjectAttributes(Inputs((8, 8), "features", backbone=backbone))
        assert [one.text for _, one in predict(captioner, entries)] == ["(2, 5, 1, 1) 1"]
    for other in (FeatureSource("net", "1" * 64), FeatureSource("net-x2", "0" * 64)):
        with pytest.raises(UserError, match=r"k holds features of net \(SHA-256 000000000000…\)"):
            list(predict(ObjectAttributes(Inputs((8, 8), "features", backbone=other)), entries))


def test_features_that_are_computed_anew_are_named(tmp_path: Path) -> None:
    """Keeps away: an evaluation that takes five times as long on images that were stored lossily,
    and says nothing of either."""
    [entry] = shard_index.read([write(tmp_path / "a.tar", [8], ["so"])])
    features = Features("net", "0" * 64, (0, 1), np.ones((2, 5, 1, 1), np.float16))
    sample = replace(entry.read(), features=features)
    own, others = (
        Inputs((8, 8), "features", backbone=FeatureSource(name, "0" * 64))
        for name in ("net", "net-x2")
    )
    stored: Any = [Stored(sample, shard="a"), Stored(sample, shard="a"), Stored(sample, shard="b")]
    for entries, inputs, note in (
        (stored, own, ""),
        ([entry], others, ""),  # no features at all: nobody expects them to be read
        (stored, Inputs((8, 8), "pixels"), ""),
        ([*stored, entry], others, "2 of 3 shards hold features of net (SHA-256 000000000000…) of "
         "8×8 images. This captioner reads those of net-x2 (SHA-256 000000000000…) of 8×8 images"),
    ):  # fmt: skip
        console = Console(file=io.StringIO(), soft_wrap=True)
        check(entries, inputs, console)
        assert console.file.getvalue().startswith(note)
        assert bool(console.file.getvalue()) == bool(note)


def test_validation_needs_captions_before_the_first_step(tmp_path: Path) -> None:
    """Keeps away: hours of training that end at the first validation."""
    entries = shard_index.read([write(tmp_path / "val-000000.tar", [8], [])])
    with pytest.raises(UserError, match="no sample to validate on has a caption"):
        Validation(entries, tmp_path)


def test_validation_needs_features_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the same for pairs that hold neither the features that are read nor images."""
    [entry] = shard_index.read([write(tmp_path / "val-000000.tar", [8], ["so"])])
    without = replace(entry.read(), images={})
    monkeypatch.setattr(shard_index.Entry, "read", lambda _: without)
    with pytest.raises(UserError, match="holds no features, not those of its backbone of 8×8"):
        Validation([entry], tmp_path, inputs=Inputs((8, 8), "features"))
    with pytest.raises(UserError, match="no image of frame 0 stored"):
        Validation([entry], tmp_path, inputs=Inputs((8, 8)))


def test_a_captioner_of_stored_features_alone_takes_no_images(tmp_path: Path) -> None:
    """Keeps away: a note that features are computed, and then a refusal at the first caption."""
    entries = shard_index.read([write(tmp_path / "val-000000.tar", [8], ["so"])])
    inputs = Inputs((8, 8), "features", backbone=FeatureSource("net", UNKNOWN), takes_images=False)
    with pytest.raises(UserError, match=r"those of net \(SHA-256 not known\) of .* has no weights"):
        Validation(entries, tmp_path, inputs=inputs)
