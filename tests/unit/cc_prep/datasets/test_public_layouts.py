"""Readers of the public data sets on miniatures in their layouts, and on real annotations."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import datasets, manifest
from cc_prep.datasets.layouts import clevr_dc as clevr_dc_reader
from cc_prep.errors import UserError
from cc_prep.inspect import audit
from cc_prep.inspect.inspection import inspect
from cc_prep.manifest import Manifest
from cc_prep.media import masks
from cc_prep.records import EMPTY_MASK
from tests.conftest import ROOT
from tests.dataset_factory import (
    MAKERS,
    edit,
    folders,
    image,
    levir,
    levir_mci,
    second_cc,
    spot,
    whu_cdc,
    write,
)

REAL = ROOT.parent / "shared" / "realdata"  # no licence: read where it stands, never copied


def test_spot_the_diff(tmp_path: Path) -> None:
    pairs = datasets.pairs(spot(tmp_path), "train")
    assert [(p.id, p.captions) for p in pairs] == [
        ("7", ("the car is gone", "no more car")),
        ("8", ("a man left.", "a dog came")),
    ]
    assert [(p.before, p.after) for p in pairs] == [
        ("resized_images/7.png", "resized_images/7_2.png"),
        ("resized_images/8.jpg", "resized_images/8_2.jpg"),
    ]
    joined = manifest.load("spot", ["captions.join=true"], root=str(tmp_path))
    assert datasets.pairs(joined, "train")[1].captions == ("a man left. a dog came",)
    faults = inspect(joined, joined.splits).faults
    assert "train: 1 empty sentence, left out" in faults
    assert "train: 1 pairs have several rows, taken as one pair each" in faults
    assert "8 is in train and in test" in faults


def test_image_editing(tmp_path: Path) -> None:
    settings = edit(tmp_path)
    [pair] = datasets.pairs(settings, "val")
    assert (pair.id, pair.before, pair.after) == (
        "Z_valid",
        "images/a b.jpg",
        "images/valid.jpg",
    )
    assert pair.captions == ("more light",)
    inspection = inspect(settings, settings.splits)
    assert inspection.faults == [
        *(f"{s}: 1 before images are in another split too" for s in ("val", "test")),
        "1 images are in several splits: Z_test (test) = Z_train (train) = Z_valid (val). Keep all "
        "pairs of an image in one split",
    ]
    assert inspection.image_sizes == {"32×32": 5}


def test_levir_cc(tmp_path: Path) -> None:
    settings = levir(tmp_path)
    pairs = datasets.pairs(settings, "train")
    assert [(p.id, p.kind) for p in pairs] == [
        ("train_000000", "no_change"),
        ("train_000003", "change"),
    ]
    assert pairs[0].after == "images/train/B/train_000000.png"
    assert pairs[0].captions[0] == "caption 0 ."
    assert inspect(settings, settings.splits).faults == []


def loaded_masks(settings: Manifest, split: str) -> list[tuple[np.ndarray, ...]]:
    return [masks.of_pair(settings.root, pair, 32, 32) for pair in datasets.pairs(settings, split)]


def test_levir_mci(tmp_path: Path) -> None:
    """Keeps away: roads and buildings in one class, or in the other's."""
    settings = levir_mci(tmp_path)
    unchanged, changed = datasets.pairs(settings, "train")
    assert changed.mask == "images/train/label/train_000003.png"
    assert changed.mask_classes == unchanged.mask_classes == ("road", "building")
    empty, mask = (union for union, before, after in loaded_masks(settings, "train"))
    assert not empty.any()
    assert (mask[5, 5], mask[22, 10], mask[0, 0]) == (1, 2, 0)
    (tmp_path / unchanged.mask).unlink()
    assert datasets.pairs(settings, "train")[0].mask == EMPTY_MASK


def test_whu_cdc(tmp_path: Path) -> None:
    settings = whu_cdc(tmp_path)
    assert datasets.pairs(settings, "train")[1].mask_classes == ("building",)
    assert [union.sum() for union, _, _ in loaded_masks(settings, "train")] == [0, 8 * 16]
    assert inspect(settings, settings.splits).faults == []


