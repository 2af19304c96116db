"""`init` recognises the layout of what lies there, and names what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cc_prep import datasets, manifest, manifest_text, settings
from cc_prep.datasets import detect_layout
from cc_prep.errors import UserError
from tests.conftest import write_video
from tests.dataset_factory import MAKERS, image

LAYOUTS = {
    "clevr": "clevr_change",
    "clevr_dc": "clevr_dc",
    "spot": "spot_the_diff",
    "edit": "image_editing",
    "levir": "levir_cc",
    "levir_mci": "levir_cc",
    "second_cc": "levir_cc",
    "whu_cdc": "levir_cc",
    "own": "table",
    "folders": "folders",
}


@pytest.mark.parametrize("name", list(MAKERS))
def test_every_layout_is_recognised(tmp_path: Path, name: str) -> None:
    known = MAKERS[name](tmp_path / "data of mine")
    recognised = detect_layout.recognise("mine", str(tmp_path / "data of mine"))
    assert recognised.settings.layout == LAYOUTS[name]
    assert recognised.settings.splits == ("train", "val", "test")
    for split, count in recognised.pairs.items():
        assert len(datasets.pairs(known, split)) == count
    (tmp_path / "mine.yaml").write_text(recognised.text)
    again = manifest.load(str(tmp_path / "mine.yaml"))
    assert again.root == str(tmp_path / "data of mine")
    # The settings of the reference come along; own data have those of the pair captioner.
    is_own = LAYOUTS[name] in detect_layout.OWN
    expected = manifest.load("pairs") if is_own else known
    assert (again.train.keys(), again.features) == (expected.train.keys(), expected.features)
    assert is_own or again.train == known.train
    assert (again.levir, again.masks) == (known.levir, known.masks)


@pytest.mark.parametrize("name", ["2024-01-15", "2024_01", "1e3", "null", "true"])
def test_names_that_yaml_reads_as_something_else(tmp_path: Path, name: str) -> None:
    """Keeps away: a manifest whose name is a date or a number."""
    MAKERS["own"](tmp_path / name)
    recognised = detect_layout.recognise(name, str(tmp_path / name))
    assert recognised.settings.name == name


@pytest.mark.parametrize("name", ["own", "folders", "levir_mci"])
def test_another_manifest_says_what_is_done_with_the_data(tmp_path: Path, name: str) -> None:
    """Keeps away: masks that are read as another data set's, and settings to be given by hand."""
    known = MAKERS[name](tmp_path / "data")
    text = detect_layout.recognise("mine", str(tmp_path / "data"), "pairs").text
    (tmp_path / "mine.yaml").write_text(text)
    mine, pairs = manifest.load(str(tmp_path / "mine.yaml")), manifest.load("pairs")
    assert (mine.name, mine.layout, mine.splits) == ("mine", LAYOUTS[name], known.splits)
    assert (mine.features, mine.image_size) == (pairs.features, pairs.image_size)
    # What no renderer made has no facts, and its words are to be learned.
    assert (mine.train["scorer"]["facts"], mine.train["chain"]["trunk_rate"]) == (None, 1.0)
    assert (pairs.train["scorer"]["facts"], pairs.train["chain"]["trunk_rate"]) == ({}, 0.0)
    assert mine.train["pair"] == pairs.train["pair"]
    assert mine.masks == known.masks
    for split in known.splits:
        assert len(datasets.pairs(mine, split)) == len(datasets.pairs(known, split))


def test_nothing_about_other_data_comes_along(tmp_path: Path) -> None:
    """Keeps away: the table, the split file or the lists of the manifest that is named."""
    MAKERS["folders"](tmp_path / "data")
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(
        "# theirs\nname: theirs\nlayout: table\nroot: elsewhere\nsplits:\n  - part\n"
        "table: {file: list.csv}\nsplit_file: splits.json\nexclude: bad.jsonl\noutside_root: true\n"
        "features:\n# a remark at the margin\n  backbone: vqgan\nimage_size: 64\n"
    )
    recognised = detect_layout.recognise("mine", str(tmp_path / "data"), str(theirs))
    mine = recognised.settings
    assert (mine.image_size, mine.features.backbone) == (64, "vqgan")
    assert mine.splits == ("train", "val", "test")
    assert (mine.split_file, mine.exclude, mine.outside_root) == (None, None, False)
    assert "list.csv" not in recognised.text


