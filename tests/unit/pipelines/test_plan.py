"""The plan is a pure function of manifest and data, and decides what still wants work."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep import datasets, manifest
from cc_prep.errors import UserError
from cc_prep.formats.rejects import Reject
from cc_prep.records import ImagePair
from pipelines import estimates
from pipelines import plan as planning
from pipelines.plan import ordered, plan
from pipelines.shards import PlannedShard, of_pairs, remaining
from pipelines.state.journal import Done
from tests import job_factory

IDS = st.lists(st.text(min_size=1, max_size=8), max_size=30, unique=True)


@given(IDS, st.integers(0, 9))
def test_order_is_a_shuffle_that_keeps_ids_together(ids: list[str], seed: int) -> None:
    pairs = [
        job_factory.ImagePair("d", "s", id, kind, "b", "a")
        for id in ids
        for kind in ("change", "no_change")
    ]
    shuffled = ordered(pairs, seed)
    assert sorted(p.key for p in shuffled) == sorted(p.key for p in pairs)
    assert [p.id for p in shuffled[0::2]] == [p.id for p in shuffled[1::2]]
    assert [p.kind for p in shuffled[:2]] in ([], ["change", "no_change"])
    # Another order of the data, or more of it, moves no pair past another.
    assert ordered(pairs[::-1], seed)[0::2] == [p for p in shuffled if p.kind == "no_change"]
    fewer = [p for p in pairs if p.id != ids[0]] if ids else []
    assert ordered(fewer, seed) == [p for p in shuffled if not ids or p.id != ids[0]]


def test_shuffle_mixes_and_null_keeps_order() -> None:
    pairs = [job_factory.pair(i) for i in range(100)]
    assert ordered(pairs, None) == pairs
    assert ordered(pairs, 0) != pairs
    assert ordered(pairs, 0) != ordered(pairs, 1)


def test_shards_are_cut_by_size_where_that_is_asked_for(synth_root: Path) -> None:
    """Keeps away: shards of another size than a mount or a loader takes, and a limit that another
    --limit or another job cuts elsewhere."""

    def sizes(*values: str, limit: int | None = None) -> list[int]:
        overrides = [f"shards.{value}" for value in values]
        settings = manifest.load("synth", [*overrides, "image_size=1024"], str(synth_root))
        return [shard.count for shard in plan(settings, ["train"], limit)]

    [all_pairs] = sizes("pairs_per_shard=256")
    pair = job_factory.pair(0)
    mb = estimates.training_bytes(manifest.load("synth", ["image_size=1024"]), pair) / 1e6
    small = sizes("pairs_per_shard=256", f"max_mb={math.ceil(2 * mb)}")
    assert set(small[:-1]) == {2}
    assert sum(small) == all_pairs
    assert sizes(f"max_mb={math.ceil(2 * mb)}", limit=4) == [2, 2]
    assert sizes("pairs_per_shard=3", "max_mb=100000")[0] == 3, "both are limits"
    assert set(sizes("max_mb=1")) == {1}, "a pair at least"


@given(st.integers(1, 9), st.one_of(st.none(), st.integers(1, 50)))
def test_every_pair_is_in_one_shard(synth_root: Path, size: int, limit: int | None) -> None:
    settings = manifest.load("synth", [f"shards.pairs_per_shard={size}"], str(synth_root))
    shards = plan(settings, settings.splits, limit)
    assert plan(settings, settings.splits, limit) == shards
    for split in settings.splits:
        mine = [shard for shard in shards if shard.split == split]
        assert [shard.source.index for shard in mine] == list(range(len(mine)))
        assert all(len(shard.pairs) == size for shard in mine[:-1])
        keys = [pair.key for shard in mine for pair in shard.pairs]
        assert len(keys) == len(set(keys))
        whole = plan(settings, [split], None)
        assert len(keys) == min(limit or 99, sum(len(s.pairs) for s in whole))


def test_pairs_are_copied_once_however_many_shards(
    synth_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a plan that takes minutes for millions of pairs, as it copies all for a shard."""
    copied = []

    class Pairs(list[ImagePair]):
        def __getitem__(self, part: Any) -> Any:
            if isinstance(part, slice):
                copied.append(part)
            return super().__getitem__(part)

    monkeypatch.setattr(planning, "ordered", lambda pairs, seed: Pairs(pairs))
    settings = manifest.load("synth", ["shards.pairs_per_shard=1"], str(synth_root))
    assert len(plan(settings, settings.splits[:1], 3)) == 3
    assert copied == [slice(None, 3)]


def done(shard: PlannedShard, count: int | None = None, rejects: int = 0) -> Done:
    pairs = count or len(shard.pairs)
    reject = Reject("k", "i", "s", "change", shard.name, "r", "m")
    return Done(
        shard.name,
        pairs,
        shard.source.digest(count),
        samples=1,
        bytes=1,
        sha256="s",
        seconds=0.0,
        rejects=(reject,) * rejects,
    )


def test_remaining() -> None:
    one, two, three = job_factory.shards(12, 4)
    listed = [one, two, three]
    assert remaining(listed, {}, False) == listed
    there = {s.name: d for s, d in ((one, done(one)), (two, done(two, rejects=1)))}
    assert [s.name for s in remaining(listed, there, False)] == [three.name]
    again = remaining(listed, there, True)
    assert [(s.name, s.existing_sha256) for s in again] == [(two.name, "s"), (three.name, None)]
    grown = remaining([three], {three.name: done(three, count=2)}, False)
    assert [(s.name, s.existing_sha256) for s in grown] == [(three.name, "s")]


