"""`inspect` counts what is there and names everything that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import datasets, manifest
from cc_prep.datasets import exclusions, unread
from cc_prep.inspect.inspection import inspect
from cc_prep.manifest import Manifest
from tests.dataset_factory import image, write


def test_a_whole_data_set(synth_root: Path) -> None:
    settings = manifest.load("synth", root=str(synth_root))
    inspection = inspect(settings, settings.splits)
    assert inspection.faults == []
    assert sum(inspection.splits.values()) == 12
    assert inspection.kinds == {"change": 6, "no_change": 6}
    assert sum(inspection.change_types.values()) == 6
    assert inspection.image_sizes == {"64×64": 18}
    assert inspection.captions["captions"] == sum(
        len(sentences)
        for name in ("change", "no_change")
        for sentences in json.loads((synth_root / f"{name}_captions.json").read_text()).values()
    )


def test_every_fault_is_named(synth_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "faulty"
    shutil.copytree(synth_root, root)
    (root / "images/CLEVR_default_000000.png").unlink()
    (root / "sc_images/CLEVR_semantic_000001.png").write_text("hello")
    captions = json.loads((root / "change_captions.json").read_text())
    captions["CLEVR_default_000002.png"] = []
    captions["CLEVR_default_000003.png"] = ["", "fine", "  "]
    del captions["CLEVR_default_000004.png"]
    (root / "change_captions.json").write_text(json.dumps(captions))
    settings = manifest.load("synth", root=str(root))
    faults = inspect(settings, settings.splits).faults
    for part in (
        "missing image: " + str(root / "images/CLEVR_default_000000.png"),
        "unreadable image: " + str(root / "sc_images/CLEVR_semantic_000001.png"),
        "2 (train): no captions. An unchanged pair needs one too: nothing has changed",
        "3 (train): 2 empty captions",
        "nothing for index 4",
    ):
        assert any(part in fault for fault in faults), part
    assert len(faults) == 6  # the one without an entry has no captions either


def test_videos_need_no_captions(video_root: Path) -> None:
    settings = manifest.load("video", root=str(video_root))
    inspection = inspect(settings, settings.splits)
    assert inspection.faults == []
    assert inspection.image_sizes == {"64×48": 3}


def own(root: Path, *overrides: str) -> Manifest:
    return manifest.load("own", ["layout=folders", "splits=[train,test]", *overrides], str(root))


def test_two_sizes_of_a_pair_are_a_fault_where_nothing_resizes(tmp_path: Path) -> None:
    """Keeps away: a data set without a fault, all of whose pairs a job then rejects; and no word of
    pairs that are trained on, and that `cc-train caption` then refuses."""
    for split in ("train", "test"):
        image(tmp_path / f"{split}/before/a.png", 1)
        image(tmp_path / f"{split}/after/a.png", 2)
    Image.new("RGB", (40, 32)).save(tmp_path / "test/after/a.png")
    resized = inspect(own(tmp_path), ["train", "test"])
    assert not any("sizes" in line for line in resized.faults)
    [note] = [note for note in resized.notes if "sizes" in note]
    assert note.startswith("1 pair has images of two sizes: a (test) (32×32 and 40×32). ")
    assert "cc-train caption takes such pairs with --resize alone" in note
    faults = inspect(own(tmp_path, "image_size=null"), ["train", "test"]).faults
    line = "a (test): sizes differ: 32×32 and 40×32 px. Set image_size to resize both, or pairs.res"
    [fault] = [fault for fault in faults if "sizes" in fault]
    assert fault.startswith(line)
    resized = inspect(own(tmp_path, "image_size=null", "pairs.resize=true"), ["train", "test"])
    assert not any("sizes" in fault for fault in resized.faults)
    assert not any("sizes" in note for note in inspect(own(tmp_path), ["train"]).notes)


def test_notes_name_a_pair_as_its_user_did(tmp_path: Path) -> None:
    """Keeps away: `t-train-images_2_eaed7382f16e8f54-change`, by which nobody finds a pair."""
    for name in "12":
        image(tmp_path / f"before/{name} é.png", 1)
        image(tmp_path / f"after/{name} é.png", 1)
    (tmp_path / "unchanged.txt").write_text("2 é", encoding="utf-8")
    notes = inspect(own(tmp_path), ["train"]).notes
    assert any(
        "2 pairs show what another shows: 1 é (train) = 2 é (train, no_change). Make" in note
        for note in notes
    )
    still = "1 changed pairs have the same image twice: 1 é (train). If they show no change, mark"
    assert any(note.startswith(still) for note in notes)


def test_images_that_are_as_good_as_black_are_noted(tmp_path: Path) -> None:
    """Keeps away: images of which a captioner sees nothing, without a word."""
    tops = {"dark": (16, np.uint8), "bright": (255, np.uint8), "deep": (4095, np.uint16)}
    for name, (top, dtype) in tops.items():
        for side in ("before", "after"):
            (tmp_path / side).mkdir(exist_ok=True)
            ramp = np.linspace(0, top, 32 * 32).reshape(32, 32).astype(dtype)
            Image.fromarray(ramp).save(tmp_path / side / f"{name}.png")
    found = inspect(own(tmp_path), ["train"])
    [line] = [note for note in found.notes if "black" in note]
    assert found.rejected == ["deep (train)"]
    assert line.startswith("2 images are nearly black: after/dark.png, before/dark.png. Where")


def test_ids_of_a_split_file_that_no_pair_has_are_noted(tmp_path: Path) -> None:
    """Keeps away: a typing error in a split file that nobody sees."""
    image(tmp_path / "before/a.png", 1)
    image(tmp_path / "after/a.png", 2)
    write(tmp_path / "s.json", {"splits": {"train": ["a", "b.png"], "test": []}})
    notes = inspect(own(tmp_path, "split_file=s.json"), ["train"]).notes
    line = "train: no pair has these ids of the split file: b.png. Correct them there, or take"
    assert any(note.startswith(line) for note in notes)


def test_images_that_are_enlarged_much_are_noted(tmp_path: Path) -> None:
    """Keeps away: thumbnails of a data set, blurred to four times their size in silence."""
    folders(tmp_path)
    for side, noted in ((32, False), (47, False), (48, True), (224, True)):
        notes = inspect(own(tmp_path, "splits=[train]", f"image_size={side}"), ["train"]).notes
        small = f"2 images are enlarged 1.5 times or more to image_size={side}, such as 32×32"
        assert any(note.startswith(small) for note in notes) is noted
    kept = inspect(own(tmp_path, "splits=[train]", "image_size=null"), ["train"])
    assert not any("enlarged" in note for note in kept.notes)


def folders(root: Path, *captions: str) -> None:
    """A pair a caption, of images like no others."""
    for number, caption in enumerate(captions or ("a tree grew",)):
        image(root / f"before/{number}.png", 10 * number)
        image(root / f"after/{number}.png", 10 * number + 1)
        (root / "captions").mkdir(exist_ok=True)
        (root / f"captions/{number}.txt").write_text(caption)


def test_rejects_are_counted_by_reason(tmp_path: Path) -> None:
    """Keeps away: a list of faults of which nobody knows how many pairs are lost."""
    folders(tmp_path, "long " * 3_000, "a tree grew", "a tree fell")
    (tmp_path / "after/0.png").write_bytes(b"")
    (tmp_path / "after/1.png").write_bytes(b"")
    inspection = inspect(own(tmp_path), ["train"])
    assert inspection.rejected == ["0 (train)", "1 (train)"]
    assert inspection.rejects == {"caption too long": 1, "unreadable image": 1}
    line = "0 (train): caption too long: 14,999 characters, at most 10,000. Shorten it"
    assert any(fault.startswith(line) for fault in inspection.faults)


def test_true_frames_that_a_job_reads_are_looked_at(synth_root: Path, tmp_path: Path) -> None:
    """Keeps away: "no fault" of scenes that `interpolate` rejects for a frame between the two."""
    root = tmp_path / "scenes"
    shutil.copytree(synth_root, root)
    settings = manifest.load("synth", ["interpolate.keep_truth=true"], str(root))
    pair = datasets.pairs(settings, "train")[0]
    (root / dict(pair.truth)[0.5]).write_bytes(b"")
    assert inspect(settings, ["train"]).rejected == [pair.name]
    for depth, keep_truth in ((0, "true"), (3, "false")):
        overrides = [f"interpolate.depth={depth}", f"interpolate.keep_truth={keep_truth}"]
        others = manifest.load("synth", overrides, str(root))
        assert inspect(others, ["train"]).rejected == []


def test_imported_features_are_looked_at(tmp_path: Path) -> None:
    """Keeps away: "no fault" where each pair lacks its features."""
    folders(tmp_path, "one", "two")
    stored = tmp_path.parent / f"{tmp_path.name}-features"
    for side in ("before", "after"):
        (stored / side).mkdir(parents=True)
        np.save(stored / side / "0.png.npy", np.zeros((4, 2, 2), np.float32))
    settings = own(tmp_path, "features.backbone=resnet101", f"features.folder={stored}")
    inspection = inspect(settings, ["train"])
    assert inspection.rejects == {"missing features": 1}
    assert inspection.faults == [f"1 (train): missing features: {stored}/before/1.png.npy"]


def test_transparent_images_and_grey_masks_are_noted(tmp_path: Path) -> None:
    """Keeps away: colours that no viewer shows, and masks that grew, without a word."""
    folders(tmp_path)
    clear = Image.open(tmp_path / "after/0.png").convert("RGBA")
    clear.putpixel((0, 0), (255, 0, 255, 0))
    clear.save(tmp_path / "after/0.png")
    (tmp_path / "masks").mkdir()
    Image.fromarray(np.arange(1024, dtype=np.uint8).reshape(32, 32)).save(tmp_path / "masks/0.png")
    notes = inspect(own(tmp_path, "image_size=32"), ["train"]).notes
    assert notes[:2] == [
        "1 image has transparent pixels, whose hidden colours are read: after/0.png. Lay them over "
        "one colour first",
        "1 mask has greys between black and white, and all but black counts as changed: "
        "masks/0.png. If they were JPEGs or were resized smoothly, save them in black and white; "
        "if the values are classes, name these in masks.classes",
    ]


def test_captions_that_are_no_sentences_are_noted(tmp_path: Path) -> None:
    """Keeps away: words such as `nan` and `<p>` in the vocabulary, which no image shows."""
    folders(tmp_path, "nan", "None", "...", "<p>a tree grew</p>", "a &amp; b", "1 < 2 and 3 > 2")
    assert inspect(own(tmp_path), ["train"]).notes[:3] == [
        "train: 2 captions are no sentence but what programs write for a missing one: 'nan', "
        "'None'. Leave them empty",
        "train: 1 caption is without a letter or digit: '...'. Leave them empty, or write a "
        "sentence",
        "train: 2 captions are with marks of HTML, which are read as words: '<p>a tree grew</p>', "
        "'a &amp; b'. Take the marks out",
    ]


def test_files_that_nobody_reads_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a list of unchanged pairs under another name, lost in silence."""
    folders(tmp_path, "a tree grew", "nothing changed")
    for name in ("nochange.txt", "README.md", ".hidden", "before/Thumbs.db"):
        (tmp_path / name).write_text("1")
    image(tmp_path / "more/x.png")
    notes = inspect(own(tmp_path, "splits=[train]"), ["train"]).notes
    assert [note for note in notes if "nobody" in note] == [
        "nobody reads nochange.txt, more/. Pairs in which nothing changed are listed in "
        "unchanged.txt"
    ]
    exclusions.write(str(tmp_path / "excl.csv"), [])  # of our own
    assert inspect(own(tmp_path, "splits=[train]"), ["train"]).notes == notes
    audit = "train: 1 pair with a contradiction: 1 (kind change; the captions say that nothing "
    [note] = [note for note in notes if note.startswith(audit)]
    assert "Correct unchanged.txt, set captions.mark_unchanged: true, or leave them out" in note
    rows = ["before,after,caption", "before/0.png,after/0.png,a tree grew"]
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    notes = inspect(own(tmp_path, "layout=table", "splits=[train]"), ["train"]).notes
    stray = "2 images are in no pair of the manifest's splits: after/1.png, before/1.png. Add"
    assert any(stray in one for one in notes)
    assert any("nobody reads nochange.txt, captions/, more/. Pairs" in one for one in notes)
    (tmp_path / "LevirCCcaptions.json").write_text("{}")
    notes = inspect(own(tmp_path, "layout=table", "splits=[train]"), ["train"]).notes
    assert any("nobody reads LevirCCcaptions.json, " in one for one in notes)
    (tmp_path / "pairs.csv").unlink()
    row = {"before": "before/0.png", "after": "after/0.png", "caption": "a tree grew"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row))  # the page that collects writes both
    notes = inspect(own(tmp_path, "layout=table", "splits=[train]"), ["train"]).notes
    assert not any("LevirCCcaptions" in one for one in notes)
    monkeypatch.setattr(unread, "MAX_FOLDERS", 1)
    notes = inspect(own(tmp_path, "layout=table", "splits=[train]"), ["train"]).notes
    assert any("1 of 3 folders were looked through" in one for one in notes)
