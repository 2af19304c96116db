"""Data as they are published now, from a folder to pairs by what `cc-prep init` finds out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cc_prep import datasets, manifest
from cc_prep.datasets import detect_layout, proposals
from cc_prep.datasets.detect_layout import Recognised
from cc_prep.errors import UserError
from cc_prep.inspect import inspection
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from tests import hub_tables
from tests.dataset_factory import image, write
from tests.hub_tables import SENTENCES
from tests.server_factory import DatasetHub, serving


def found(make: Callable[[Path], None], root: Path) -> tuple[Recognised, list[ImagePair]]:
    """What `init` writes for a folder, and the pairs that its manifest then gives."""
    make(root)
    recognised = detect_layout.recognise("mine", str(root))
    file = root.parent / f"{root.name}.yaml"
    file.write_text(recognised.text)
    settings = manifest.load(str(file))
    pairs = [pair for split in settings.splits for pair in datasets.pairs(settings, split)]
    assert inspection.inspect(settings, settings.splits).faults == []
    return recognised, pairs


def test_images_in_tables(tmp_path: Path) -> None:
    """Keeps away: 289 kB of PNG bytes in a message for the struct of an image."""
    recognised, pairs = found(hub_tables.diffspot, tmp_path / "d")
    assert recognised.pairs == {"train": 8, "test": 3}
    settings = recognised.settings
    assert settings.table.file == "data/{split}-*.parquet"
    assert settings.table.columns == {
        "before": "image_before", "after": "image_after", "caption": "ground_truth_diff",
        "change_type": "task_type",
    }  # fmt: skip
    assert settings.shards.shuffle_seed is None
    assert pairs[5].before == "data/train-00001-of-00002.parquet#row=000000000,image_before"
    assert (pairs[5].id, pairs[5].captions) == ("train-00001-of-00002_000000", (SENTENCES[1],))
    assert [pair.kind for pair in pairs[:6]] == [CHANGE, NO_CHANGE, *[CHANGE] * 3, NO_CHANGE]
    loaded = datasets.LoadedPairs(settings.root, pairs, None)
    assert (loaded[5].before == loaded[5].after).all()
    assert (loaded[4].before != loaded[4].after).any()


def test_lists_of_images_with_a_conversation(tmp_path: Path) -> None:
    recognised, pairs = found(hub_tables.mantis, tmp_path / "d")
    assert recognised.pairs == {"train": 6}
    assert recognised.settings.table.file == "{split}-*.parquet"
    assert pairs[2].after == "train-00000-of-00001.parquet#row=000000002,images[1]"
    assert pairs[2].captions == (SENTENCES[2],)


def test_folders_with_metadata(tmp_path: Path) -> None:
    recognised, pairs = found(hub_tables.imagefolder, tmp_path / "d")
    assert recognised.pairs == {"train": 4, "validation": 2, "test": 2}
    assert recognised.settings.table.folder == "{split}"
    assert (pairs[0].before, pairs[0].captions) == ("train/before/0.png", (SENTENCES[0],))
    assert [pair.kind for pair in pairs].count(NO_CHANGE) == 3
    assert any("3 pairs of 8 without a mark count as unchanged" in s for s in recognised.remarks)


def test_conversations_with_several_questions(tmp_path: Path) -> None:
    """Keeps away: "3" as a caption, learned beside what changed."""
    recognised, pairs = found(hub_tables.conversations, tmp_path / "d")
    assert recognised.pairs == {"train": 6}
    assert recognised.settings.table.folder == "images"
    assert pairs[0].captions == (SENTENCES[0], "3")
    [remark] = [one for one in recognised.remarks if "questions" in one]
    assert "2 questions, of which every answer counts as a caption" in remark
    assert '{"conversations[0].value": describe}' in remark
    path = str(tmp_path / "d.yaml")
    chosen = manifest.load(path, ['table.rows={"conversations[0].value": describe}'])
    pairs = datasets.pairs(chosen, "train")
    assert [pair.captions for pair in pairs[:2]] == [(SENTENCES[0],), (SENTENCES[1],)]
    assert [pair.kind for pair in pairs[:2]] == [CHANGE, NO_CHANGE]
    none = manifest.load(path, ["table.rows={id: nothing}"])
    with pytest.raises(UserError, match=r"no row fits table\.rows"):
        datasets.pairs(none, "train")


def test_items_whose_paths_begin_at_the_root(tmp_path: Path) -> None:
    recognised, pairs = found(hub_tables.c3_bench, tmp_path / "d")
    assert recognised.settings.table.file == "data/items.json"
    assert (pairs[1].id, pairs[1].change_type) == ("1", "signs")
    assert pairs[0].captions == (SENTENCES[0], "another")


def test_captions_in_karpathys_form_under_any_name(tmp_path: Path) -> None:
    """Keeps away: "no known layout; dataset_karp.json in it" of what our reader can take."""
    recognised, pairs = found(hub_tables.karpathy, tmp_path / "d")
    assert recognised.pairs == {"train": 2, "val": 1, "test": 1}
    levir = recognised.settings.levir
    assert (levir.captions, levir.before, levir.mask) == ("dataset_karp.json", "imgs/A", None)
    assert [pair.kind for pair in pairs] == [CHANGE, NO_CHANGE, CHANGE, CHANGE]
    assert recognised.settings.train.keys() == manifest.load("pairs").train.keys()


def test_levir_under_another_name(tmp_path: Path) -> None:
    """Keeps away: Forest-Change taken for Spot-the-Diff, and rows that need a split and a flag."""
    recognised, pairs = found(hub_tables.forest_change, tmp_path / "d")
    assert recognised.pairs == {"train": 2, "val": 1, "test": 1}
    levir = recognised.settings.levir
    assert (levir.captions, levir.before) == ("ForestChatcaptions.json", "images/{split}/A")
    assert levir.mask == "images/{split}/label"
    assert pairs[0].mask == "images/train/label/train_0.png"


def test_pairs_with_masks_and_without_captions(tmp_path: Path) -> None:
    recognised, pairs = found(hub_tables.fotbcd, tmp_path / "d")
    assert recognised.pairs == {"train": 3, "val": 1, "test": 1}
    assert recognised.settings.levir.captions is None
    assert (pairs[0].captions, pairs[0].mask) == ((), "images/train/label/0.png")


def test_a_table_beside_folders_says_more(tmp_path: Path) -> None:
    """Keeps away: captions under other headers that nobody reads, since folders are there."""

    def make(root: Path) -> None:
        for i in range(3):
            for at, side in enumerate(("before", "after")):
                image(root / side / f"{i}.png", 10 * i + at)
        rows = [f"before/{i}.png;after/{i}.png;{SENTENCES[i]};val" for i in range(3)]
        (root / "list.csv").write_text("\n".join(["image1;image2;sentence;split", *rows]))

    recognised, pairs = found(make, tmp_path / "d")
    assert (recognised.settings.layout, recognised.pairs) == ("table", {"val": 3})
    assert [pair.captions for pair in pairs] == [(one,) for one in SENTENCES[:3]]


@pytest.mark.parametrize("folder", ["{side}", "{split}/{side}"])
def test_captions_in_karpathys_form_say_more_than_folders(tmp_path: Path, folder: str) -> None:
    """Keeps away: `folders, pairs: train 24`, with all captions and splits lost in silence."""
    root = tmp_path / "d"
    recognised, pairs = found(lambda d: hub_tables.karpathy(d, folder=folder), root)
    assert recognised.pairs == {"train": 2, "val": 1, "test": 1}
    assert (recognised.settings.layout, recognised.settings.levir.before) == (
        "levir_cc", folder.format(side="A", split="{split}")
    )  # fmt: skip
    assert pairs[0].captions == (SENTENCES[0],)
    assert not any("nobody reads" in remark for remark in recognised.remarks)
    value = json.loads((root / "dataset_karp.json").read_text())
    first, *rest = value["images"]
    first["filename"] = f"other_{first['filename']}"
    write(root / "dataset_karp.json", value)
    damaged = detect_layout.recognise("mine", str(root))
    assert damaged.settings.layout == "levir_cc", "one image that is missing is a fault of its own"
    assert damaged.pairs == recognised.pairs
    for row in rest:
        row["filename"] = f"other_{row['filename']}"
    write(root / "dataset_karp.json", value)
    others, _ = found(lambda _: None, root)
    assert others.settings.layout == "folders"
    assert any("nobody reads dataset_karp.json. docs/" in remark for remark in others.remarks)


def test_a_split_of_another_name_has_a_remedy(tmp_path: Path) -> None:
    """Keeps away: Karpathy's `restval` without a way on, and no note of an image in no row beside
    it."""

    root = tmp_path / "d"
    hub_tables.karpathy(root)
    value = json.loads((root / "dataset_karp.json").read_text())
    value["images"][0]["split"] = "restval"
    write(root / "dataset_karp.json", value)
    [folder] = {path.parent for path in root.rglob("train_0.png") if path.parent.name == "A"}
    (folder / "stray.png").write_bytes((folder / "train_0.png").read_bytes())
    recognised = detect_layout.recognise("mine", str(root))
    assert recognised.faults == [
        "dataset_karp.json: split restval of 1 pair is not in the manifest: add it to splits, or "
        "rename it"
    ]
    [note] = [one for one in recognised.remarks if "in no pair of the manifest's splits" in one]
    assert "A/stray.png" in note


def test_what_a_collecting_page_wrote(tmp_path: Path) -> None:
    """Keeps away: the folder of `cc-train serve --collect` taken for LEVIR-CC, with ProCap's
    settings."""

    def make(root: Path) -> None:
        hub_tables.karpathy(root, "LevirCCcaptions.json", "images/{split}/{side}")
        value = json.loads((root / "LevirCCcaptions.json").read_text())
        lines = [
            {"id": f"{i}", "before": f"images/{row['split']}/A/{row['filename']}",
             "after": f"images/{row['split']}/B/{row['filename']}", "kind": "change",
             "captions": ["a car came"], "split": row["split"]}
            for i, row in enumerate(value["images"])
        ]  # fmt: skip
        (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))

    recognised, _ = found(make, tmp_path / "d")
    assert (recognised.settings.layout, recognised.settings.table.file) == ("table", "pairs.jsonl")
    assert recognised.settings.captions.mark_unchanged is False


def test_images_that_are_not_there_are_named(tmp_path: Path) -> None:
    """Keeps away: "no known layout" of a table, or of captions, whose images lie elsewhere."""
    write(tmp_path / "t/list.json", [{"image_A": "x/1.png", "image_B": "y/1.png", "caption": "a"}])
    with pytest.raises(UserError, match=r"list\.json names images such as 'x/1\.png', which are"):
        detect_layout.recognise("mine", str(tmp_path / "t"))
    hub_tables.karpathy(tmp_path / "k")
    (tmp_path / "k/imgs/A").rename(tmp_path / "k/imgs/other")
    with pytest.raises(UserError, match=r"names images such as 'train_0\.png', which are in no"):
        detect_layout.recognise("mine", str(tmp_path / "k"))


def test_values_that_are_no_text_are_not_printed(tmp_path: Path) -> None:
    """Keeps away: a message as long as an image."""
    data = "x" * 300_000
    for value in ({"bytes": data}, [data], data):
        write(tmp_path / "pairs.jsonl", {"before": value, "after": "b.png"})
        settings = manifest.load("own", root=str(tmp_path))
        with pytest.raises(UserError) as caught:
            datasets.pairs(settings, "train")
        assert len(str(caught.value)) < 500


def test_a_data_set_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: tables that only a disk can hold, and all of a file for one image of it."""
    hub = pytest.importorskip("huggingface_hub")
    hub_tables.diffspot(tmp_path / "d")
    paths = (path for path in (tmp_path / "d").rglob("*") if path.is_file())
    files = {path.relative_to(tmp_path / "d").as_posix(): path.read_bytes() for path in paths}
    hub.HfFileSystem.clear_instance_cache()
    with serving(DatasetHub(files)) as server:
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub.constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        root = "hf://datasets/own/pairs"
        recognised = detect_layout.recognise("mine", root)
        assert recognised.pairs == {"train": 8, "test": 3}
        pairs = datasets.pairs(recognised.settings, "test")
        [*loaded] = datasets.LoadedPairs(root, pairs, None)
    assert [one.before.shape for one in loaded] == [(32, 32, 3)] * 3
    hub.HfFileSystem.clear_instance_cache()


