"""Training samples on disk: what goes in comes out, their optional members, and their index."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import tar, training_shards
from cc_prep.formats.training_shards import Features
from cc_prep.inspect import verification
from cc_prep.media.images import encode_image
from cc_prep.records import Facts, FrameSequence, ImagePair
from tests.job_factory import frame_scores

RANDOM = np.random.default_rng(0)
PAIR = ImagePair(
    "d", "train", "1", "change", "b", "a", ("it moved", "moved"), "move", facts=Facts("none")
)
FRAMES = RANDOM.integers(0, 256, (5, 24, 32, 3), np.uint8)
MASK = RANDOM.integers(0, 3, (24, 32), np.uint8)
GONE, NEW = np.where(MASK == 1, 1, 0).astype(np.uint8), np.where(MASK == 2, 2, 0).astype(np.uint8)
MASKED_PAIR = replace(PAIR, mask_classes=("road", "building"))
FEATURES = Features("vit", "ab" * 32, (0, 4), RANDOM.normal(size=(2, 8, 3, 4)).astype(np.float16))
ABOUT = {"codes": 20, "tokenizer": "t", "tokenizer_sha256": "cd" * 32}


def sample(features: Features | None = FEATURES, mask: np.ndarray | None = MASK) -> dict:
    tokens, scores = np.arange(20).reshape(5, 2, 2), np.zeros((2, 1, 5))
    sides = {} if mask is None else {"mask_before": GONE, "mask_after": NEW}
    sequence = FrameSequence(MASKED_PAIR, FRAMES, mask=mask, **sides)
    return training_shards.encode(
        sequence, tokens, scores, [0, 4], quality=95, processing_meta=ABOUT, features=features
    )


def changed(name: str, data: object) -> dict[str, bytes]:
    """A sample of which one member is replaced, or a key of its JSON."""
    members = sample()
    if isinstance(data, bytes):
        return {**members, name: data}
    meta = json.loads(members["json"])
    return {**members, "json": json.dumps({**meta, name: data}).encode()}


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def test_masks_and_features_come_back() -> None:
    """Keeps away: classes that become one, and what vanished taken for what appeared."""
    decoded = training_shards.decode("k", sample())
    assert np.array_equal(decoded.mask(), MASK)
    assert np.array_equal(decoded.mask_before(), GONE)
    assert np.array_equal(decoded.mask_after(), NEW)
    assert decoded.meta["mask_classes"] == ["road", "building"]
    assert training_shards.index_meta(decoded.meta)["mask_classes"] == ["road", "building"]
    assert decoded.features is not None
    assert decoded.features.values.dtype == np.float16
    assert np.array_equal(decoded.features.values, FEATURES.values)
    assert decoded.features.frames == (0, 4)
    assert decoded.meta["features"] == {"backbone": "vit", "sha256": "ab" * 32, "frames": [0, 4]}
    assert sorted(decoded.images) == [0, 4], "features.npy is no image of a frame"


def test_features_may_be_float32() -> None:
    values = RANDOM.normal(size=(2, 8, 3, 4)).astype(np.float32)
    decoded = training_shards.decode("a", sample(replace(FEATURES, values=values)))
    assert decoded.features is not None
    assert decoded.features.values.dtype == np.float32
    assert np.array_equal(decoded.features.values, values)


def test_neither_is_needed() -> None:
    members = sample(None, None)
    decoded = training_shards.decode("k", members)
    assert decoded.features is None
    assert decoded.mask() is decoded.mask_before() is decoded.mask_after() is None
    assert not {"features", "mask_classes"} & json.loads(members["json"]).keys()


def test_members_have_one_order() -> None:
    expected = [
        "json",
        "tokens.npy",
        "scores.npy",
        "features.npy",
        "mask.png",
        "mask_before.png",
        "mask_after.png",
        "f00.jpg",
        "f04.jpg",
    ]
    members = sample()
    assert list(members) == training_shards.ordered(reversed(expected)) == expected
    assert sample() == members, "the same bytes every time"
    assert verify(members) == []
    backwards = dict(reversed(list(members.items())))
    assert verify(backwards) == ["k: its members are not in their order"]


@pytest.mark.parametrize(
    "members",
    [
        changed("features.npy", npy(np.array([print], object))),
        changed("features.npy", npy(FEATURES.values.astype(np.float64))),
        changed("features.npy", npy(FEATURES.values[:1])),
        changed("features.npy", npy(FEATURES.values[:, :0])),
        changed("features.npy", npy(FEATURES.values[0])),
        changed("features.npy", npy(np.asfortranarray(FEATURES.values))),
        changed("features.npy", npy(FEATURES.values)[:-1]),
        changed("features.npy", npy(FEATURES.values) + b"x"),
        changed("features.npy", npy(FEATURES.values).replace(b"(2, 8,", b"(-2, 8,")),
        changed("features.npy", npy(FEATURES.values).replace(b"(2, 8,", b"(-2,-8,")),
        changed("features.npy", npy(FEATURES.values).replace(b"4), }   ", b"4**40), }")),
        changed("features.npy", b""),
        changed("mirrored.npy", npy(FEATURES.values[:1])),
        changed("mirrored.npy", npy(FEATURES.values.astype(np.float32))),
        changed("features", None),
        changed("features", "vit"),
        changed("features", {"backbone": "vit", "sha256": "x"}),
        changed("features", {"backbone": 1, "sha256": "x", "frames": [0, 4]}),
        *(
            changed("features", {"backbone": "vit", "sha256": "x", "frames": frames})
            for frames in ([0], [4, 0], [0, 0], [0, 5], [-1, 4], [0.0, 4.0], [True, 4], 2, [])
        ),
        {name: data for name, data in sample().items() if name != "features.npy"},
    ],
)
def test_features_that_do_not_fit(members: dict[str, bytes]) -> None:
    """Keeps away: a shard of a stranger that runs code, asks for memory, or names other frames."""
    with pytest.raises(tar.DamagedShard, match=r"^k: "):
        training_shards.decode("k", members)


@pytest.mark.parametrize(
    "members",
    [
        changed("features", None),
        changed("features", "vit"),
        {name: data for name, data in sample().items() if name != "features.npy"},
    ],
)
def test_features_and_their_description_belong_together(members: dict[str, bytes]) -> None:
    """Keeps away: Python's words about a type, which name neither of the two."""
    with pytest.raises(tar.DamagedShard, match=r"entry in the \.json and a \.features\.npy"):
        training_shards.decode("k", members)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "no image"),
        (encode_image(MASK[:20], "png", 0), "32×20, not 32×24"),
        (encode_image(MASK + 1, "png", 0), "other values than the class ids 0 to 2"),
        (encode_image(np.stack([MASK, MASK, 2 - MASK], -1), "png", 0), "other values"),
    ],
)
@pytest.mark.parametrize("name", ["mask", "mask_before", "mask_after"])
def test_masks_that_do_not_fit(name: str, data: bytes, message: str) -> None:
    decoded = training_shards.decode("k", changed(f"{name}.png", data))
    with pytest.raises(tar.DamagedShard, match=message):
        getattr(decoded, name)()
    [fault] = verify(changed(f"{name}.png", data))
    assert message in fault


