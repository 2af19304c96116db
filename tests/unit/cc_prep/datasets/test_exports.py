"""Data sets in the formats of other programs, read back as these read them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO

from cc_prep import datasets
from cc_prep.datasets import exports
from tests.commands import cc_prep


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pairs of a table with masks of two classes, one of them with a hole."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    mask = np.zeros((20, 30), np.uint8)
    mask[2:9, 3:12], mask[4:6, 5:8], mask[12:14, 20:25], mask[14, 25] = 1, 0, 2, 2
    rows = []
    for number, split in enumerate(("train", "train", "test")):
        for side in ("before", "after"):
            noise = rng.integers(0, 256, (20, 30, 3)).astype(np.uint8)
            Image.fromarray(noise).save(folder / f"{number}_{side}.png")
        Image.fromarray(mask if number == 0 else np.roll(mask, number)).save(
            folder / f"{number}_mask.png"
        )
        captions = [f"the house {number} is new", "a house was “built”"]
        rows.append({"before": f"{number}_before.png", "after": f"{number}_after.png",
                     "mask": f"{number}_mask.png", "captions": captions, "split": split,
                     "id": f"p/{number}"})  # fmt: skip
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


CLASSES = "masks={classes: {road: 1, house: 2}}"


def export(kind: str, root: Path, out: Path, *options: Any) -> str:
    done = cc_prep("export", kind, "own", "--root", root, "--set", CLASSES, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


def test_coco_reads_the_masks_back(root: Path, tmp_path: Path) -> None:
    """Keeps away: outlines through the middle of pixels, and holes that are filled."""
    out = tmp_path / "coco"
    export("coco", root, out, "--split", "train", "--split", "test")
    read = COCO(str(out / "instances.json"))
    pairs = [*datasets.open("own", str(root), split="train"),
             *datasets.open("own", str(root), split="test")]  # fmt: skip
    names = {one["id"]: one["name"] for one in read.loadCats(read.getCatIds())}
    for (number, entry), pair in zip(sorted(read.imgs.items()), pairs, strict=True):
        assert (entry["pair"], entry["split"]) == (pair.record.id, pair.record.split)
        with Image.open(out / entry["file_name"]) as before, Image.open(out / entry["after"]) as b:
            assert np.array_equal(before, pair.before)
            assert np.array_equal(b, pair.after)
        mask = np.zeros((entry["height"], entry["width"]), np.uint8)
        for one in read.loadAnns(read.getAnnIds([number])):
            place = read.annToMask(one).astype(bool)
            assert one["area"] == place.sum()
            assert one["bbox"] == coco_masks.toBbox(read.annToRLE(one)).tolist()
            mask[place] = {"road": 1, "house": 2}[names[one["category_id"]]]
        stored = np.asarray(Image.open(root / f"{pair.record.id[-1]}_mask.png"))
        assert np.array_equal(mask, stored)


def test_coco_has_no_changed_pair_without_its_mask(root: Path, tmp_path: Path) -> None:
    """Keeps away: a changed pair among the images in which nothing is to be found."""
    data = Path(shutil.copytree(root, tmp_path / "data"))
    rows = [json.loads(line) for line in (data / "pairs.jsonl").read_text().splitlines()]
    del rows[0]["mask"]
    del rows[1]["mask"]
    rows[1]["kind"] = "no_change"
    (data / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = export("coco", data, tmp_path / "coco", "--split", "train", "--split", "test")
    assert "1 changed pair without a mask left out" in said
    listed = json.loads((tmp_path / "coco/instances.json").read_text())["images"]
    assert [one["pair"] for one in listed] == ["p/1", "p/2"]


def test_any_place_is_read_back() -> None:
    """Keeps away: a corner that is cut where pixels touch at a corner, and edges of the image."""
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(60):
        shape = rng.integers(1, 12, 2)
        mask = (rng.random(shape) < rng.choice([0.3, 0.6, 0.9])).astype(np.uint8)
        for _, place in exports.places(mask):
            written = exports.segmentation(place)
            kinds.add(type(written))
            height, width = place.shape
            encoded = coco_masks.frPyObjects(written, height, width)
            encoded = coco_masks.merge(encoded) if isinstance(written, list) else encoded
            assert np.array_equal(coco_masks.decode(encoded), place)
    assert kinds == {list, dict}


def test_a_group_of_fiftyone_for_each_pair(root: Path, tmp_path: Path) -> None:
    """Keeps away: images of two pairs in one group, and a mask of the other image."""
    out = tmp_path / "fiftyone"
    export("fiftyone", root, out, "--split", "train")
    content = json.loads((out / "samples.json").read_text("utf-8"))
    assert (content["name"], content["media_type"]) == ("own", "group")
    assert content["mask_targets"] == {"change": {"1": "road", "2": "house"}}
    fields = content["sample_fields"].keys() | {"filepath", "tags", "metadata"}
    groups: dict[str, dict[str, Any]] = {}
    for sample in content["samples"]:
        assert sample.keys() == fields
        group = sample["group"]
        assert len(bytes.fromhex(group["_id"]["$oid"])) == 12
        groups.setdefault(group["_id"]["$oid"], {})[group["name"]] = sample
    pairs = datasets.open("own", str(root), split="train")
    for sides, pair in zip(groups.values(), pairs, strict=True):
        assert {one["pair"] for one in sides.values()} == {pair.record.id}
        assert sides["after"]["captions"] == list(pair.captions)
        for side, pixels in (("before", pair.before), ("after", pair.after)):
            assert np.array_equal(Image.open(sides[side]["filepath"]), pixels)
            mask = np.asarray(Image.open(sides[side]["change"]["mask_path"]))
            assert np.array_equal(mask > 0, pair.mask > 0)


def test_a_row_of_ms_swift_for_each_caption(root: Path, tmp_path: Path) -> None:
    """Keeps away: images in another order, and names that ms-swift looks for elsewhere."""
    out = tmp_path / "swift"
    export("ms-swift", root, out, "--split", "train", "--question", "Was?")
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 4
    assert not (out / "test.jsonl").exists()
    pair = datasets.open("own", str(root), split="train")[0]
    for row, caption in zip(rows, pair.captions, strict=False):
        question, answer = row["messages"]
        assert question == {"role": "user", "content": "<image><image>Was?"}
        assert answer == {"role": "assistant", "content": caption}
        for path, pixels in zip(row["images"], (pair.before, pair.after), strict=True):
            assert np.array_equal(Image.open(path), pixels)


def loaded_task(folder: Path, name: str) -> dict[str, Any]:
    """A task's YAML, with its functions, as lmms-eval loads it."""
    spec = importlib.util.spec_from_file_location("utils", folder / "utils.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor(
        "!function", lambda loader, node: getattr(module, str(node.value).partition(".")[2])
    )
    return yaml.load((folder / f"{name}.yaml").read_text(), Loader)