def test_a_restored_video_is_named_as_the_reason(tmp_path: Path, video_root: Path) -> None:
    """Keeps away: "names, captions, labels or masks changed", where none of them did."""
    film = (video_root / "ramp.mp4").read_bytes()
    (tmp_path / "a.mp4").write_bytes(film[:500])
    (tmp_path / "b.mp4").write_bytes(film)
    settings = manifest.load("video", ["shards.shuffle_seed=null"], root=str(tmp_path))
    [before] = plan(settings, ["train"])
    (tmp_path / "a.mp4").write_bytes(film)
    [after] = plan(settings, ["train"])
    assert (before.count, after.count) == (3, 4)
    with pytest.raises(UserError, match="or a video that could not be opened then"):
        remaining([after], {before.name: done(before, rejects=1)}, True)


def test_changed_data_is_refused() -> None:
    """Keeps away: shards of which half were made from other captions."""
    shard = job_factory.shards(4, 4)[0]
    other = of_pairs("train", 0, [job_factory.pair(i + 1) for i in range(4)])
    with pytest.raises(UserError, match=r"changed since .* or it was made from sequences"):
        remaining([other], {shard.name: done(shard)}, False)
    with pytest.raises(UserError, match="larger --limit"):
        remaining([of_pairs("train", 0, shard.pairs[:2])], {shard.name: done(shard)}, False)


def test_survives_json() -> None:
    shard = job_factory.shards(3, 3)[0]
    assert PlannedShard.from_json(shard.to_json()) == shard


def test_the_order_stays_as_it_is() -> None:
    """Keeps away: a release that plans other shards than the one which began the folder."""
    pairs = [job_factory.pair(i) for i in range(8)]
    order = [int(pair.id) for pair in ordered(pairs, 0)]
    assert order == [2, 4, 1, 5, 0, 7, 3, 6]
    assert order != [int(pair.id) for pair in ordered(pairs, 1)]


def test_a_shard_grows_by_its_limit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a larger --limit that moves pairs from one shard to another."""
    pairs = [job_factory.pair(i) for i in range(10)]
    monkeypatch.setattr(datasets, "pairs", lambda manifest, split: pairs)
    settings = manifest.load("synth", ["shards.pairs_per_shard=4", "shards.shuffle_seed=null"])
    whole = plan(settings, ["train", "val"])
    assert [(s.name, s.count) for s in whole] == [
        (f"{split}-{i:06d}", count)
        for split in ("train", "val")
        for i, count in enumerate((4, 4, 2))
    ]
    assert [pair.id for s in whole[:3] for pair in s.pairs] == [pair.id for pair in pairs]
    for limit in range(1, 12):
        some = plan(settings, ["train"], limit)
        assert sum(shard.count for shard in some) == min(limit, 10)
        for shard, full in zip(some, whole, strict=False):
            assert shard.pairs == full.pairs[: shard.count]
            assert shard.digest() == full.source.digest(shard.count)
        assert all(shard.count == 4 for shard in some[:-1])


@pytest.mark.parametrize(("size", "counts"), [(10**6, [4, 4, 1]), (10**6 + 1, [3, 3, 3])])
def test_the_first_pair_says_how_many_fit(
    monkeypatch: pytest.MonkeyPatch, size: int, counts: list[int]
) -> None:
    """Keeps away: a larger --limit that cuts all shards anew, as another pair is the last one."""
    pairs = [job_factory.pair(i) for i in range(10)]
    monkeypatch.setattr(datasets, "pairs", lambda manifest, split: pairs)
    sizes = {pair.key: size * (1 + number) for number, pair in enumerate(pairs)}
    monkeypatch.setattr(estimates, "training_bytes", lambda manifest, pair: sizes[pair.key])
    settings = manifest.load("synth", ["shards.max_mb=4", "shards.shuffle_seed=null"])
    assert [shard.count for shard in plan(settings, ["train"], 9)] == counts


def test_no_pairs_and_the_same_pair_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = manifest.load("synth", [])
    monkeypatch.setattr(datasets, "pairs", lambda manifest, split: [])
    with pytest.raises(UserError, match="no pairs in train, val"):
        plan(settings, ["train", "val"])
    twice = [job_factory.pair(1), job_factory.pair(2), job_factory.pair(1)]
    monkeypatch.setattr(datasets, "pairs", lambda manifest, split: twice)
    with pytest.raises(UserError, match=f"two pairs have the key {job_factory.pair(1).key}"):
        plan(settings, ["train"])


def test_any_changed_pair_changes_the_digest() -> None:
    """Keeps away: captions that were corrected, and shards that keep the old ones."""
    [shard] = job_factory.shards(3, 3)
    for field in ("before", "after", "captions", "kind", "id"):
        value = ("other",) if field == "captions" else "other"
        pairs = (shard.pairs[0], replace(shard.pairs[1], **{field: value}), shard.pairs[2])
        changed = replace(shard.source, pairs=pairs)
        assert changed.digest() != shard.digest(), field
        assert changed.digest(1) == shard.source.digest(1)
