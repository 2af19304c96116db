"""Folders of a user's own images: which files are taken, and what is said of the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cc_prep import datasets, manifest, storage
from cc_prep.datasets.layouts import folders
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.records import EMPTY_MASK
from cc_prep.storage import object_store
from tests import dataset_factory


def settings(root: Path) -> Manifest:
    return manifest.load("own", ["layout=folders"], root=str(root))


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_endings_are_those_of_what_is_decoded() -> None:
    """Keeps away: images of a format that the reader knows, and that vanish without a word."""
    Image.init()
    known = {**Image.registered_extensions(), ".dcm": "DICOM"}
    assert {known[ending] for ending in images.ENDINGS} == {*images.DECODED, "DICOM"}


def test_images_of_any_ending_are_pairs(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{side}/{n}" for side in ("before", "after") for n in ("a.TIF", "b.Png")))
    pairs = datasets.pairs(settings(tmp_path), "train")
    assert [pair.before for pair in pairs] == ["before/a.TIF", "before/b.Png"]
    assert folders.faults(settings(tmp_path)) == []


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    """Keeps away: a second image of a name, and a file that is no image, that nobody misses."""
    touch(tmp_path, "before/a.bmp", "before/a.png", "after/a.png", "after/.DS_Store")
    touch(tmp_path, "after/ab.psd", "masks/a.npy")
    [pair] = datasets.pairs(settings(tmp_path), "train")
    assert pair.before == "before/a.png"
    assert folders.faults(settings(tmp_path)) == [
        "before/a.bmp is left out: a.png has the same name",
        "after/ab.psd has no ending of an image",
        "masks/a.npy has no ending of an image",
    ]


def test_files_about_images_are_no_faults(tmp_path: Path) -> None:
    """Keeps away: data that fails `cc-prep inspect` for what a system or a GIS program wrote."""
    touch(tmp_path, "before/a.1.png", "after/a.1.png", "before/Thumbs.db", "after/desktop.ini")
    touch(tmp_path, "before/a.1.xml", "after/a.1.png.aux.xml", "after/a.1.pgw")
    assert folders.faults(settings(tmp_path)) == []


def test_names_in_another_form_are_the_same(tmp_path: Path) -> None:
    """Keeps away: "no counterpart" of two names that look alike, one of them from a Mac."""
    one, other = "\u00e9", "e\u0301"
    touch(tmp_path, f"before/{one}.png", f"after/{other}.png", f"captions/{other}.txt")
    touch(tmp_path, f"masks/{other}.png")
    (tmp_path / f"captions/{other}.txt").write_text("gone")
    (tmp_path / "unchanged.txt").write_text(f"{other}.png", encoding="utf-8")
    [pair] = datasets.pairs(settings(tmp_path), "train")
    assert (pair.id, pair.kind, pair.captions) == (one, "no_change", ("gone",))
    assert (pair.before, pair.after) == (f"before/{one}.png", f"after/{other}.png")
    assert pair.mask == f"masks/{other}.png"
    assert folders.faults(settings(tmp_path)) == []
    touch(tmp_path, f"before/{other}.png")
    assert folders.faults(settings(tmp_path)) == [
        r"before/\xe9.png is left out: e\u0301.png has the same name"
    ]


def test_a_counterpart_of_nearly_the_same_name_is_named(tmp_path: Path) -> None:
    """Keeps away: two faults apart, for a name that is written in capitals on one side."""
    touch(tmp_path, "before/IMG 1.png", "after/img 1.png", "before/2.png")
    assert folders.faults(settings(tmp_path)) == [
        "before/2 has no counterpart in after",
        "before/IMG 1 has no counterpart in after, which has img 1",
        "after/img 1 has no counterpart in before, which has IMG 1",
    ]


@pytest.mark.parametrize("name", ["captions/a.txt", "unchanged.txt"])
def test_another_encoding_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "before/a.png", "after/a.png", name)
    (tmp_path / name).write_bytes("gone\ndéjà là".encode("latin-1"))
    with pytest.raises(UserError, match=rf"{name}: is not UTF-8 text \(line 2\)\. Save it as"):
        datasets.pairs(settings(tmp_path), "train")


def test_a_caption_ends_at_a_newline_alone(tmp_path: Path) -> None:
    """Keeps away: one caption with a separator of lines as two."""
    touch(tmp_path, "before/a.png", "after/a.png", "captions/a.txt")
    (tmp_path / "captions/a.txt").write_bytes("one\u2028more\r\ntwo\rthree\n".encode())
    [pair] = datasets.pairs(settings(tmp_path), "train")
    assert pair.captions == ("one\u2028more", "two", "three")


def test_captions_on_a_store_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: hours of one request after the other, for each split once more."""
    root = "memory://own/captions"
    for split, side, i in itertools.product(("train", "val"), ("before", "after"), range(40)):
        storage.write_bytes(f"{root}/{split}/{side}/{i}.png", b"x")
        storage.write_bytes(f"{root}/{split}/captions/{i}.txt", f"{split} {i}\nmore\n".encode())
    storage.write_bytes(f"{root}/val/captions/stray.txt", b"\xff")
    calls: list[str] = []
    real = object_store.call

    def counted(path: str, action: Callable[[Any, str], Any]) -> object:
        calls.append(path)
        return real(path, action)

    monkeypatch.setattr(object_store, "call", counted)
    own = manifest.load("own", ["layout=folders", "splits=[train, val]"], root=root)
    for split in own.splits:
        pairs = datasets.pairs(own, split)
        assert [pair.captions for pair in pairs] == [
            (f"{split} {i}", "more") for i in sorted(range(40), key=str)
        ]
    assert len(calls) < 80  # 2 x 2 folders, whose listings take some requests each