def test_second_cc(tmp_path: Path) -> None:
    """Keeps away: what was there as what came, and the cover of a brightened copy as unknown."""
    settings = second_cc(tmp_path)
    assert [pair.id for pair in datasets.pairs(settings, "train")] == ["00000_0_0", "00003_0_0"]
    names = datasets.pairs(settings, "train")[1].mask_classes
    empty, (union, before, after) = loaded_masks(settings, "train")
    assert not np.any(empty)
    assert names[before[10, 10] - 1] == "tree"
    assert names[after[10, 10] - 1] == names[union[10, 10] - 1] == "building"
    cover = tmp_path / "train/sem/A/00003_0_0.png"
    brighter = np.asarray(Image.open(cover)).astype(int) + 80
    Image.fromarray(brighter.clip(0, 255).astype(np.uint8)).save(cover)
    assert np.array_equal(loaded_masks(settings, "train")[1].before, before)
    assert inspect(settings, settings.splits).faults == []


@pytest.mark.parametrize("side", ["A", "B"])
def test_one_map_of_land_cover_is_no_mask(tmp_path: Path, side: str) -> None:
    """Keeps away: without the other map, a mask in which all that stood there vanished."""
    settings = second_cc(tmp_path)
    (tmp_path / f"train/sem/{side}/00000_0_0.png").unlink()
    unchanged = datasets.pairs(settings, "train")[0]
    assert unchanged.mask == unchanged.mask_before == unchanged.mask_after == EMPTY_MASK
    (tmp_path / f"val/sem/{side}/00001_0_0.png").unlink()
    [changed] = datasets.pairs(settings, "val")
    assert changed.mask is changed.mask_before is changed.mask_after is None
    counts = inspect(settings, settings.splits).masks
    assert counts == {"empty": 2, "tree": 1, "building": 1, "no mask": 1}


def test_folders(tmp_path: Path) -> None:
    settings = folders(tmp_path)
    [first, second] = datasets.pairs(settings, "train")
    assert (first.before, first.after) == ("train/before/0.png", "train/after/0.jpg")
    assert second.captions == ("a tree grew", "there is a tree")
    image(tmp_path / "val/before/alone.png")
    (tmp_path / "val/captions/none.txt").write_text("x")
    (tmp_path / "val/captions/alone.txt").write_text("of a pair without its image after")
    assert datasets.reader(settings).faults(settings) == [
        "val/before/alone has no counterpart in val/after",
        "val/captions/none.txt belongs to no pair",
    ]
    assert [p.after for p in datasets.pairs(settings, "val")] == [
        "val/after/2.jpg",
        "val/after/alone.png",
    ]


def test_masks_in_folders(tmp_path: Path) -> None:
    """Keeps away: masks of one side that are not read, or read as the whole."""
    settings = folders(tmp_path)
    image(tmp_path / "train/masks/0.png")
    image(tmp_path / "train/masks_before/1.png")
    pairs = {pair.id: pair for pair in datasets.pairs(settings, "train")}
    assert (pairs["0"].mask, pairs["0"].mask_after) == ("train/masks/0.png", None)
    gone = pairs["1"]
    assert (gone.mask, gone.mask_before, gone.mask_after) == (
        None,
        "train/masks_before/1.png",
        EMPTY_MASK,
    )
    [other] = datasets.pairs(settings, "val")
    assert other.masks == ()


def test_folders_without_splits(tmp_path: Path) -> None:
    for name in ("1", "2"):
        image(tmp_path / f"A/{name}.png")
        image(tmp_path / f"B/{name}.png")
    settings = manifest.load("own", ["layout=folders"], root=str(tmp_path))
    assert [p.id for p in datasets.pairs(settings, "train")] == ["1", "2"]
    write(tmp_path / "splits.json", {"about": {}, "splits": {"train": ["2"], "test": ["1"]}})
    split = manifest.load("own", ["layout=folders", "split_file=splits.json"], root=str(tmp_path))
    assert [p.id for p in datasets.pairs(split, "test")] == ["1"]
    write(tmp_path / "splits.json", {"train": ["2"]})
    with pytest.raises(UserError, match=r"1 pairs are in no split, such as '1'"):
        datasets.pairs(split, "train")


FOLDERS_OF = {
    "clevr": "sc_images",
    "clevr_dc": "aft",
    "spot": "resized_images",
    "edit": "images",
    "levir": "images/train/A",
}