def test_mirrored_features_come_back() -> None:
    mirrored = np.ascontiguousarray(FEATURES.values[..., ::-1])
    members = sample(replace(FEATURES, mirrored=mirrored))
    assert verify(members) == []
    decoded = training_shards.decode("k", members)
    assert decoded.features is not None
    assert decoded.features.mirrored is not None
    assert np.array_equal(decoded.features.mirrored, mirrored)
    assert "mirrored.npy" not in sample()


@pytest.mark.parametrize(
    "members",
    [
        changed("mask_classes", None),
        changed("mask_classes", []),
        changed("mask_classes", "road"),
        changed("mask_classes", [1, 2]),
        changed("mask_classes", ["x"] * 255),
        {name: data for name, data in sample().items() if name != "mask.png"},
        {**sample(None, None), "mask_after.png": sample()["mask_after.png"]},
    ],
)
def test_masks_and_their_classes_belong_together(members: dict[str, bytes]) -> None:
    """Keeps away: class ids without names, and a mask of one side that counts as the whole."""
    with pytest.raises(tar.DamagedShard, match=r"^k: .*mask"):
        training_shards.decode("k", members)
    assert len(verify(members)) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", ["features.npy", "mirrored.npy"])
def test_features_that_are_not_finite(name: str, dtype: type, value: float) -> None:
    """Keeps away: a loss that is NaN from the first step on, and a `verify` that passes."""
    values = FEATURES.values.astype(dtype)
    members = {**changed("features.npy", npy(values)), "mirrored.npy": npy(values)}
    members = {extension: members[extension] for extension in training_shards.ordered(members)}
    assert verify(members) == []
    values[0, 0, 0, 0] = value
    [fault] = verify({**members, name: npy(values)})
    assert fault.endswith("feature is no finite number")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e19])
