"""Sequence shards as a list of samples: which files are meant, and when one is whole."""

from __future__ import annotations

import glob
import io
import re
import tarfile
from pathlib import Path

import braceexpand
import hypothesis
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, sequences, tar
from cc_prep.media.images import encode_image
from cc_prep.records import FrameSequence, ImagePair
from cc_train.data import sequence_index

BLOCK = tarfile.BLOCKSIZE


def shard(path: Path, keys: tuple[str, ...] = ("k-0",), size: int = 700) -> Path:
    with tar.write_shard(str(path)) as (writer, _):
        for key in keys:
            writer.add(key, {"json": b'{"a": 1}', "f00.png": b"x" * size, "f01.png": b"y" * size})
    return path


@pytest.mark.parametrize(
    "pattern", ["train-{000..003.tar", "train-000}.tar", "{0..999999}-{0.tar", "{0..999999}-0}.tar"]
)
def test_a_brace_without_the_other_one(pattern: str) -> None:
    """Keeps away: twenty lines of traceback for a slip of the keyboard."""
    with pytest.raises(UserError, match="a brace without the other one"):
        sequence_index.expand([pattern])


def test_progress_counts_the_shards_that_are_read(tmp_path: Path) -> None:
    both = [shard(tmp_path / f"{key}.tar", (key,)) for key in ("k-0", "k-1")]
    told: list[tuple[int, int]] = []
    samples = sequence_index.read_index(
        list(map(str, both)), lambda done, count: told.append((done, count))
    )
    assert [sample.key for sample in samples] == ["k-0", "k-1"]
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("size", [700, 512, 1])
@pytest.mark.parametrize("missing", [1, BLOCK, 2 * BLOCK, 3 * BLOCK])
def test_a_shard_without_its_whole_end(tmp_path: Path, size: int, missing: int) -> None:
    """Keeps away: a copy that stopped in a shard's last bytes and is taken for whole."""
    path = shard(tmp_path / "a.tar", size=size)
    frame = BLOCK * (1 + -(-size // BLOCK))
    end = 2 * BLOCK + 2 * frame + 2 * BLOCK
    path.write_bytes(path.read_bytes()[:end])
    assert len(sequence_index.read_index([str(path)])) == 1
    path.write_bytes(path.read_bytes()[: end - missing])
    with pytest.raises(UserError, match=r"a\.tar: "):
        sequence_index.read_index([str(path)])


def test_names_are_taken_as_they_are_where_they_have_no_wildcard(tmp_path: Path) -> None:
    """Keeps away: a file that is left out because nothing fits its name as a pattern."""
    one, other = shard(tmp_path / "a-000000.tar"), shard(tmp_path / "a-000001.tar", ("k-1",))
    both = [str(one), str(other)]
    for patterns in ([f"{tmp_path}/a-*.tar"], [f"{tmp_path}/a-00000?.tar"],
                     [f"{tmp_path}/a-00000[01].tar"], [f"{tmp_path}/a-{{000000..000001}}.tar"],
                     both, [*both, both[0]]):  # fmt: skip
        assert sequence_index.expand(patterns) == both
    for missing in (f"{tmp_path}/b.tar", f"{tmp_path}/b-*.tar", f"{tmp_path}/a-{{000000,2}}.tar"):
        with pytest.raises(UserError, match="no such file"):
            sequence_index.expand([missing])


names_of_files = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"])).filter(
    lambda name: name not in ("", ".", "..") and len(name.encode()) < 200
)


def escaped(name: str) -> str:
    """The pattern that stands for this name alone."""
    return re.sub(r"([\\{},])", r"\\\1", glob.escape(name))


@hypothesis.settings(max_examples=30)
@given(names_of_files)
@example("o[ut]")
@example("o{a,b}")
@example("o{1..3}")
@example("{")
@example(r"a\{b")
@example("a*b?")
def test_a_folder_of_any_name_is_read(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Keeps away: "no such file" of a file that is there, as `o[ut]` or `o{a,b}` is in its path."""
    folder = tmp_path_factory.mktemp("out") / name / "shards"
    folder.mkdir(parents=True)
    both = [str(folder / f"train-00000{i}.tar") for i in range(2)]
    for path in both:
        storage.write_bytes(path, b"")
    assert sequence_index.expand(both) == both
    for last in ("train-*.tar", "train-{000000..000001}.tar", "train-00000[01].tar"):
        assert sequence_index.expand([f"{folder}/{last}"]) == both
        assert sequence_index.expand([f"{escaped(str(folder))}/{last}"]) == both
    for path in both:
        storage.write_bytes(str(folder.parent / f"{name}{path[-5:]}"), b"")
    assert len(sequence_index.expand([f"{escaped(str(folder.parent / name))}?.tar"])) == 2


@pytest.mark.parametrize(
    "pattern",
    [
        "train-{0..99999999}.tar",
        "{0..999}{0..999}.tar",
        "{{0..999}{0..999},b}.tar",
        "{a..Z}{a..Z}{a..Z}.tar",
        "{0..100000}",
        f"{{0..{'9' * 4000}}}",
    ],
)
def test_a_brace_expression_is_bounded_before_it_is_expanded(pattern: str) -> None:
    """Keeps away: 6 GB of names, and then a MemoryError, for a slip of the keyboard."""
    with pytest.raises(UserError, match=r"stands for more than 100,000 names\. Name fewer"):
        sequence_index.expand([pattern])


def test_as_many_names_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_index, "MAX_NAMES", 4)
    assert sequence_index._braces("{0..3}") == ["0", "1", "2", "3"]
    with pytest.raises(UserError, match="stands for more than 4 names"):
        sequence_index._braces("{0..4}")


@given(
    st.recursive(
        st.sampled_from(["", "a", "0..3", "5..1..2", "a..c", "{x}", "\\{", "\\,"]),
        lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
            lambda parts: st.sampled_from([f"{{{','.join(parts)}}}", "".join(parts)])
        ),
        max_leaves=8,
    )
)
def test_names_are_counted_as_they_are_made(pattern: str) -> None:
    """Keeps away: a bound that refuses what is small, or lets pass what is large."""
    made = list(braceexpand.braceexpand(pattern))
    count = sequence_index._number_of_names(pattern)
    assert count == len(made) if "a..c" not in pattern else count >= len(made)


def test_splits_that_are_there_are_named(tmp_path: Path) -> None:
    """Keeps away: "Quote it" of a quoted pattern, where the folder has other splits; and a name
    of an option, where several options take patterns.
    """
    for name in ("train-000000.tar", "train-000001.tar", "test-000000.tar"):
        (tmp_path / name).touch()
    with pytest.raises(
        UserError, match=r"^/\S*val-\*\.tar: no such file; found: test-\*\.tar, train-\*\.tar\."
    ):
        sequence_index.expand([f"{tmp_path}/val-*.tar"])


def test_a_plain_name_is_asked_of_no_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a bucket of a million objects that is listed for each shard by name."""
    path = str(shard(tmp_path / "a.tar"))
    monkeypatch.setattr(sequence_index.storage, "glob", lambda path: pytest.fail("listed"))
    assert sequence_index.expand([path]) == [path]


def test_progress_counts_shards(tmp_path: Path) -> None:
    for i in range(3):
        shard(tmp_path / f"a-{i}.tar", (f"k-{i}",))
    seen: list[tuple[int, int]] = []
    sequence_index.read_index([f"{tmp_path}/*.tar"], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.f00.png"], "a has no usable .json"),
        (["a.json", "a.json"], "a.json twice"),
        (["a.json", "a.f01.png"], "a has no frames"),
        (["a.json", "a.mask.png"], "a has no frames"),
    ],
)
def test_what_is_no_sample_is_named(tmp_path: Path, names: list[str], message: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as opened:
        for name in names:
            member = tarfile.TarInfo(name)
            content = b"{}" if name.endswith("json") else b""
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    with pytest.raises(UserError, match=message):
        sequence_index.read_index([str(tmp_path / "a.tar")])


def test_an_empty_shard_has_no_samples(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", ())
    with pytest.raises(UserError, match="no samples"):
        sequence_index.read_index([str(path)])


def test_images_are_read_from_their_places(tmp_path: Path) -> None:
    frames = [np.full((8, 8, 3), 10 * i, np.uint8) for i in range(3)]
    with tar.write_shard(str(tmp_path / "a.tar")) as (writer, _):
        members = {f"f{i:02d}.png": encode_image(f, "png", 90) for i, f in enumerate(frames)}
        mask = {"mask.png": members["f01.png"], "facts.txt": b"no image"}
        writer.add("k", {"json": b"{}", **dict(reversed(members.items())), **mask})
    [sample] = sequence_index.read_index([str(tmp_path / "a.tar")])
    assert sample.frames == ["f00.png", "f01.png", "f02.png"]
    for name, frame in zip(sample.frames, frames, strict=True):
        assert np.array_equal(sample.image(name), frame)
    with pytest.raises(UserError, match=r"k\.facts\.txt is no image"):
        sample.image("facts.txt")


def write(folder: Path, numbers: range, split: str = "train", index: int = 0) -> Path:
    path = folder / f"{split}-{index:06d}.tar"
    with tar.write_shard(str(path)) as (writer, _):
        for i in numbers:
            kind = "no_change" if i % 2 else "change"
            pair = ImagePair("d", split, str(i // 2), kind, "b", "a", (f"caption {i}",))
            frames = np.full((3, 32, 40, 3), 10 * i, np.uint8)
            writer.add(pair.key, sequences.encode(FrameSequence(pair, frames), "png", 95, {}))
    return path


def test_the_index_reads_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, range(4))
    write(tmp_path, range(4, 6), index=1)
    samples = sequence_index.read_index([f"{tmp_path}/train-{{000000..000001}}.tar"])
    assert [s.meta["captions"] for s in samples] == [[f"caption {i}"] for i in range(6)]
    assert samples == sequence_index.read_index([f"{tmp_path}/*.tar"])
    for i, sample in enumerate(samples):
        assert sample.frames == ["f00.png", "f01.png", "f02.png"]
        assert (sample.image("f01.png") == 10 * i).all()


def test_what_is_no_shard(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        sequence_index.read_index([f"{tmp_path}/*.tar"])
    whole = write(tmp_path, range(3)).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.tar"):
        sequence_index.read_index([str(cut)])
    (tmp_path / "text.tar").write_text("hello " * 200)
    with pytest.raises(UserError, match=r"text\.tar"):
        sequence_index.read_index([str(tmp_path / "text.tar")])
    with tarfile.open(tmp_path / "link.tar", "w") as file:
        link = tarfile.TarInfo("a.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    with pytest.raises(UserError, match="no regular file"):
        sequence_index.read_index([str(tmp_path / "link.tar")])


def test_a_job_that_is_not_done_is_not_trained_on(tmp_path: Path) -> None:
    """Keeps away: a training on half of the shards, because their job was killed."""
    for name in ("train-000000", "val-000000"):
        shard(tmp_path / f"{name}.tar")
    planned = dict.fromkeys(("train-000000", "train-000001", "val-000000"), 1)
    provenance.write(str(tmp_path), {"complete": False, "planned": planned})
    with pytest.raises(UserError, match=r"train-000001\.tar is planned and .* the first of 1"):
        sequence_index.expand([f"{tmp_path}/train-*.tar"])
    for whole in ("val-*.tar", "train-000000.tar", "train-00000{0..0}.tar"):
        assert len(sequence_index.expand([f"{tmp_path}/{whole}"])) == 1
    (tmp_path / provenance.FILE).write_text("[]")
    with pytest.raises(UserError, match="no provenance"):
        sequence_index.expand([f"{tmp_path}/val-*.tar"])


def test_a_shard_of_another_folder_is_not_the_missing_one(tmp_path: Path) -> None:
    """Keeps away: a data set of which half is read, because another one has shards of those
    names."""
    names = ("train-000000", "train-000001")
    for folder, members in (("one", names), ("other", names[:1])):
        (tmp_path / folder).mkdir()
        provenance.write(str(tmp_path / folder), {"planned": dict.fromkeys(names, 1)})
        for name in members:
            shard(tmp_path / folder / f"{name}.tar")
    assert len(sequence_index.expand([f"{tmp_path}/on*/train-*.tar"])) == 2
    with pytest.raises(UserError, match=r"^/\S*tar: \S*/other/train-000001\.tar is planned"):
        sequence_index.expand([f"{tmp_path}/o*/train-*.tar"])