@pytest.mark.parametrize("name", list(FOLDERS_OF))
def test_an_archive_is_to_be_unpacked(tmp_path: Path, name: str) -> None:
    settings = MAKERS[name](tmp_path)
    folder = tmp_path / FOLDERS_OF[name]
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"layout has it; is --root its top folder"):
        datasets.pairs(settings, "train")
    (folder.parent / "other.zip").write_bytes(b"PK")
    folder.with_suffix(".zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=rf"but {folder.name}\.zip is there\. Unpack"):
        datasets.pairs(settings, "train")
    packed = manifest.load(name, root=str(folder.with_suffix(".zip")))
    with pytest.raises(UserError, match=r"is an archive\. Unpack it, give its folder"):
        datasets.pairs(packed, "train")


def test_normalised_captions(tmp_path: Path) -> None:
    spot(tmp_path)
    odd = "A caf\u0065\u0301’s  door .  "
    write(tmp_path / "annotations/train.json", [{"img_id": "7", "sentences": [odd, "."]}])
    [plain] = datasets.pairs(manifest.load("spot", root=str(tmp_path)), "train")
    assert plain.captions == (odd.strip(), ".")  # as it was written
    steps = "captions.normalise=[nfc, ascii_quotes, spaces, lowercase, full_stop]"
    [clean] = datasets.pairs(manifest.load("spot", [steps], root=str(tmp_path)), "train")
    assert clean.captions == ("a café's door",)


def test_what_is_odd_is_noted(tmp_path: Path) -> None:
    settings = spot(tmp_path)
    captions = ["a dog", "a dog", "a café", "zero\u200bwidth"]
    write(tmp_path / "annotations/train.json", [{"img_id": "7", "sentences": captions}])
    names = ["7 (train)", "9 (val)", "8 (test)"]
    inspection = inspect(settings, settings.splits)
    assert [note.partition(". ")[0] for note in inspection.notes] == [
        "train: 1 captions are repeated within their pair, and count as often",
        "train: 1 captions have characters beyond ASCII (é 1)",
        "train: 1 captions have control or invisible characters (U+200B 1)",
        "6 images are enlarged 1.5 times or more to image_size=224, such as 32×32: that adds no "
        "detail",
        f"3 pairs show what another shows: {' = '.join(names)}",
        f"3 changed pairs have the same image twice: {', '.join(names)}",
        "val: 1 pair with a contradiction: 9 (kind change; the captions say that nothing changed)",
        "test: 1 pair with a contradiction: 8 (kind change; the captions say that nothing changed)",
        "train: 1 pair with a near duplicate: 7 (looks like 9 (val))",
        "val: 1 pair with a near duplicate: 9 (looks like 8 (test))",
    ]
    assert all(note.count(". ") == 1 for note in inspection.notes), "each has a remedy"
    assert f"1 images are in several splits: {' = '.join(sorted(names))}" in {
        fault.partition(". ")[0] for fault in inspection.faults
    }


PUBLIC = ["clevr", "clevr_dc", "spot", "edit", "levir", "levir_mci", "second_cc", "whu_cdc"]


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "row"])
def test_damaged_annotations(tmp_path: Path, name: str, damage: str) -> None:
    settings = MAKERS[name](tmp_path)
    names = (
        "train", "LevirCCcaptions", "SECOND-CC-AUG", "whuCCcaptions", "captions", "change_captions"
    )  # fmt: skip
    [file] = [f for f in tmp_path.rglob("*.json") if f.stem in names]
    if damage == "missing":
        file.unlink()
    else:
        text = file.read_text()
        row = re.sub(r'"(img_id|uid|filename)"', '"x"', text)
        row = re.sub(r': \["(change|the)', r': [3, "', row)  # captions by name
        file.write_text({"cut": text[:-9], "foreign": "3", "row": row}[damage])
    with pytest.raises(UserError, match=file.name):
        datasets.pairs(settings, "train")


@pytest.mark.parametrize("name", PUBLIC)
def test_no_folder_says_what_belongs_there(tmp_path: Path, name: str) -> None:
    settings = manifest.load(name, root=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="or name its folder with --root"):
        datasets.pairs(settings, "train")


# Counted by hand, with a few lines of Python that know nothing of ours.
COUNTS = {
    "spot": {"train": (8566, 53), "val": (1493, 6), "test": (1270, 7)},
    "edit": {"train": (3061, 0), "val": (383, 0), "test": (495, 0)},
}
NOTES = {
    "spot": [
        "train: 3 captions are repeated within their pair, and count as often. Leave one of each",
        "train: 5 captions are no sentence but what programs write for a missing one: 'none', "
        "'na'. Leave them empty",
        "val: 2 captions are no sentence but what programs write for a missing one: 'none'. Leave "
        "them empty",
    ],
    "edit": [
        "val: 4 captions are repeated within their pair, and count as often. Leave one of each",
        "test: 1 captions are repeated within their pair, and count as often. Leave one of each",
    ],
}
# Of these, some were looked at: all their captions, or some, say that nothing changed.
AUDIT = {"spot": {"contradiction": 193}, "edit": {}}
FOLDERS = {"spot": "spot_the_diff", "edit": "image_editing_request"}


