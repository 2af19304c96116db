"""Keys of samples are safe tar members and never collide."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.formats import changes, sequences, training_shards
from cc_prep.formats.tar import write_shard
from cc_prep.records import (
    CHANGE,
    DIGEST_FIELDS,
    DIGEST_IF_THERE,
    MAX_EXTENSION_LENGTH,
    MAX_NAME_BYTES,
    NO_CHANGE,
    Facts,
    ImagePair,
    ObjectAttributes,
    ObjectChange,
)
from cc_prep.synth.facts import attributes as solid

IDS = st.text(max_size=300)


def pair(id: str, **more: object) -> ImagePair:
    return ImagePair("set", "train", id, CHANGE, "b.png", "a.png", **more)  # type: ignore[arg-type]


@given(IDS)
def test_keys_are_plain_and_short(id: str) -> None:
    """Keeps away: a dot that cuts a WebDataset key, a name too long for plain tar."""
    key = pair(id).key
    assert re.fullmatch(r"[A-Za-z0-9_-]+", key)
    assert len(key) + MAX_EXTENSION_LENGTH <= MAX_NAME_BYTES


def test_the_longest_member_is_known() -> None:
    """Keeps away: a new member of a format, whose name is too long beside the longest key."""
    members = (*training_shards.MEMBERS, *sequences.MASKS, changes.JSON, changes.MASK)
    frames = [f"{kind}00.{codec}" for kind in "ft" for codec in sequences.CODECS]
    assert max(len(f".{name}") for name in (*members, *frames)) == MAX_EXTENSION_LENGTH


@pytest.mark.parametrize("letter", ["x", "é", "/"])
@pytest.mark.parametrize("kind", [CHANGE, NO_CHANGE])
def test_the_longest_name_fits_into_plain_tar(tmp_path: Path, letter: str, kind: str) -> None:
    """Keeps away: a build that ends at the first pair whose member's name is too long."""
    for length in (24, 25, 26, 300):
        longest = ImagePair(*(3 * (letter * length,)), kind, "b", "a")
        path = tmp_path / f"{length}.tar"
        with write_shard(str(path)) as (writer, _):
            writer.add(longest.key, dict.fromkeys(training_shards.MEMBERS, b"{}"))
        with tarfile.open(path) as file:
            names = file.getnames()
        assert names == [f"{longest.key}.{name}" for name in training_shards.MEMBERS]
        assert all(len(name) <= MAX_NAME_BYTES for name in names)


@given(st.lists(st.sampled_from((1, 22, 23, 24, 25, 26)), min_size=3, max_size=3))
def test_only_a_key_that_does_not_fit_is_cut_further(lengths: list[int]) -> None:
    """Keeps away: other keys than those of nearly all shards that are there already."""
    parts = ["x" * length for length in lengths]
    for kind in (CHANGE, NO_CHANGE):
        key = ImagePair(*parts, kind, "b", "a").key
        fits = sum(lengths) + len(f"---{kind}") + MAX_EXTENSION_LENGTH <= MAX_NAME_BYTES
        if fits and max(lengths) <= 25:
            assert key == "-".join((*parts, kind))
        assert len(key) + MAX_EXTENSION_LENGTH <= MAX_NAME_BYTES
    longest = [ImagePair(*parts[:2], f"{i}".zfill(lengths[2]), kind, "b", "a") for i in range(9)]
    assert len({one.key for one in longest}) == 9


def test_keys_of_many_long_ids_do_not_collide() -> None:
    """Keeps away: a data set of 200,000 pairs refused: eight digits of a digest collide."""
    keys = {pair(f"a common prefix of many characters {i}").key for i in range(200_000)}
    assert len(keys) == 200_000
    digest = next(iter(keys)).split("-")[2].rpartition("_")[2]
    assert re.fullmatch(r"[0-9a-f]{16}", digest)


@given(IDS, IDS)
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    assert (pair(one).key == pair(other).key) == (one == other)


def test_plain_ids_stay_readable() -> None:
    assert pair("000123").key == "set-train-000123-change"


@given(IDS, st.lists(st.text()), st.lists(st.tuples(st.floats(0, 1), st.text())))
def test_survives_json(id: str, captions: list[str], truth: list[tuple[float, str]]) -> None:
    """Keeps away: a pair that changes on its way to a worker."""
    values = (((128,), 1), ((0, 255, 0), 2))
    facts = Facts("move", None, solid("red", "cube", "metal", "large", (0.25, 0.5)))
    before = pair(id, captions=tuple(captions), truth=tuple(truth), facts=facts, mask_values=values)
    after = ImagePair.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.digest() == before.digest()


