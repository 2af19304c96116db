"""`inspect` counts what is there and names everything that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from cc_prep import manifest
from cc_prep.inspect.inspection import inspect
from cc_prep.manifest import Manifest
from tests.miniatures import image, write


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
        "2 (train): no captions",
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
    assert note.startswith("1 pair has images of two sizes: a (test): 32×32 and 40×32. ")
    assert "cc-train caption refuses such pairs" in note
    faults = inspect(own(tmp_path, "image_size=null"), ["train", "test"]).faults
    line = "a (test): sizes differ (32×32 and 40×32). Set image_size to resize both"
    assert [fault for fault in faults if "sizes" in fault] == [line]
    assert not any("sizes" in note for note in inspect(own(tmp_path), ["train"]).notes)


def test_notes_name_a_pair_as_its_user_did(tmp_path: Path) -> None:
    """Keeps away: `t-train-images_2_eaed7382f16e8f54-change`, by which nobody finds a pair."""
    for name in "12":
        image(tmp_path / f"before/{name} é.png", 1)
        image(tmp_path / f"after/{name} é.png", 1)
    (tmp_path / "unchanged.txt").write_text("2 é", encoding="utf-8")
    notes = inspect(own(tmp_path), ["train"]).notes
    assert "2 pairs show what another shows: 1 é (train) = 2 é (train, no_change)" in notes
    assert "1 changed pairs have the same image twice: 1 é (train)" in notes


def test_images_that_are_as_good_as_black_are_noted(tmp_path: Path) -> None:
    """Keeps away: 12 bits in a file of 16, of which a captioner sees nothing."""
    for name, top in (("dark", 4095), ("bright", 65535)):
        for side in ("before", "after"):
            (tmp_path / side).mkdir(exist_ok=True)
            ramp = np.linspace(0, top, 32 * 32).reshape(32, 32).astype(np.uint16)
            Image.fromarray(ramp).save(tmp_path / side / f"{name}.png")
    notes = inspect(own(tmp_path), ["train"]).notes
    [line] = [note for note in notes if "black" in note]
    assert line.startswith("2 images are nearly black: after/dark.png, before/dark.png. Scale")


def test_ids_of_a_split_file_that_no_pair_has_are_noted(tmp_path: Path) -> None:
    """Keeps away: a typing error in a split file that nobody sees."""
    image(tmp_path / "before/a.png", 1)
    image(tmp_path / "after/a.png", 2)
    write(tmp_path / "s.json", {"splits": {"train": ["a", "b.png"], "test": []}})
    notes = inspect(own(tmp_path, "split_file=s.json"), ["train"]).notes
    assert "train: no pair has these ids of the split file: b.png" in notes
