"""`open_shards`: a pipeline of webdataset over training shards, with our decoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.media import images
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.storage import glob
from cc_train import open_shards
from tests import shard_factory


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    return shard_factory.write_tokens(folder / "a", 3)[0]


def test_samples_are_those_of_the_shards(pattern: str) -> None:
    expected = [s for path in glob(pattern) for s in training_shards.read(path)]
    samples = list(open_shards(pattern))
    assert [s["__key__"] for s in samples] == [s.key for s in expected]
    for sample, stored in zip(samples, expected, strict=True):
        assert sample["json"] == stored.meta
        assert np.array_equal(sample["tokens.npy"], stored.tokens)
        assert np.array_equal(sample["scores.npy"], stored.scores)


def test_it_shuffles_batches_and_chains_as_webdataset_does(pattern: str) -> None:
    chain = open_shards(pattern).shuffle(10).to_tuple("tokens.npy", "json").batched(4)
    batches = list(chain)
    assert [len(tokens) for tokens, _ in batches] == [4, 2]
    assert batches[0][0].shape == (4, shard_factory.FRAMES, *shard_factory.GRID)


def test_the_length_is_the_number_of_samples(tmp_path: Path) -> None:
    """Keeps away: a length of batches that counts samples, and one that reads every image."""
    patterns = [shard_factory.write_tokens(tmp_path, 3, split)[0] for split in ("train", "val")]
    shards = open_shards(patterns, shardshuffle=2)
    known = shards.shuffle(10).to_tuple("__key__", "json")
    assert len(shards) == len(known) == len(list(shards)) == 12
    assert len(torch.utils.data.DataLoader(known, batch_size=5)) == 3
    for unknown in (known.batched(2), shards.select(bool), open_shards(patterns).repeat(2)):
        with pytest.raises(TypeError, match="not known"):
            len(unknown)
    assert repr(shards) == "<open_shards: 2 shards>"


def test_workers_share_the_shards(tmp_path: Path) -> None:
    """Keeps away: every worker of a loader that reads every shard."""
    patterns = [shard_factory.write_tokens(tmp_path, 1, split)[0] for split in ("train", "val")]
    loader = torch.utils.data.DataLoader(
        open_shards(patterns).to_tuple("__key__"), batch_size=None, num_workers=2
    )
    keys = [key for (key,) in loader]
    assert len(keys) == len(set(keys)) == 4


def test_the_order_of_shards_depends_on_seed_and_epoch(tmp_path: Path) -> None:
    splits = [f"part{number}" for number in range(6)]
    patterns = [shard_factory.write_tokens(tmp_path, 1, split)[0] for split in splits]

    def orders(seed: int) -> list[list[str]]:
        chain = open_shards(patterns, shardshuffle=10, seed=seed)
        return [[sample["__key__"] for sample in chain] for _ in range(2)]

    assert orders(1) == orders(1) != orders(2)
    assert orders(1)[0] != orders(1)[1]
    assert sorted(orders(1)[0]) == sorted(orders(1)[1])


def test_workers_shuffle_the_shards_anew_in_each_epoch(tmp_path: Path) -> None:
    """Keeps away: a training whose loader has workers, and that sees one order in all epochs."""
    splits = [f"part{number}" for number in range(6)]
    patterns = [shard_factory.write_tokens(tmp_path, 1, split)[0] for split in splits]

    def orders() -> list[list[str]]:
        chain = open_shards(patterns, shardshuffle=10).to_tuple("__key__")
        loader = torch.utils.data.DataLoader(chain, batch_size=None, num_workers=1)
        return [[key for (key,) in loader] for _ in range(2)]

    first, second = orders()
    assert first != second
    assert sorted(first) == sorted(second)
    assert orders() == [first, second]
    alone = open_shards(patterns, shardshuffle=10).to_tuple("__key__")
    assert [[key for (key,) in alone] for _ in range(2)] == [first, second]


def test_frames_and_masks_are_decoded(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    mask = np.zeros((16, 16), np.uint8)
    mask[2:4] = 1
    pair = ImagePair("a", "train", "0", "change", "0.png", "1.png", ("a cube",))
    sequence = FrameSequence(pair, frames, mask=mask)
    tokens, scores = np.zeros((4, 1, 1)), np.zeros((2, 1, 4))
    members = training_shards.encode(
        sequence, tokens, scores, [0, 3], quality=95, processing_meta={}
    )
    with training_shards.write_shard(str(tmp_path / "a-000000.tar")) as (writer, _):
        writer.add(pair.key, members)
    [sample] = open_shards(str(tmp_path / "a-000000.tar"))
    for name, side in (("f00.jpg", "before"), ("f03.jpg", "after")):
        assert np.array_equal(sample[side], images.decode_stored(members[name]))
        assert sample[side] is sample[name]
    assert np.array_equal(sample["mask.png"], mask)


def test_mistakes(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        open_shards(str(tmp_path / "*.tar"))
    damaged = tmp_path / "train-000000.tar"
    damaged.write_bytes(Path(glob(pattern)[0]).read_bytes().replace(b'"frames": 4', b'"frames": 5'))
    with pytest.raises(UserError, match=r"train-000000.tar: .*tokens are .* Rebuild this shard"):
        list(open_shards(str(damaged)))