def test_every_field_is_in_the_digest() -> None:
    """Keeps away: a data set that changed between two runs, and nobody noticed."""
    covered = {*DIGEST_FIELDS, *DIGEST_IF_THERE}
    assert covered == {field.name for field in fields(ImagePair)}
    one = pair("1")
    others = {
        "dataset": "x", "split": "x", "id": "x", "kind": "x", "before": "x", "after": "x",
        "captions": ("x",), "change_type": "x", "mask": "x", "mask_before": "x",
        "mask_after": "x", "mask_values": (((9,), 1),), "mask_classes": ("x",),
        "land_cover": True,
        "truth": ((0.5, "x"),), "image_id": "x", "facts": Facts("none"),
        "georeference": {"crs": "x"},
    }  # fmt: skip
    assert others.keys() == covered
    digests = {replace(one, **{name: value}).digest() for name, value in others.items()}
    assert len(digests | {one.digest()}) == len(others) + 1


def test_a_new_field_changes_no_digest() -> None:
    """Keeps away: folders that cannot be resumed after an upgrade."""

    @dataclass(frozen=True)
    class Longer(ImagePair):
        licence: str = "unknown"

    assert Longer(**pair("1").__dict__).digest() == pair("1").digest()
    known = "ecdd0c21785466da"
    assert pair("1").digest()[:16] == known, "raise DIGEST_VERSION when the digest changes"


ATTRIBUTES = {
    "color": "red",
    "shape": "cube",
    "material": "metal",
    "size": "large",
    "location": [0, 1],
}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"type": "none"},
        {"type": "vanish", "before": None, "after": None},
        {"type": ["none"], "before": None, "after": None},
        {"type": "add", "before": None, "after": {}},
        {"type": "add", "before": None, "after": [1]},
        {"type": "add", "before": None, "after": {**ATTRIBUTES, "location": [0]}},
        {"type": "add", "before": None, "after": {**ATTRIBUTES, "location": ["0", "1"]}},
        {"type": "add", "before": None, "after": {**ATTRIBUTES, "location": [0, float("nan")]}},
        {"type": "add", "before": None, "after": {**ATTRIBUTES, "location": [float("inf"), 0]}},
        {"type": "add", "before": None, "after": {**ATTRIBUTES, "color": 3}},
    ],
)
def test_facts_of_another_shape(value: object) -> None:
    """Keeps away: a traceback in a training, of a shard whose facts are damaged."""
    if isinstance(value, dict) and "after" in value:  # nothing else is wrong with it
        lists = dict.fromkeys(("objects_before", "objects_after", "reversed_captions"), ())
        Facts.from_json({**lists, "type": "add", "before": None, "after": ATTRIBUTES})
        value = {**lists, **value}
    with pytest.raises(ValueError, match=r"facts are|attributes are|type of change|a location is"):
        Facts.from_json(value)  # type: ignore[arg-type]


def test_an_address_that_is_signed_anew_is_the_same_pair() -> None:
    """Keeps away: shards that cannot be resumed on the next day, and signatures in their JSON."""
    first, second = (
        replace(pair("1"), before=f"https://me:pw{n}@h/b.png?X-Amz-Signature={n}") for n in (1, 2)
    )
    assert first.digest() == second.digest() != pair("1").digest()
    assert sequences.pair_meta(first)["before"] == "https://h/b.png?X-Amz-Signature=***"
    assert sequences.pair_meta(first)["after"] == "a.png"


def test_facts_of_several_changes_come_back() -> None:
    """Keeps away: facts of several changes that are read as those of the first."""
    one, other = (
        solid("red", "cube", "metal", "large", (0.25, 0.5)),
        ObjectAttributes.from_json(ATTRIBUTES),
    )
    changes = (ObjectChange("move", one, one), ObjectChange("add", None, other))
    facts = Facts.of_changes(changes, (one,), (one, other))
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    assert facts.changes == changes
    assert facts.type == "several"
    assert [change.type for change in facts.reversed().changes] == ["move", "drop"]
    assert facts.reversed().reversed() == facts
    single = Facts("add", None, other)
    assert "several" not in single.to_json()
    assert [change.after for change in single.changes] == [other]
    assert Facts("none").changes == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"several": []},
        {"type": "move"},
        {"before": ATTRIBUTES},
        {"several": [{"type": "none", "before": None, "after": None}] * 2},
        {"several": [{"type": "move", "before": None}] * 2},
    ],
)
def test_a_list_of_changes_that_is_none(wrong: dict) -> None:
    value = Facts.of_changes([ObjectChange("drop"), ObjectChange("drop")]).to_json()
    with pytest.raises(ValueError, match="change"):
        Facts.from_json({**value, **wrong})
