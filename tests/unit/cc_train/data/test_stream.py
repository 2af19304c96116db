"""The stream: every sample once an epoch, the same for any division, damage counted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import training_shards
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_train.data import order, shard_index
from cc_train.data.stream import SKIPPED, Stream, StreamSettings
from cc_train.distributed import ALONE, Ranks
from tests.shard_factory import npy

FRAMES, GRID = 5, (2, 2)


def write_shards(folder: Path, sizes: Sequence[int], index: bool = True) -> str:
    """Shards of samples whose every token is the sample's number; keys come in pairs."""
    listed, number = {}, 0
    for place, size in enumerate(sizes):
        name = f"train-{place:06d}"
        with training_shards.write_shard(str(folder / f"{name}.tar")) as (writer, written):
            for _ in range(size):
                kind = ("change", "nochange")[number % 2]
                meta = {"frames": FRAMES, "captions": [f"caption {number}"], "kind": kind}
                members = {
                    "json": json.dumps(meta).encode(),
                    "tokens.npy": npy(np.full((FRAMES, *GRID), number, np.int16)),
                    "scores.npy": npy(np.zeros((2, 1, FRAMES), np.float32)),
                }
                writer.add(f"set-train-{number // 2:06d}-{kind}", members)
                number += 1
        listed[name] = written.index
    if index:
        training_shards.write_index(str(folder), listed)
    return str(folder / "train-*.tar")


def make(samples: list[TrainingSample], rngs: list[np.random.Generator]) -> dict[str, Any]:
    return {
        "seen": [int(sample.tokens[0, 0, 0]) for sample in samples],
        "draws": [int(rng.integers(1 << 30)) for rng in rngs],
    }


def stream(pattern: str, batch: int, ranks: Ranks = ALONE, **settings: Any) -> Stream:
    entries = shard_index.read([pattern])
    return Stream(
        entries, make, batch_size=batch, seed=7, settings=StreamSettings(**settings), ranks=ranks
    )


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=6).map(tuple),
    epoch=st.integers(0, 3),
    buffer=st.integers(1, 50),
)
def test_an_epoch_s_order_has_all_once(counts: tuple[int, ...], epoch: int, buffer: int) -> None:
    epoch_order = order.epoch_order(counts, epoch, 0, buffer)
    assert sorted(epoch_order.tolist()) == list(range(sum(counts)))


def test_a_small_buffer_stays_within_few_shards() -> None:
    """Keeps away: a shuffle that reads all shards at once."""
    counts = (10,) * 20
    shards = order.epoch_order(counts, 0, 0, 20) // 10
    for start in range(0, 180, 20):
        assert len(set(shards[start : start + 20].tolist())) <= 5


@given(batch=st.integers(1, 5), world=st.integers(1, 4), micro=st.integers(0, 30))
def test_ranks_see_together_what_one_sees(batch: int, world: int, micro: int) -> None:
    parts = [list(order.positions_of(micro, batch, rank, world)) for rank in range(world)]
    assert list(itertools.chain(*parts)) == list(order.positions_of(micro, batch * world, 0, 1))