def test_scores_that_are_not_finite(value: float) -> None:
    """Keeps away: keyframes that are drawn from NaN, which `verify` calls OK; and penalties, the
    squares of scores, that are infinite.
    """
    scores = np.zeros((2, 1, 5), np.float32)
    scores[1, 0, 4] = value
    assert verify(changed("scores.npy", npy(scores))) == ["k: a score is no finite number"]
    with pytest.raises(tar.DamagedShard, match="k: a score is no finite number"):
        training_shards.decode("k", changed("scores.npy", npy(scores)))


def verify(members: dict[str, bytes]) -> list[str]:
    return verification._training_faults("k", members, 5, "png")


def test_the_index_says_what_a_trainer_asks(tmp_path: Path) -> None:
    with training_shards.write_shard(str(tmp_path / "train-000000.tar")) as (writer, written):
        writer.add(PAIR.key, sample())
    training_shards.write_index(str(tmp_path), {"train-000000": written.index})
    [row] = training_shards.read_index(str(tmp_path))
    assert row == {
        "key": PAIR.key, "shard": "train-000000", "offset": 0, "bytes": row["bytes"],
        "crc32c": row["crc32c"],
        "dataset": "d", "split": "train", "id": "1", "image_id": None, "kind": "change",
        "change_type": "move", "captions": ["it moved", "moved"], "before": "b", "after": "a",
        "frames": 5, "height": 24, "width": 32, "tokenizer": "t", "tokenizer_sha256": "cd" * 32,
        "mask_classes": ["road", "building"],
    }  # fmt: skip
    assert row["bytes"] % 512 == 0


@pytest.mark.parametrize(
    "meta", [{"frames": "5"}, {"frames": 2**40}, {"captions": "one"}, {"captions": [1]}, {"id": 7}]
)
def test_json_of_other_types_is_in_no_index(meta: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"in its \.json is"):
        training_shards.index_meta(meta)


@pytest.mark.parametrize(
    "change", [{"key": 1}, {"offset": -1}, {"bytes": None}, {"crc32c": 0.0}, {"more": 1}]
)
def test_what_is_no_row_of_the_index(tmp_path: Path, change: dict[str, object]) -> None:
    """Keeps away: a position of a stranger's that a worker seeks."""
    with training_shards.write_shard(str(tmp_path / "a.tar")) as (writer, written):
        writer.add("k", sample())
    training_shards.check_rows(written.index)
    [row] = written.index
    for rows in ([{**row, **change}], [row, {"key": "k"}]):
        with pytest.raises(ValueError, match=r"is no row of index\.parquet"):
            training_shards.check_rows(rows)


def test_numbers_of_the_index_have_four_bytes() -> None:
    """Keeps away: a shard that is written, and its index that then cannot be."""
    assert training_shards.index_meta({"height": 0, "width": 2**31 - 1})["width"] == 2**31 - 1
    for value in (-1, 2**31, 1.0, True):
        with pytest.raises(ValueError, match=f"width in its .json is '{value}'"):
            training_shards.index_meta({"width": value})


def plain_sample() -> dict[str, bytes]:
    pair = ImagePair("d", "train", "1", "change", "b", "a", ("it moved",))
    frames = np.arange(5 * 32 * 32 * 3).reshape(5, 32, 32, 3).astype(np.uint8)
    tokens = np.arange(20).reshape(5, 2, 2)
    return training_shards.encode(
        FrameSequence(pair, frames),
        tokens,
        frame_scores(1).similarities(),
        [0, 4],
        quality=95,
        processing_meta={"codes": 20},
    )