@pytest.mark.parametrize("name", ["a.mp4", "a.MPEG", "train/a.mp4"])
def test_videos_are_recognised(tmp_path: Path, name: str) -> None:
    """Keeps away: a video that one part of the toolkit reads and another passes over."""
    write_video(tmp_path / "a.mp4", 20)
    (tmp_path / "train").mkdir()
    (tmp_path / "a.mp4").rename(tmp_path / name)
    assert detect_layout.recognise("v", str(tmp_path)).settings.layout == "video"


def test_a_table_of_another_name_and_a_split_nobody_knows(tmp_path: Path) -> None:
    MAKERS["own"](tmp_path)
    text = (tmp_path / "pairs.csv").read_text().replace(",test", ",tset")
    (tmp_path / "my list.csv").write_text(text)
    (tmp_path / "pairs.csv").unlink()
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert recognised.settings.table.file == "my list.csv"
    assert recognised.pairs == {"train": 2, "val": 1}
    assert recognised.faults == ["split 'tset' of 1 pair is not in the manifest (train, val)"]


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("type_mapping.json", "looks like clevr_change: .* is there, but no type_mapping.json"),
        ("sc_images", "but no sc_images/"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, gone: str, message: str) -> None:
    MAKERS["clevr"](tmp_path)
    path = tmp_path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=message):
        detect_layout.recognise("mine", str(tmp_path))
    (tmp_path / "sc_images.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"sc_images\.zip in it\. Unpack it there"):
        detect_layout.recognise("mine", str(tmp_path))


def test_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(UserError, match=r"no known layout; readme\.txt in it"):
        detect_layout.recognise("mine", str(tmp_path))
    with pytest.raises(UserError, match="no folder"):
        detect_layout.recognise("mine", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="the name 'a b' is not allowed"):
        detect_layout.recognise("a b", str(tmp_path))


def test_a_table_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """Keeps away: "Add a table pairs.csv" where it is, with other columns."""
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "pairs.csv").write_text("vorher,nachher,text\n1,2,gone\n")
    with pytest.raises(UserError, match=r"pairs\.csv: no columns .*, but vorher, nachher, text\."):
        detect_layout.recognise("mine", str(tmp_path))
    (tmp_path / "pairs.csv").write_text("image1,image2,text\na.png,b.png,gone\n")
    with pytest.raises(UserError, match=r"pairs\.csv names images such as 'a\.png', which are not"):
        detect_layout.recognise("mine", str(tmp_path))


def test_splits_that_number_their_pairs_alike_are_two(tmp_path: Path) -> None:
    """Keeps away: a split dropped as another's second name because it has the same ids."""
    for split in ("train", "val"):
        for side in ("before", "after"):
            image(tmp_path / split / side / "0.png")
    assert detect_layout.recognise("mine", str(tmp_path)).pairs == {"train": 1, "val": 1}


@pytest.mark.parametrize(
    ("name", "file"), [("levir", "LevirCCcaptions.json"), ("spot", "annotations/val.json")]
)
def test_a_damaged_layout_says_what_is_wrong(tmp_path: Path, name: str, file: str) -> None:
    """Keeps away: a data set without a split because the split's file is damaged."""
    MAKERS[name](tmp_path)
    (tmp_path / file).write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        detect_layout.recognise("mine", str(tmp_path))