def test_a_task_of_lmms_eval_scores_as_we_do(root: Path, tmp_path: Path) -> None:
    """Keeps away: a task that names functions which its folder lacks, and scores of one caption."""
    out = tmp_path / "task"
    assert "task own_train" in export("lmms-eval", root, out, "--split", "train")
    task = loaded_task(out, "own_train")
    [file] = task["dataset_kwargs"]["data_files"].values()
    rows = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
    pairs = datasets.open("own", str(root), split="train")
    judged = []
    for row, pair in zip(rows, pairs, strict=True):
        assert np.array_equal(task["doc_to_visual"](row)[1], pair.after)
        assert task["doc_to_text"](row) == exports.QUESTION
        assert task["doc_to_target"](row) == pair.captions[0]
        judged.append(task["process_results"](row, [f" {pair.captions[1]}\n"]))
    measures = {one["metric"]: one["aggregation"] for one in task["metric_list"]}
    assert judged[0].keys() == measures.keys()
    assert measures["BLEU-4"]([one["BLEU-4"] for one in judged]) == pytest.approx(100)
    assert measures["ROUGE-L"]([one["ROUGE-L"] for one in judged]) == pytest.approx(100)


def test_nothing_is_left_after_a_mistake(root: Path, tmp_path: Path) -> None:
    """Keeps away: half of an export that looks whole, and one over what was there."""
    broken = tmp_path / "broken"
    shutil.copytree(root, broken)
    (broken / "1_after.png").write_bytes(b"no image")
    for place, splits, out, line in (
        (root, ("train",), root, "already exists"),
        (broken, ("train",), tmp_path / "new", "p/1: unreadable image"),
        (broken, ("train",), "s3://bucket/new", "this output is written to a disk"),
    ):
        for kind in ("coco", "fiftyone", "ms-swift"):
            given = [one for split in splits for one in ("--split", split)]
            done = cc_prep("export", kind, "own", "--root", place, *given, "--out", out)
            assert (done.returncode, line in done.stderr) == (2, True), done.stderr
    for file in broken.glob("*_mask.png"):
        file.unlink()
    (broken / "pairs.jsonl").write_text(
        '{"before": "0_before.png", "after": "0_after.png", "split": "test"}\n'
    )
    for kind, what in (("coco", "no masks"), ("ms-swift", "no captions"), ("lmms-eval", "no cap")):
        done = cc_prep("export", kind, "own", "--root", broken, "--out", tmp_path / "new",
                       "--split", "test")  # fmt: skip
        assert (done.returncode, what in done.stderr) == (2, True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]