def test_images_of_each_split_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """Keeps away: captions of the training that are read beside the images of the test, since these
    have the same names."""

    def make(root: Path) -> None:
        for split, value in (("train", 10), ("test", 200)):
            for side in "ab":
                image(root / f"{split}/0_{side}.png", value + (side == "b"))
            (root / f"{split}.csv").write_text("img_a,img_b,caption\n0_a.png,0_b.png,it moved\n")

    recognised, pairs = found(make, tmp_path / "d")
    assert recognised.settings.table.folder == "{split}"
    assert [pair.before for pair in pairs] == ["train/0_a.png", "test/0_a.png"]


def test_one_folder_for_all_splits_that_is_called_like_one(tmp_path: Path) -> None:
    """Keeps away: `{split}-site` of images that all lie in test-site."""

    def make(root: Path) -> None:
        for number, split in enumerate(("train", "test")):
            for side in "ab":
                image(root / f"test-site/{number}_{side}.png", 10 * number + (side == "b"))
            row = f"img_a,img_b,caption\n{number}_a.png,{number}_b.png,it moved\n"
            (root / f"{split}.csv").write_text(row)

    recognised, pairs = found(make, tmp_path / "d")
    assert recognised.settings.table.folder == "test-site"
    assert [pair.before for pair in pairs] == ["test-site/0_a.png", "test-site/1_a.png"]