def test_a_table_says_more_than_the_folders_of_its_images(tmp_path: Path) -> None:
    """Keeps away: the captions, kinds and splits of a table, lost for the names of its folders."""
    for side in ("before", "after"):
        image(tmp_path / side / "1.jpg")
        image(tmp_path / side / "2.jpg")
    table = tmp_path / "pairs.csv"
    rows = ("before/1.jpg,after/1.jpg,gone,train", "before/2.jpg,after/2.jpg,gone,test")
    table.write_text("\n".join(("before,after,caption,split", *rows)))
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert (recognised.settings.layout, recognised.pairs) == ("table", {"train": 1, "test": 1})
    # Another name may be that of predictions, or of a part of the pairs.
    other = table.rename(tmp_path / "captions.csv")
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert recognised.settings.layout == "folders"
    assert any("nobody reads captions.csv" in one for one in recognised.remarks)
    other.rename(table).write_text("image1,image2\na.png,b.png\n")
    with pytest.raises(UserError, match=r"pairs\.csv: no columns before and after"):
        detect_layout.recognise("mine", str(tmp_path))


def test_a_table_without_splits_beside_folders_of_splits_is_a_fault(tmp_path: Path) -> None:
    """Keeps away: pairs of the test in the training, since a table of all pairs names no splits."""
    rows = ["before,after,caption"]
    for split in ("train", "test"):
        for side in ("before", "after"):
            image(tmp_path / split / side / "1.jpg")
        rows.append(f"{split}/before/1.jpg,{split}/after/1.jpg,gone")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert recognised.faults == [
        "pairs.csv: all its pairs are of the split train, and the folders are train and test. Add "
        "a column split"
    ]


@pytest.mark.parametrize("names", [("Training", "Test"), ("1", "2")])
def test_splits_of_a_table_may_have_any_names(tmp_path: Path, names: tuple[str, str]) -> None:
    """Keeps away: "without a pair in it" of a table whose splits are called in another way, and
    numbers in the manifest where names are meant."""
    MAKERS["own"](tmp_path)
    path = tmp_path / "pairs.csv"
    text = path.read_text().replace(",train", f",{names[0]}").replace(",val", f",{names[1]}")
    path.write_text(text.replace(",test", f",{names[1]}"))
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert recognised.pairs == {names[0]: 2, names[1]: 2}
    assert recognised.settings.splits == names
    assert recognised.faults == []


def test_a_folder_of_two_layouts_that_fits_neither(tmp_path: Path) -> None:
    """Keeps away: a sound row of one layout as the fault of another."""
    MAKERS["edit"](tmp_path)
    (tmp_path / "train.json").write_text('[{"uid": "1", "img0": "a.jpg", "img1": "b.jpg"}]')
    with pytest.raises(UserError, match=r"as image_editing: .* row 1 \(id 1\): no usable 'sents'"):
        detect_layout.recognise("mine", str(tmp_path))


@pytest.mark.parametrize(
    ("folders", "seen", "remedy"),
    [
        (("T1", "T2"), "T1/ (1 image), T2/ (1 image)", "If T1 holds the images before and T2"),
        (("im1", "im2"), "im1/ (1 image), im2/ (1 image)", "If im1 holds the images before"),
        (("After", "Before"), "After/ (1 image)", "If Before holds the images before and After"),
        (("x/before", "x/after"), "x/ (2 folders)", "Give {root}/x with --root"),
        (
            ("training/before", "training/after", "validation/A", "validation/B"),
            "training/ (2 folders), validation/ (2 folders)",
            "Rename training, validation to the splits' names: train, val, test",
        ),
        (("before", "Afters", "After"), "before/ is there, but no after/", "Rename After to after"),
        (("photos",), "photos/ (1 image)", "Add a table pairs.csv"),
    ],
)
def test_folders_that_are_called_otherwise_are_named(
    tmp_path: Path, folders: tuple[str, ...], seen: str, remedy: str
) -> None:
    """Keeps away: "no files in it" of a folder that is full of folders of images."""
    (tmp_path / ".git").mkdir()
    for folder in folders:
        image(tmp_path / folder / "1.png")
    with pytest.raises(UserError) as caught:
        detect_layout.recognise("mine", str(tmp_path))
    assert seen in caught.value.what
    assert caught.value.remedy.startswith(remedy.format(root=tmp_path))
    assert ".git" not in str(caught.value)