def test_training_sample_comes_back() -> None:
    decoded = training_shards.decode("k", plain_sample())
    assert decoded.tokens.dtype == np.int16
    assert np.array_equal(decoded.tokens, np.arange(20).reshape(5, 2, 2))
    assert np.array_equal(decoded.scores, frame_scores(1).similarities())
    assert sorted(decoded.images) == [0, 4]
    assert decoded.image(0).shape == (32, 32, 3)
    assert decoded.meta["captions"] == ["it moved"]
    with pytest.raises(tar.DamagedShard, match="frame 2"):
        decoded.image(2)


def test_members_of_others_are_no_images() -> None:
    """Keeps away: a traceback for `f\u00b2\u00b2.jpg`, and JSON that counts as an image."""
    others = dict.fromkeys(("f²².jpg", "f00.json", "f1.jpg", "flow.png"), b"x")
    assert training_shards.decode("k", {**plain_sample(), **others}).images.keys() == {0, 4}
    assert training_shards.decode("k", {**plain_sample(), "f01.jpg": b"x"}).images[1] == b"x"


def test_object_arrays_are_never_unpickled() -> None:
    """Keeps away: a shard of a stranger that runs code."""
    members = plain_sample()
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], object), allow_pickle=True)
    with pytest.raises(tar.DamagedShard):
        training_shards.decode("k", {**members, "tokens.npy": buffer.getvalue()})