@pytest.mark.parametrize("file", ["pairs.csv", "pairs.tsv", "LIST.CSV"])
def test_a_table_of_ours_with_other_columns_beside(tmp_path: Path, file: str) -> None:
    """Keeps away: a flag and captions that nobody reads, since the images are called as ours are,
    and a table by its ending alone that is none."""

    def make(root: Path) -> None:
        for i in range(2):
            for at, side in enumerate(("a", "b")):
                image(root / side / f"{i}.png", 10 * i + at)
        rows = ["before,after,description,changed", "a/0.png,b/0.png,a car left,True",
                "a/1.png,b/1.png,all is quiet,False"]  # fmt: skip
        text = "\n".join(rows)
        (root / file).write_text(text.replace(",", "\t") if file.endswith("tsv") else text)

    recognised, pairs = found(make, tmp_path / "d")
    assert [(pair.kind, pair.captions) for pair in pairs] == [
        ("change", ("a car left",)), ("no_change", ("all is quiet",)),
    ]  # fmt: skip
    what = "caption = description, kind = changed"
    assert f"{file}: {what}. Correct them in table.columns" in recognised.remarks


def test_a_column_that_differs_within_a_pair_is_none_of_it() -> None:
    """Keeps away: a table that is refused, since each caption of a pair has a topic of its own."""
    rows = [
        {"before": "a.png", "after": "b.png", "caption": "a car left", "topic": "vehicle"},
        {"before": "a.png", "after": "b.png", "caption": "a house", "topic": "building"},
    ]
    mapped = proposals.columns_of(rows)
    assert mapped is not None
    assert "change_type" not in mapped[0]
    assert "topic differs within a pair, and is not read as change_type" in mapped[1]