def check_real_annotations(folder: Path, name: str) -> None:
    shutil.copytree(REAL / FOLDERS[name], folder / "root")
    (folder / "root" / {"spot": "resized_images", "edit": "images"}[name]).mkdir()
    settings = manifest.load(name, root=str(folder / "root"))
    faults = datasets.reader(settings).faults(settings)
    inspection = inspect(settings, settings.splits, limit=0)
    notes = [note for note in inspection.notes if "with a contradiction" not in note]
    assert inspection.audit == {**dict.fromkeys(audit.REASONS, 0), **AUDIT[name]}
    for split, (pairs, empty) in COUNTS[name].items():
        split_pairs = datasets.pairs(settings, split)
        assert len(split_pairs) == pairs
        assert (
            len({pair.key for pair in split_pairs})
            == len({pair.image_id for pair in split_pairs})
            == pairs
        )
        expected = f"{split}: {empty} empty sentences, left out"
        assert (expected in faults) == bool(empty)
    assert notes == NOTES[name]


def check_real_splits(folder: Path) -> None:
    """CLEVR-Change's splits and types, and CLEVR-DC's split; their captions are made here."""
    for name in ("clevr_change", "clevr_dc"):
        shutil.copytree(REAL / name, folder / name)
    for path in ("clevr_change/images", "clevr_change/sc_images", "clevr_change/nsc_images",
                  "clevr_dc/bef", "clevr_dc/aft"):  # fmt: skip
        (folder / path).mkdir()
    captions = {f"CLEVR_default_{i:06d}.png": ["said"] for i in range(40_000)}
    for kind in ("change", "no_change"):
        write(folder / f"clevr_change/{kind}_captions.json", captions)
    same = ["there is no change"]
    write(
        folder / "clevr_dc/captions.json",
        {str(i): same if i >= 40_000 else ["said"] for i in range(48_000)},
    )
    change = manifest.load("clevr", root=str(folder / "clevr_change"))
    pairs = {split: datasets.pairs(change, split) for split in change.splits}
    assert {s: len(p) for s, p in pairs.items()} == {"train": 67660, "val": 3976, "test": 7970}
    types = Counter(
        p.change_type for split_pairs in pairs.values() for p in split_pairs if p.change_type
    )
    assert types == {"color": 7958, "material": 7963, "add": 7966, "drop": 7961, "move": 7955}
    assert datasets.reader(change).faults(change) == []
    dc = manifest.load("clevr_dc", root=str(folder / "clevr_dc"))
    dc_pairs = {split: datasets.pairs(dc, split) for split in dc.splits}
    assert {s: len(p) for s, p in dc_pairs.items()} == {"train": 40800, "val": 2400, "test": 4800}
    for split, share in (("train", 6800), ("val", 400), ("test", 800)):
        actions = Counter(pair.change_type for pair in dc_pairs[split])
        assert actions == dict.fromkeys(clevr_dc_reader.ACTIONS, share)
    assert datasets.reader(dc).faults(dc) == []


def check_a_real_levir_pair(folder: Path) -> None:
    shutil.copytree(REAL / "levir_cc", folder / "levir")
    row = {
        "filename": "train_000016.png",
        "split": "train",
        "changeflag": 1,
        "sentences": [{"raw": " a road appears ."}],
    }
    write(folder / "levir/LevirCCcaptions.json", {"images": [row]})
    settings = manifest.load("levir", root=str(folder / "levir"))
    inspection = inspect(settings, ["train"])
    assert (inspection.image_sizes, inspection.faults, inspection.notes) == ({"256×256": 2}, [], [])


if REAL.exists():  # elsewhere there is nothing to check, and so no test that is skipped

    @pytest.mark.parametrize("name", list(COUNTS))
    def test_real_annotations(tmp_path: Path, name: str) -> None:
        check_real_annotations(tmp_path, name)

    def test_real_splits(tmp_path: Path) -> None:
        check_real_splits(tmp_path)

    def test_a_real_pair_of_levir(tmp_path: Path) -> None:
        check_a_real_levir_pair(tmp_path)