@pytest.mark.parametrize("member", ["json", "tokens.npy", "scores.npy"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]"])
def test_damaged_members(member: str, content: bytes | None) -> None:
    members = {**plain_sample(), member: content}
    if content is None:
        del members[member]
    with pytest.raises(tar.DamagedShard):
        training_shards.decode("k", members)


def test_the_index_finds_every_sample(tmp_path: Path) -> None:
    path = str(tmp_path / "train-000000.tar")
    with training_shards.write_shard(path) as (writer, written):
        for name in ("a", "b", "c"):
            writer.add(name, plain_sample())
    training_shards.write_index(str(tmp_path), {"train-000000": written.index})
    rows = training_shards.read_index(str(tmp_path))
    assert [r["key"] for r in rows] == ["a", "b", "c"]
    assert [r["captions"] for r in rows] == [["it moved"]] * 3
    for name in ("a", "b", "c"):
        looked_up = training_shards.lookup(str(tmp_path), name)
        assert looked_up is not None
        assert looked_up.key == name
    assert training_shards.lookup(str(tmp_path), "d") is None


def test_equal_samples_equal_bytes() -> None:
    """Keeps away: JSON whose keys stand in the order in which the code happens to build it."""
    json_bytes = plain_sample()["json"]
    assert json_bytes == json.dumps(json.loads(json_bytes), sort_keys=True).encode()
    assert list(plain_sample()) == [
        "json",
        "tokens.npy",
        "scores.npy",
        "f00.jpg",
        "f04.jpg",
    ]


@pytest.mark.parametrize(
    ("member", "array"),
    [
        ("tokens.npy", np.zeros((5, 2, 2), np.int32)),
        ("tokens.npy", np.zeros((5, 4), np.int16)),
        ("tokens.npy", np.zeros((4, 2, 2), np.int16)),
        ("scores.npy", np.zeros((2, 1, 5), np.float64)),
        ("scores.npy", np.zeros((2, 5), np.float32)),
        ("scores.npy", np.zeros((2, 1, 4), np.float32)),
        ("scores.npy", np.zeros((1, 1, 5), np.float32)),
    ],
)
def test_arrays_of_another_kind_or_shape(member: str, array: np.ndarray) -> None:
    """Keeps away: one wrong property of an array that only counts beside another."""
    with pytest.raises(tar.DamagedShard, match=member.partition(".")[0]):
        training_shards.decode("k", {**plain_sample(), member: npy(array)})


def test_the_index_stands_in_the_order_of_the_bytes(tmp_path: Path) -> None:
    rows = {
        "b": [{"key": "k3", "offset": 0, "bytes": 4096}],
        "a": [
            {"key": "k2", "offset": 1024, "bytes": 4096},
            {"key": "k1", "offset": 0, "bytes": 1024},
        ],
    }
    training_shards.write_index(str(tmp_path), rows)
    listed = training_shards.read_index(str(tmp_path))
    assert [(row["key"], row["shard"], row["offset"], row["bytes"]) for row in listed] == [
        ("k1", "a", 0, 1024),
        ("k2", "a", 1024, 4096),
        ("k3", "b", 0, 4096),
    ]


def test_the_index_counts_every_byte_once(tmp_path: Path) -> None:
    """Keeps away: rows that overlap, or that take in what ends a tar."""
    with training_shards.write_shard(str(tmp_path / "a.tar")) as (writer, written):
        for name in ("k1", "k2"):
            writer.add(name, plain_sample())
    one, two = written.index
    assert one["offset"] == 0
    assert two["offset"] == one["bytes"]
    assert two["offset"] + two["bytes"] <= written.bytes - 1024
    assert set((tmp_path / "a.tar").read_bytes()[two["offset"] + two["bytes"] :]) == {0}


def test_verify_compares_the_index_with_the_bytes(tmp_path: Path) -> None:
    """Keeps away: "all is well" of an index by which no training can read, such as one that was
    copied from another run.
    """
    metas = {}
    with training_shards.write_shard(str(tmp_path / "a.tar")) as (writer, written):
        for name in ("k1", "k2"):
            writer.add(name, plain_sample())
            metas[name] = training_shards.index_meta(json.loads(plain_sample()["json"]))
    keys = dict.fromkeys(("k1", "k2"), "a")
    assert tar.spans(str(tmp_path / "a.tar")) == written.spans
    assert tar.checksums(str(tmp_path / "a.tar"), written.spans) == written.checksums
    elsewhere = ["index.parquet: k2 is not where its row says"]
    for column, expected in (
        ("offset", elsewhere),
        ("bytes", elsewhere),
        ("crc32c", ["index.parquet: k2 has other bytes than its row says"]),
        (None, []),
    ):
        rows = [dict(row) for row in written.index]
        if column is not None:
            rows[1][column] = (rows[1][column] + 512) % 2**32
        training_shards.write_index(str(tmp_path), {"a": rows})
        assert verification._index_faults(str(tmp_path), keys, metas) == expected


def test_a_checksum_is_the_crc_32c_of_the_bytes_of_a_sample(tmp_path: Path) -> None:
    """Keeps away: a checksum of other bytes, or of another polynomial, that other readers cannot
    compare; and one that depends on what was written before.
    """
    assert tar.checksum(b"123456789") == 0xE3069283  # the check value of CRC-32C
    listed = {}
    for order in (("k1", "k2"), ("k2", "k1")):
        path = tmp_path / "a.tar"
        with training_shards.write_shard(str(path)) as (writer, written):
            for name in order:
                writer.add(name, plain_sample())
        data = path.read_bytes()
        for row in written.index:
            part = data[row["offset"] : row["offset"] + row["bytes"]]
            assert row["crc32c"] == tar.checksum(part)
            assert listed.setdefault(row["key"], row["crc32c"]) == row["crc32c"]


def test_no_flipped_bit_of_a_sample_is_read(tmp_path: Path) -> None:
    """Keeps away: other pixels, captions or members than were written, in silence: of 400 flipped
    bits a reader saw 61.
    """
    path = tmp_path / "a.tar"
    with training_shards.write_shard(str(path)) as (writer, written):
        writer.add("k", plain_sample())
    [row] = written.index
    where = (row["offset"], row["bytes"])
    assert training_shards.read_at(str(path), "k", *where, row["crc32c"]).key == "k"
    whole = path.read_bytes()
    for at in RANDOM.integers(0, row["bytes"], 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(tar.DamagedShard, match="bytes of k are not those that were written"):
            training_shards.read_at(str(path), "k", *where, row["crc32c"])


def test_a_sample_ends_where_the_index_says(tmp_path: Path) -> None:
    """Keeps away: a sample that lacks its last members, such as its masks, where the index is of
    another file and knows no checksum.
    """
    path = tmp_path / "a.tar"
    with training_shards.write_shard(str(path)) as (writer, written):
        for name in ("k", "l"):
            writer.add(name, plain_sample())
    offset, size = written.spans["k"]
    for other, message in (
        (size + 512, "k is not where|damaged|cut|unexpected"),
        (size - 512, "unexpected end of data"),
        (size + written.spans["l"][1], "k is not where the index says"),
        (10**6, "ends inside k"),
    ):
        with pytest.raises(tar.DamagedShard, match=message):
            training_shards.read_at(str(path), "k", offset, other)
