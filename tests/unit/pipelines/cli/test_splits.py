"""`split` keeps together what looks alike; `references` writes the official ids."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep import datasets, manifest
from cc_prep.datasets import splitting
from cc_prep.datasets.layouts import folders, table
from cc_prep.errors import UserError
from cc_prep.records import CHANGE, ImagePair
from tests import commands
from tests.conftest import Command
from tests.dataset_factory import MAKERS, image, write


def photograph(path: Path, seed: int, noise: int = 0) -> None:
    """A smooth image by its seed; with noise a near duplicate of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    pixels = cv2.resize(coarse, (96, 96), interpolation=cv2.INTER_CUBIC).astype(int)
    pixels += np.random.default_rng(noise).integers(-3, 4, pixels.shape) if noise else 0
    cv2.imwrite(str(path), pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty pairs of ten scenes, three near duplicates each, in folders."""
    root = tmp_path_factory.mktemp("scenes")
    for i in range(30):
        photograph(root / f"before/site{i % 10}_{i:02d}.png", 1 + i % 10, noise=100 + i)
        photograph(root / f"after/site{i % 10}_{i:02d}.png", 50 + i)
    return root


SHARES = {"train": 8, "test": 2}


def test_near_duplicates_stay_together(scenes: Path) -> None:
    settings = manifest.load("own", ["layout=folders"], root=str(scenes))
    pairs = folders.every_pair(settings)
    division = splitting.split(settings, pairs, SHARES)
    split_of = {id: split for split, ids in division.splits.items() for id in ids}
    assert sorted(split_of) == sorted(pair.id for pair in pairs)
    for site in range(10):
        assert len({split_of[f"site{site}_{i:02d}"] for i in range(site, 30, 10)}) == 1
    assert division.about["pairs"] == {"train": 24, "test": 6}
    assert division.about["clusters"] == 10
    assert division.about["pairs with near duplicates"] == 30
    assert splitting.split(settings, pairs, SHARES).splits == division.splits
    assert splitting.split(settings, pairs, SHARES, seed=1).splits != division.splits
    # Without a look at the images they are torn apart.
    blind = splitting.split(settings, pairs, SHARES, distance=None)
    assert blind.about["clusters"] == 30


def test_one_cluster_of_all_is_refused(scenes: Path) -> None:
    settings = manifest.load("own", ["layout=folders"], root=str(scenes))
    pairs = folders.every_pair(settings)
    with pytest.raises(UserError, match=r"30 of 30 pairs share a group: .* Let the groups tell"):
        splitting.split(settings, pairs, SHARES, groups={pair.id: "one" for pair in pairs})
    with pytest.raises(UserError, match=r"30 of 30 pairs look alike or share .* Lower --distance"):
        splitting.split(settings, pairs, SHARES, distance=64)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 9), min_size=1),
    st.integers(0, 5),
)
@settings(max_examples=150)
def test_groups_are_never_torn(members: list[int], shares: dict[str, float], seed: int) -> None:
    pairs = [ImagePair("d", "s", str(i), CHANGE, "b", "a") for i in range(len(members))]
    groups = {str(i): str(group) for i, group in enumerate(members)}
    settings = manifest.load("own")
    try:
        division = splitting.split(settings, pairs, shares, seed=seed, distance=None, groups=groups)
    except UserError:
        largest = max(members.count(one) for one in members)
        assert largest > max(shares.values()) / sum(shares.values()) * len(members)
        return
    split_of = {id: split for split, ids in division.splits.items() for id in ids}
    assert split_of.keys() == groups.keys()
    for group in groups.values():
        assert len({split_of[id] for id in groups if groups[id] == group}) == 1


def test_a_column_groups(tmp_path: Path) -> None:
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["before", "after", "site", "id"])
        for i in range(6):
            image(tmp_path / f"{i}.png", i)
            rows.writerow([f"{i}.png", f"{i}.png", i % 2, i])
    settings = manifest.load("own", root=str(tmp_path))
    assert table.groups(settings, "site") == {str(i): str(i % 2) for i in range(6)}
    with pytest.raises(UserError, match=r"no column 'place'\. It has: before, after, site, id"):
        table.groups(settings, "place")


def test_a_column_that_rows_of_a_pair_leave_out_or_disagree_on(tmp_path: Path) -> None:
    """Keeps away: a group in two splits, and one large group of all pairs without one."""
    lines = ["before,after,site,id", "a.png,b.png,A,1", "a.png,b.png,,1", "c.png,d.png,A,2"]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join([*lines, "e.png,f.png,,3"]))
    settings = manifest.load("own", root=str(tmp_path))
    assert table.groups(settings, "site") == {"1": "A", "2": "A"}
    path.write_text("\n".join([*lines, "a.png,b.png,B,1"]))
    with pytest.raises(UserError, match="line 5: '1' is in an earlier row with another site"):
        table.groups(settings, "site")


def test_pairs_without_a_group_are_counted(tmp_path: Path) -> None:
    """Keeps away: a division that is called grouped by a column which is empty by mistake."""
    path = tmp_path / "pairs.csv"
    lines = ["before,after,site,id", *(f"{i}.png,{i}.png,,{i}" for i in range(6))]
    path.write_text("\n".join(lines))
    command = ("split", "own", "--root", tmp_path, "--group", "site", "--distance=none")
    command = (*command, "--shares", "train=2,test=1")
    done = commands.cc_prep(*command)
    assert done.returncode == 2
    assert f"{path}: column 'site' is empty. Fill it, or leave out --group" in done.stderr
    path.write_text("\n".join([*lines[:5], "4.png,4.png,A,4", "5.png,5.png,A,5"]))
    done = commands.cc_prep(*command)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "splits.json").read_text())["about"]
    assert (about["groups"], about["without a group"]) == (1, 4)
    assert re.search("without a group +4", done.stdout)


def test_one_folder_of_a_split(tmp_path: Path, scenes: Path) -> None:
    """Keeps away: a split file whose ids no pair has once the manifest names it."""
    shutil.copytree(scenes, tmp_path / "train")
    folder_options = ("--set", "layout=folders", "--shares", "train=2,test=1")
    done = commands.cc_prep("split", "own", "--root", tmp_path, *folder_options, "--distance=none")
    assert done.returncode == 0, done.stderr
    settings = manifest.load(
        "own", ["layout=folders", "split_file=splits.json"], root=str(tmp_path)
    )
    assert len(datasets.pairs(settings, "test")) == 10


def test_a_folder_that_is_no_split_afterwards(tmp_path: Path) -> None:
    """Keeps away: "no folders before and after" once the manifest says what `split` printed."""
    for i in range(6):
        photograph(tmp_path / f"all/before/{i}.png", i)
        photograph(tmp_path / f"all/after/{i}.png", 10 + i)
    (tmp_path / "all/after/6.heic").touch()
    options = ("--root", tmp_path, "--set", "layout=folders", "--shares", "train=2,test=1")
    done = commands.cc_prep("split", "own", *options, "--set", "splits=[all]")
    assert done.returncode == 0, done.stderr
    keys = ["layout=folders", "split_file=splits.json", "splits=[train,test]"]
    settings = manifest.load("own", keys, root=str(tmp_path))
    assert len(datasets.pairs(settings, "train")) == 4
    assert folders.faults(settings) == ["all/after/6.heic has no ending of an image"]
    with pytest.raises(UserError, match=r"Set splits: \[test, train\] in the manifest"):
        datasets.pairs(manifest.load("own", [*keys, "splits=[all]"], root=str(tmp_path)), "all")
    before = (tmp_path / "splits.json").read_bytes()
    again = commands.cc_prep("split", "own", *options, "--set", "splits=[train,test]")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "splits.json").read_bytes() == before


def test_the_commands(
    tmp_path: Path, scenes: Path, cc_prep: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cc_prep("init", "mine", "--root", scenes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "manifests/mine.yaml: folders, pairs: train 30" in done.stdout
    assert (
        "There is one split. To divide it: cc-prep split mine --write\nNext: cc-prep" in done.stdout
    )
    monkeypatch.chdir(tmp_path)
    again = commands.cc_prep("init", "mine", "--root", scenes)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    # A manifest of ours by this name would mean other data from then on.
    ours = commands.cc_prep("init", "clevr", "--root", scenes)
    assert (ours.returncode, "of the package has this name" in ours.stderr) == (2, True)
    # Who works in a clone writes into the folder of the package.
    monkeypatch.setattr(manifest, "packaged", lambda: {"mine"})
    again = commands.cc_prep("init", "mine", "--root", scenes)
    assert "manifests/mine.yaml: already exists. Give another NAME or --out, or" in again.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    shutil.copytree(scenes, data)
    options = ("--root", data, "--shares", "train=2,test=1")
    split = commands.cc_prep("split", "mine", *options, "--group-by", r"site(\d)")
    assert split.returncode == 0, split.stdout + split.stderr
    assert "train 21, test 9" in split.stdout
    assert "split_file: splits.json\n  splits: [train, test]\n" in split.stdout
    written = commands.cc_prep("split", "mine", *options, "--group-by", r"site(\d)", "--write")
    assert (written.returncode, "written into manifests/mine.yaml" in written.stdout) == (0, True)
    mine = manifest.load("mine", root=str(data))
    assert (mine.split_file, mine.splits) == ("splits.json", ("train", "test"))
    assert len(datasets.pairs(mine, "test")) == 9
    theirs = commands.cc_prep("split", "own", *options, "--set", "layout=folders", "--write")
    assert (theirs.returncode, "own is a manifest of the package" in theirs.stderr) == (2, True)
    listed = json.loads((data / "splits.json").read_text())
    assert listed["about"]["grouped by"] == r"site(\d)"
    settings = manifest.load(
        str(tmp_path / "manifests/mine.yaml"),
        ["split_file=splits.json", "splits=[train,test]"],
        root=str(data),
    )
    assert len(datasets.pairs(settings, "test")) == 9
    other = commands.cc_prep("split", "mine", *options, "--seed", 1)
    assert (other.returncode, "splits.json: holds another division" in other.stderr) == (2, True)
    assert json.loads((data / "splits.json").read_text()) == listed, "trained on, and still needed"
    same = commands.cc_prep("split", "mine", *options, "--group-by", r"site(\d)")
    assert same.returncode == 0, same.stderr
    (data / "before/site0_00.png").write_bytes(b"no image")
    faulty = commands.cc_prep("split", "mine", *options, "--out", "faulty.json")
    assert faulty.returncode == 1
    assert "1 images were not compared" in faulty.stderr
    assert "site0_00.png" in faulty.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--shares", "train"],
            "--shares train: 'train' is no name of a split with a number above 0. Use, for example",
        ),
        (
            ["--shares", "train=100,val=0"],
            "'val=0' is no name of a split with a number above 0. Use, for example, --shares "
            "train=85,val=5,test=10, and leave out a split that is to be empty",
        ),
        (
            ["--shares", "train=80,train=20,test=5"],
            "--shares train=80,train=20,test=5: train is named twice. Name each split once",
        ),
        (["--distance", "x"], "--distance x. Give 0 to 64 bits, or none"),
        (["--group-by", "("], "Give a regular expression"),
        (["--group-by", "^site"], "finds nothing in 30 paths, such as before/site0_00.png. Let it"),
        (["--group", "site"], "folders has no columns. Use --group-by"),
        (["--group", "a", "--group-by", "b"], "Give one of them"),
        (
            ["--set", "layout=levir_cc"],
            "levir_cc comes with its splits. Use them as they are, or change the `split` of an "
            "image in LevirCCcaptions.json, and move its images",
        ),
        (
            ["--set", "layout=levir_cc", "--set", "levir.before=A"],
            "change the `split` of an image in LevirCCcaptions.json\n",
        ),
        (["--set", "layout=spot_the_diff"], "comes with its splits. Use them as they are\n"),
    ],
)
def test_mistakes_of_split(scenes: Path, options: list[str], message: str) -> None:
    done = commands.cc_prep("split", "own", "--root", scenes, "--set", "layout=folders", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_splits_that_are_there_are_kept(tmp_path: Path) -> None:
    """Keeps away: "drop its split column", and no word of how."""
    MAKERS["own"](tmp_path)
    options = ("split", "own", "--root", tmp_path)
    done = commands.cc_prep(*options)
    remedy = "--set table.columns.split=null"
    assert (done.returncode, done.stderr.endswith(f"do not read that column: {remedy}\n")) == (
        2, True
    )  # fmt: skip
    done = commands.cc_prep(*options, *remedy.split(), "--shares", "train=1,dev=1")
    assert done.returncode == 0, done.stderr
    assert "splits: [train, dev]" in done.stdout
    settings = manifest.load(
        "own", ["split_file=splits.json", "splits=[train, dev]"], str(tmp_path)
    )
    assert all(datasets.pairs(settings, split) for split in settings.splits)


def test_splits_of_files_and_folders_are_kept(tmp_path: Path) -> None:
    rows = "before,after,caption\n{0}/before/0.png,{0}/after/0.png,a tree grew\n"
    for i, split in enumerate(("train", "test")):
        (tmp_path / f"{split}.csv").write_text(rows.format(split))
        photograph(tmp_path / split / "before/0.png", i)
        photograph(tmp_path / split / "after/0.png", 10 + i)
    options = ("split", "own", "--root", tmp_path, "--set", "splits=[train, test]")
    done = commands.cc_prep(*options, "--set", "layout=folders")
    assert done.returncode == 2
    assert "own has splits already. Put the pairs of all its folders into one\n" in done.stderr
    done = commands.cc_prep(*options, "--set", 'table.file="{split}.csv"')
    assert "Let the manifest's table.file have * in place of {split}" in done.stderr
    for split in ("train", "test"):  # the same names in each split's own folder
        (tmp_path / f"{split}.csv").write_text(rows.format("."))
    folder = ("--set", 'table.file="{split}.csv"', "--set", 'table.folder="{split}"')
    done = commands.cc_prep(*options, *folder)
    assert "Put the images of all splits into one folder, and let one table" in done.stderr
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(rows.format(split))
    done = commands.cc_prep(*options, "--set", 'table.file="*.csv"', "--shares", "train=1,dev=1")
    assert done.returncode == 0, done.stderr


def test_a_split_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """Keeps away: each caption twice, and our keys in place of ids that then stand twice."""
    MAKERS["levir"](tmp_path)
    for name, options in {"one": ["--split=test"], "two": ["--split=test"] * 2}.items():
        options += ["--root", str(tmp_path), "--out", str(tmp_path / name)]
        done = commands.cc_prep("references", "levir", *options)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_reference_files(tmp_path: Path) -> None:
    MAKERS["clevr"](tmp_path)
    out = tmp_path / "test.json"
    done = commands.cc_prep(
        "references", "clevr", "--root", tmp_path, "--split", "test", "--out", out
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert [row["id"] for row in written["images"]] == ["000003.png", "000003.png_n"]
    assert written["images"][0]["change_type"] == "move"
    assert len(written["annotations"]) == 3
    write(tmp_path / "change_captions.json", {})
    write(tmp_path / "no_change_captions.json", {})
    none = commands.cc_prep("references", "clevr", "--root", tmp_path, "--out", out)
    assert (none.returncode, "no captions in it" in none.stderr) == (2, True)


def test_a_split_without_pairs_is_named_and_left_out(tmp_path: Path) -> None:
    """Keeps away: a split that the manifest names, and that `inspect` and the training then miss.

    And names that YAML reads as numbers.
    """
    lines = ["before,after", *(f"b{i}.png,a{i}.png" for i in range(4))]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    options = ("--distance=none", "--shares", "2019=85,val=5,test=20")
    done = commands.cc_prep("split", "own", "--root", tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert 'splits: ["2019", test]\n' in done.stdout
    assert "note: no pairs for val: 4 clusters are too few" in done.stdout
    keys = ["split_file=splits.json", 'splits=["2019",test]']
    assert len(datasets.pairs(manifest.load("own", keys, root=str(tmp_path)), "2019")) == 3


def test_a_manifest_that_no_command_would_take_is_not_written(tmp_path: Path, scenes: Path) -> None:
    """Keeps away: `Next: cc-prep inspect foo` for a file that is then no manifest."""
    done = commands.cc_prep("init", "mine", "--root", scenes, "--out", tmp_path / "foo")
    assert done.returncode == 2
    assert f"not the name of a YAML file. Give --out {tmp_path}/foo.yaml" in done.stderr
    assert not (tmp_path / "foo").exists()


def test_a_table_that_is_called_after_its_split_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: `init` that advises a division after which no table is found."""
    rows = []
    for number in range(6):
        for side in "ab":
            image(tmp_path / f"data/train/{number}{side}.png", 2 * number + (side == "b"))
        rows.append(
            {"image_a": f"{number}a.png", "image_b": f"{number}b.png", "caption": "it moved"}
        )
    write(tmp_path / "data/train.json", rows)
    monkeypatch.chdir(tmp_path)
    done = commands.cc_prep("init", "mine", "--root", "data")
    assert "To divide it: cc-prep split mine --write" in done.stdout, done.stderr
    for _ in range(2):  # again, as after an image was mended
        done = commands.cc_prep("split", "mine", "--write", "--shares", "train=1,test=1")
        assert done.returncode == 0, done.stderr
    done = commands.cc_prep("inspect", "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    mine = manifest.load("mine")
    assert (mine.table.file, mine.table.folder) == ("train.json", "train")
    assert [len(datasets.pairs(mine, split)) for split in mine.splits] == [3, 3]
