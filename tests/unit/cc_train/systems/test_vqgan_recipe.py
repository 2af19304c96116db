"""The VQGAN's crops, and what it is validated on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.formats import sequences, tar
from cc_prep.records import FrameSequence, ImagePair
from cc_train.data import order, sequence_index
from cc_train.systems.vqgan import recipe as vqgan
from cc_train.training.task import TrainingRequest

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("size", [(64, 64), (20, 90), (32, 32), (33, 31)])
def test_crops_fit(size: tuple[int, int]) -> None:
    data = vqgan.Data(crop=32)
    image = RANDOM.integers(0, 256, (*size, 3), np.uint8)
    for place in range(20):
        assert vqgan._crop(image, data, order.rng_of(0, 0, place)).shape == (32, 32, 3)


def test_frames_of_one_id_are_too_few(tmp_path: Path) -> None:
    """Keeps away: a validation over no frames, whose figures are no numbers."""
    shard = tmp_path / "train-000000.tar"
    pair = ImagePair("d", "train", "1", "change", "b", "a", ("a caption",))
    with tar.write_shard(str(shard)) as (writer, _):
        sequence = FrameSequence(pair, np.zeros((3, 32, 40, 3), np.uint8))
        writer.add(pair.key, sequences.encode(sequence, "png", 95, {}))
    request = TrainingRequest([str(shard)], (), tmp_path / "run", console=Console(quiet=True))
    with pytest.raises(UserError, match="none is left to validate on"):
        vqgan.prepare(vqgan.Settings(), request)


def test_held_out_frames_are_of_all_pairs_and_places(tmp_path: Path) -> None:
    """Keeps away: a stride that meets only images before, and leaves the last pairs out."""
    names = tuple(f"f{number:02d}.png" for number in range(9))
    samples = [
        sequence_index.Sample("shard", f"d-{i}", {}, dict.fromkeys(names, (0, 0)))
        for i in range(70)
    ]
    frames = vqgan.HeldOut(samples, 64, 16).frames()
    assert len(frames) == 64
    assert len({sample.key for sample, _ in frames}) > 30
    assert len({name for _, name in frames}) == 9
    assert len(vqgan.HeldOut(samples[:2], 64, 16).frames()) == 18