def test_epochs_are_whole_and_differ(tmp_path: Path) -> None:
    batches = stream(write_shards(tmp_path, [3, 5, 4]), 4)
    epochs = [[n for i in range(3) for n in batches(3 * e + i)["seen"]] for e in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert batches(0) == batches(0), "a pure function of the number"


def test_two_ranks_are_one_with_twice_the_batch(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [3, 5, 4])
    whole, parts = stream(pattern, 4), [stream(pattern, 2, Ranks(r, 2)) for r in (0, 1)]
    for number in range(7):
        for name in ("seen", "draws"):
            assert whole(number)[name] == parts[0](number)[name] + parts[1](number)[name]


def test_the_index_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    indexed = stream(write_shards(tmp_path / "a", [3, 4]), 2)
    bare = stream(write_shards(tmp_path / "b", [3, 4], index=False), 2)
    assert [indexed(i) for i in range(5)] == [bare(i) for i in range(5)]


def test_pairs_of_a_scene_come_together(tmp_path: Path) -> None:
    batches = stream(write_shards(tmp_path, [3, 5, 4]), 2, pair_scenes=True)
    assert len(batches.items) == 6
    for number in range(6):
        seen = batches(number)["seen"]
        assert [n // 2 for n in seen[::2]] == [n // 2 for n in seen[1::2]]


@pytest.mark.parametrize("pair_scenes", [False, True])
def test_partners_are_neighbours(tmp_path: Path, pair_scenes: bool) -> None:
    """Keeps away: a sample that is its own negative, and one that depends on how a step is cut."""

    def partners(batch: int, rank: int = 0, world: int = 1) -> dict[int, int]:
        """The partner of each sample of a batch, by what their tokens say."""

        def matched(samples: Any, rngs: Any, others: Any, negative_index: np.ndarray) -> Any:
            seen = [int(one.tokens[0, 0, 0]) for one in (*samples, *others[0])]
            return dict(zip(seen, (seen[i] for i in negative_index), strict=False))

        found = Stream(
            shard_index.read([str(tmp_path / "train-*.tar")]), matched, batch_size=batch, seed=7,
            settings=StreamSettings(pair_scenes=pair_scenes), ranks=Ranks(rank, world),
            partners=True,
        )(0)  # fmt: skip
        return {key: value for key, value in found.items() if key != SKIPPED}

    write_shards(tmp_path, [8])
    whole = partners(4)
    assert len(whole) == (8 if pair_scenes else 4)
    assert all(whole[partner] == one != partner for one, partner in whole.items())
    if pair_scenes:
        assert all(one // 2 == partner // 2 for one, partner in whole.items())
    assert {**partners(1, 0, 4), **partners(1, 1, 4), **partners(2, 1, 2)} == whole


def test_each_sentence_once_an_epoch(tmp_path: Path) -> None:
    """Keeps away: a pair of five captions that counts as much as one of a single caption."""
    counts = (1, 3, 0, 2)
    with training_shards.write_shard(str(tmp_path / "train-000000.tar")) as (writer, _):
        for number, count in enumerate(counts):
            captions = [f"{number} {caption}" for caption in range(count)]
            members = {
                "json": json.dumps({"frames": FRAMES, "captions": captions}).encode(),
                "tokens.npy": npy(np.full((FRAMES, *GRID), number, np.int16)),
                "scores.npy": npy(np.zeros((2, 1, FRAMES), np.float32)),
            }
            writer.add(f"set-train-{number}-change", members)
    told: list[list[str]] = []

    def tell(samples: list[TrainingSample], rngs: Any) -> dict[str, Any]:
        told.extend(sample.meta["captions"] for sample in samples)
        return {}

    entries = shard_index.read([str(tmp_path / "train-*.tar")])
    settings = StreamSettings(item="sentence")
    batches = Stream(entries, tell, batch_size=7, seed=7, settings=settings, ranks=ALONE)
    assert len(batches.items) == 7
    for epoch in range(2):
        batches(epoch)
        expected = [[], ["0 0"], ["1 0"], ["1 1"], ["1 2"], ["3 0"], ["3 1"]]
        assert sorted(told[7 * epoch :]) == expected
    assert told[:7] != told[7:]


def damage(folder: Path, key: str) -> None:
    [entry] = [e for e in shard_index.read([str(folder / "train-*.tar")]) if e.key == key]
    data = bytearray(Path(entry.shard).read_bytes())
    data[entry.offset : entry.offset + 100] = b"\xff" * 100
    Path(entry.shard).write_bytes(bytes(data))


def test_what_cannot_be_read_is_counted_and_replaced(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [6, 6])
    damage(tmp_path, "set-train-000001-nochange")
    batches = stream(pattern, 4, skip_bad=0.1)
    for number in range(3):
        batch = batches(number)
        assert len(batch["seen"]) == 4, "batches keep their size"
        assert 3 not in batch["seen"]
        batches.mark_skipped(batch[SKIPPED])
    assert batches.skipped == {"set-train-000001-nochange"}
    assert batches.state(3)["skipped"] == ["set-train-000001-nochange"]


def test_a_flipped_bit_is_damage_unless_checksums_are_off(tmp_path: Path) -> None:
    """Keeps away: a training on other values than were written; and a switch without effect."""
    pattern = write_shards(tmp_path, [4])
    entry = shard_index.read([pattern])[1]
    data = bytearray(Path(entry.shard).read_bytes())
    data[entry.offset + entry.bytes - 1] = 1  # padding behind the scores
    Path(entry.shard).write_bytes(bytes(data))
    assert stream(pattern, 4, skip_bad=1.0)(0)[SKIPPED] == [entry.key]
    assert stream(pattern, 4, verify_checksums=False)(0)[SKIPPED] == []


def test_too_much_damage_ends_the_run(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [6, 6])
    damage(tmp_path, "set-train-000001-nochange")
    batches = stream(pattern, 4, skip_bad=0.0)
    [bad] = [batch for batch in map(batches, range(3)) if batch[SKIPPED]]
    with pytest.raises(JobFailed, match="1 of 12 samples cannot be read"):
        batches.mark_skipped(bad[SKIPPED])


def test_the_state_is_plain_and_compared(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [6, 6])
    state = stream(pattern, 4).state(4)
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["items"]) == (1, 4)
    stream(pattern, 2, Ranks(0, 2)).restore(state)
    stream(pattern, 2).restore(state)  # how many items a step has is the trainer's to check
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="other samples"):
        stream(write_shards(tmp_path / "other", [6, 4]), 4).restore(state)


@pytest.mark.parametrize(
    ("name", "fitting", "others"), [("buffer", (1,), (0,)), ("skip_bad", (0.0, 1.0), (-0.1, 1.1))]
)
def test_settings_have_bounds(name: str, fitting: Sequence[float], others: Sequence[float]) -> None:
    for value in fitting:
        assert getattr(StreamSettings(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in others:
        with pytest.raises(ValueError, match=name):
            StreamSettings(**{name: value})  # type: ignore[arg-type]


def test_fewer_samples_than_a_step_needs(tmp_path: Path) -> None:
    three = write_shards(tmp_path, [3])
    fewer = r"3 items in 1 shards are fewer than a step needs \({}\)\. Give more .* batch{}$"
    advice = ", such as --set loop.batch_size=1"
    with pytest.raises(UserError, match=fewer.format("2 × 2", advice)):
        stream(three, 2, Ranks(0, 2))
    with pytest.raises(UserError, match=fewer.format("4 × 1", "")):
        stream(three, 1, Ranks(0, 4))


@pytest.mark.parametrize("index", [True, False])
def test_a_shard_cut_short(tmp_path: Path, index: bool) -> None:
    pattern = write_shards(tmp_path, [4], index)
    path = tmp_path / "train-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])
    with pytest.raises(UserError, match=r"cut short|unexpected end"):
        shard_index.read([pattern])


def test_the_same_samples_twice(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [4])
    (tmp_path / "copy").mkdir()
    write_shards(tmp_path / "copy", [4])
    with pytest.raises(UserError, match=r"4 keys .* more than once, such as .+--set name=…"):
        shard_index.read([pattern, str(tmp_path / "copy" / "*.tar")])


def test_object_stores_are_read_by_ranges(tmp_path: Path) -> None:
    import fsspec

    write_shards(tmp_path, [3, 4])
    store = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        store.pipe_file(f"/stream-test/{path.name}", path.read_bytes())
    local = stream(str(tmp_path / "train-*.tar"), 2)
    remote = stream("memory://stream-test/train-{000000..000001}.tar", 2)
    assert [local(i) for i in range(4)] == [remote(i) for i in range(4)]


def test_every_sample_has_the_dice_of_its_place(tmp_path: Path) -> None:
    """Keeps away: two samples of a scene, or of a batch, whose draws are alike."""
    pattern = write_shards(tmp_path, [6, 6])
    alone = [int(order.rng_at(7, 4 + i).integers(1 << 30)) for i in range(4)]
    assert stream(pattern, 4)(1)["draws"] == alone
    pairs = [r for i in range(2) for r in order.rng_at(7, 2 + i).spawn(2)]
    drawn = [int(rng.integers(1 << 30)) for rng in pairs]
    assert stream(pattern, 2, pair_scenes=True)(1)["draws"] == drawn
    assert len(set(drawn)) == 4


def test_skipped_samples_may_be_as_many_as_the_settings_say(tmp_path: Path) -> None:
    """Keeps away: a run that ends at the share that is allowed, or goes on beyond it."""
    batches = stream(write_shards(tmp_path, [6, 4]), 4, skip_bad=0.2)
    keys = sorted(entry.key for entry in batches.entries)
    batches.mark_skipped(keys[:1])
    batches.mark_skipped(keys[:2])
    shard = next(entry.shard for entry in batches.entries if entry.key == keys[3])
    with pytest.raises(JobFailed, match=rf"3 of 10 samples .*, the last is {keys[3]} of {shard}:"):
        batches.mark_skipped(keys[3:4])
    batches.mark_skipped(keys[:1])  # what was counted before ends nothing


def test_as_many_items_as_a_step_needs_are_enough(tmp_path: Path) -> None:
    assert stream(write_shards(tmp_path, [4]), 2, Ranks(1, 2))(0)["seen"]


def test_when_nothing_can_be_read(tmp_path: Path) -> None:
    """Keeps away: an endless search for a sample."""
    pattern = write_shards(tmp_path, [4])
    batches = stream(pattern, 2, skip_bad=1.0)
    (tmp_path / "train-000000.tar").write_bytes(b"\xff" * 20_000)
    with pytest.raises(JobFailed, match="not one sample"):
        batches(0)


def test_a_part_that_is_read_late_is_named(tmp_path: Path) -> None:
    """Keeps away: a traceback for a damaged mask or image, which a batch alone looks at."""

    def damaged(samples: list[TrainingSample], rngs: list[np.random.Generator]) -> dict[str, Any]:
        raise DamagedShard(f"{samples[0].key}.mask.png: no image")

    entries = shard_index.read([write_shards(tmp_path, [4])])
    batches = Stream(
        entries, damaged, batch_size=2, seed=7, settings=StreamSettings(), ranks=Ranks()
    )
    with pytest.raises(JobFailed, match=r"\.mask\.png: no image: check .*cc-prep verify"):
        batches(0)


def test_damaged_samples_give_way_to_those_that_follow(tmp_path: Path) -> None:
    """Keeps away: a damaged sample replaced by one that stands before it, or by itself."""
    pattern = write_shards(tmp_path, [12])
    whole = stream(pattern, 12)(0)["seen"]
    damage(tmp_path, f"set-train-{whole[2] // 2:06d}-{('change', 'nochange')[whole[2] % 2]}")
    damage(tmp_path, f"set-train-{whole[3] // 2:06d}-{('change', 'nochange')[whole[3] % 2]}")
    seen = stream(pattern, 12, skip_bad=0.5)(0)["seen"]
    assert seen == [*whole[:2], whole[4], whole[4], *whole[4:]]