def test_a_mask_in_one_split_says_that_all_have_them(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{s}/{side}/a.png" for s in ("train", "val") for side in "AB"))
    touch(tmp_path, "val/masks/a.png")
    (tmp_path / "train/unchanged.txt").write_text("a\n")
    [pair] = datasets.pairs(settings(tmp_path), "train")
    assert pair.mask == EMPTY_MASK


def test_folders_of_pairs_that_are_no_split_are_named(tmp_path: Path) -> None:
    """Keeps away: a held-out folder that is in no job, without a word."""
    for folder in ("train", "holdout"):
        touch(tmp_path, f"{folder}/before/a.png", f"{folder}/after/a.png")
    left_out = "holdout/ has pairs too, which are left out: splits does not name it"
    assert folders.faults(settings(tmp_path)) == [left_out]
    named = manifest.load("own", ["layout=folders", "splits=[train,holdout]"], root=str(tmp_path))
    assert folders.faults(named) == []
    touch(tmp_path, "before/b.png", "after/b.png")
    assert folders.faults(named) == [
        f"{name}/ has pairs too, which are left out: those in the root are read"
        for name in ("holdout", "train")
    ]


def test_pairs_without_a_change_are_listed(tmp_path: Path) -> None:
    """Keeps away: unchanged pairs that count as changed, since folders could not say so."""
    names = ("a", "b.1", "c")
    touch(tmp_path, *(f"{side}/{name}.png" for side in ("before", "after") for name in names))
    (tmp_path / "unchanged.txt").write_text("b.1\nc.png\n\nnone\n")
    expected = ["change", "no_change", "no_change"]
    assert [pair.kind for pair in datasets.pairs(settings(tmp_path), "train")] == expected
    assert [pair.kind for pair in folders.pairs_for_split_file(settings(tmp_path))] == expected
    assert folders.faults(settings(tmp_path)) == ["unchanged.txt: none is the name of no pair"]
    touch(tmp_path, "masks/a.png")
    listed = datasets.pairs(settings(tmp_path), "train")
    assert [pair.mask for pair in listed] == ["masks/a.png", EMPTY_MASK, EMPTY_MASK]


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    """Keeps away: each pair twice, and captions that are "not UTF-8", of what macOS leaves."""
    for folder, ending in (("before", "png"), ("after", "png"), ("captions", "txt")):
        touch(tmp_path, f"{folder}/1.{ending}")
        (tmp_path / folder / f"._1.{ending}").write_bytes(b"\0\5\x16\7\xff")
    [pair] = datasets.pairs(settings(tmp_path), "train")
    assert (pair.id, pair.before, pair.after) == ("1", "before/1.png", "after/1.png")
    assert folders.faults(settings(tmp_path)) == []


def test_what_is_not_looked_into_is_named(tmp_path: Path) -> None:
    """Keeps away: a delivery in a folder of its own that is in no job, without a word."""
    touch(tmp_path, "before/1.png", "after/1.png", "before/site2/1.png", "masks/site2/1.png")
    touch(tmp_path, "captions/1.TXT", "captions/site2/1.txt", "before/.thumbnails/1.png")
    touch(tmp_path, "captions/Thumbs.db")
    assert folders.faults(settings(tmp_path)) == [
        "captions/1.TXT is left out: its name does not end in .txt",
        "captions/site2/ is left out: put its files into captions/",
        "before/site2/ is left out: put its files into before/",
        "masks/site2/ is left out: put its files into masks/",
    ]


def test_a_table_beside_the_folders_is_named(tmp_path: Path) -> None:
    """Keeps away: captions, kinds and splits of a table that nobody opens."""
    touch(tmp_path, "before/1.png", "after/1.png", "pairs.csv")
    assert folders.faults(settings(tmp_path)) == [
        "pairs.csv is not read, with its captions, kinds and splits: that takes layout: table"
    ]


def test_masks_of_no_pair_and_folders_of_other_names_are_faults(tmp_path: Path) -> None:
    """Keeps away: masks that nobody reads, of which a training says much later that there are
    none."""
    settings = dataset_factory.folders(tmp_path)
    for name in ("0_mask.png", "1.png", "9.png"):
        dataset_factory.image(tmp_path / f"train/masks/{name}")
    dataset_factory.image(tmp_path / "val/label/2.png")
    dataset_factory.image(tmp_path / "val/depth/2.png")
    (tmp_path / "test/Captions").mkdir()
    (tmp_path / "masks").mkdir()
    assert datasets.reader(settings).faults(settings) == [
        "masks/ is not read: each split has its own masks/",
        "val/label/ is not read: call it masks/, if that is what it holds",
        "test/Captions/ is not read: call it captions/, if that is what it holds",
        "train/masks/0_mask.png belongs to no pair. If it is the mask of 0, call it 0.png",
        "train/masks/9.png belongs to no pair",
    ]


def test_labels_of_levir_with_a_suffix_are_faults(tmp_path: Path) -> None:
    """Keeps away: labels that are not found, and a fault of those of images without a row."""
    settings = dataset_factory.levir_mci(tmp_path)
    folder = tmp_path / "images/train/label"
    (folder / "train_000000.png").rename(folder / "train_000000_label.png")
    dataset_factory.image(folder / "other.png")
    assert datasets.reader(settings).faults(settings) == [
        "images/train/label/train_000000_label.png belongs to no pair. If it is the mask of "
        "train_000000, call it train_000000.png"
    ]