@pytest.mark.parametrize(
    ("first", "second", "swapped"),
    [
        ("img_2024", "img_2020", True),
        ("later", "earlier", True),
        ("t_2021-12-30", "t_2022-01-02", False),
        ("im_2020_512", "im_2024_256", False),
        ("x_30-12", "y_02-01", False),
    ],
)
def test_years_tell_the_order(first: str, second: str, swapped: bool) -> None:
    """Keeps away: the image after as the one before, by the order of columns."""
    mapped = proposals.columns_of([{first: "a.png", second: "b.png"}])
    assert mapped is not None
    expected = (second, first) if swapped else (first, second)
    assert (mapped[0]["before"], mapped[0]["after"]) == expected


def test_a_cell_of_the_first_row_may_be_empty() -> None:
    """Keeps away: captions and masks that are not read, since the first pair has none."""
    rows = [
        {"image_a": "a.png", "image_b": "b.png", "mask": "", "caption": None},
        {"image_a": "c.png", "image_b": "d.png", "mask": "m.png", "caption": "it moved"},
    ]
    mapped = proposals.columns_of(rows)
    assert mapped is not None
    assert mapped[0] == {
        "before": "image_a", "after": "image_b", "mask": "mask", "caption": "caption",
    }  # fmt: skip


def test_columns_in_another_language() -> None:
    """Keeps away: before and after swapped by the order of columns, and captions lost unsaid."""
    rows = [{"Bild_nachher": "b.png", "Bild_vorher": "a.png", "Beschreibung": "ein Auto fehlt"}]
    mapped = proposals.columns_of(rows)
    assert mapped is not None
    mapping, remarks = mapped
    assert mapping == {"before": "Bild_vorher", "after": "Bild_nachher"}
    assert remarks == [
        "no column is read as captions (columns left: Beschreibung). Name it in table.columns"
    ]