def test_a_folder_for_each_pair_becomes_a_table(tmp_path: Path) -> None:
    """Keeps away: the advice that one pair's folder is "before" and another's "after"."""
    for number in range(10):
        for side in ("before", "After"):
            image(tmp_path / f"plot{number}" / f"{side}.png")
    (tmp_path / "captions.tsv").touch()
    with pytest.raises(UserError, match="If each folder holds one pair, name them in") as caught:
        detect_layout.recognise("mine", str(tmp_path))
    assert "plot7/ (2 images), 2 other folders, captions.tsv in it" in str(caught.value)


def test_a_folder_of_levir_in_small_letters_is_named(tmp_path: Path) -> None:
    """Keeps away: a manifest without train, and no word of why."""
    MAKERS["levir"](tmp_path)
    (tmp_path / "images/train/A").rename(tmp_path / "images/train/a")
    recognised = detect_layout.recognise("mine", str(tmp_path))
    assert "train" not in recognised.pairs
    assert recognised.faults == [
        "LevirCCcaptions.json: split train of 2 pairs is not in the manifest: no folder "
        f"{tmp_path}/images/train/A, but a is there. Rename it to A"
    ]


@pytest.mark.parametrize("splits", [("Train", "TRAIN"), ("1a", "1A")])
def test_splits_that_differ_in_case_are_named(tmp_path: Path, splits: tuple[str, str]) -> None:
    """Keeps away: half of the training pairs in a split of their own, for a slip of the Shift."""
    rows = [f"{i}.png,b.png,{split}" for i, split in enumerate(splits)]
    (tmp_path / "pairs.csv").write_text("\n".join(["before,after,split", *rows]))
    with pytest.raises(UserError, match="differ in small and capital letters alone"):
        detect_layout.recognise("mine", str(tmp_path))


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("1:30")
@example("a\x85b\u2028c")
@example("~")
def test_any_text_is_a_value(text: str) -> None:
    """Keeps away: a name that YAML reads as something else, or not at all."""
    written = f"head: 1\nkey: {manifest_text.quoted(text)}\nlist: [{manifest_text.quoted(text)}]\n"
    assert settings.read(written, "mine.yaml") == {"head": 1, "key": text, "list": [text]}


@pytest.mark.parametrize("name", ["two\nlines: [", "# none", "0112"])
def test_a_root_of_any_name_is_written_and_read(tmp_path: Path, name: str) -> None:
    """Keeps away: "line 3: mapping values are not allowed here" in the manifest of `init`."""
    for side in ("before", "after"):
        image(tmp_path / name / side / "1.png")
    recognised = detect_layout.recognise("mine", str(tmp_path / name))
    assert manifest.build(recognised.text, "mine.yaml").root == str(tmp_path / name)


def test_a_relative_root_is_written_from_where_the_manifest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a manifest that names another folder than the one that was looked into."""
    MAKERS["folders"](tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    recognised = detect_layout.recognise("mine", "data", folder="manifests")
    assert "\nroot: ../data\n" in recognised.text
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/mine.yaml").write_text(recognised.text)
    assert manifest.load("mine").root == recognised.settings.root == "data"
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert manifest.load("../manifests/mine.yaml").root == "../data"


def test_hidden_files_are_no_videos(tmp_path: Path) -> None:
    """Keeps away: a damaged video for each that macOS put a file of its own beside."""
    write_video(tmp_path / "a.mp4", 20)
    (tmp_path / "._a.mp4").write_bytes(b"\0\5\x16\7")
    recognised = detect_layout.recognise("v", str(tmp_path))
    assert recognised.faults == []
    pairs = datasets.pairs(recognised.settings, "train")
    assert {pair.before.partition("#")[0] for pair in pairs} == {"a.mp4"}


def test_a_comment_may_say_what_a_key_says() -> None:
    """Keeps away: a manifest that loses its name, since a comment above has the same words."""
    text = "# name: mine\nname: mine\nsplits: [train]\n"
    assert manifest_text.with_values(text, {"splits": ["a"]}) == (
        "# name: mine\nname: mine\nsplits: [a]\n"
    )
