"""The card of training shards, and what the `datasets` library makes of both."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet
import pytest
import yaml

from cc_prep import storage
from cc_prep.formats import provenance, training_shards
from cc_prep.records import FrameSequence, ImagePair
from cc_train import open_shards
from tests.commands import cc_prep

FRAMES, SPLITS = 5, {"train": 6, "val": 2, "test": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of three splits; samples have different keyframes, and only changed pairs a mask."""
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    index = {}
    for split, count in SPLITS.items():
        with training_shards.write_shard(str(folder / f"{split}-000000.tar")) as (writer, written):
            for number in range(count):
                kind = ("change", "no_change")[number % 2]
                pair = ImagePair("mine", split, str(number), kind, "a.png", "b.png", ("one", "two"))
                frames = rng.integers(0, 256, (FRAMES, 16, 32, 3), np.uint8)
                mask = np.zeros((16, 32), np.uint8) if kind == "change" else None
                images = [0, 1 + number % (FRAMES - 2), FRAMES - 1]
                tokens, scores = rng.integers(0, 9, (FRAMES, 1, 2)), np.zeros((2, 2, FRAMES))
                sequence = FrameSequence(pair, frames, mask=mask)
                members = training_shards.encode(
                    sequence, tokens, scores, images, quality=95, processing_meta={}
                )
                writer.add(pair.key, members)
        index[f"{split}-000000"] = written.index
    training_shards.write_index(str(folder), index)
    about = {
        "format": training_shards.FORMAT.name,
        "format_version": training_shards.FORMAT.version,
        "settings": {"name": "mine"},
    }
    shards = {name: {"sha256": storage.sha256(folder / f"{name}.tar")} for name in index}
    provenance.write(str(folder), {**about, "complete": True, "shards": shards})
    return folder


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


def test_shards_and_their_card_load_with_datasets(
    folder: Path, tmp_path: Path, offline: None
) -> None:
    """Keeps away: shards that `datasets` refuses since not all samples have masks."""
    done = cc_prep("card", folder, "--license", "mit")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(folder / "README.md"), str(folder / "croissant.json")]
    card = (folder / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "mit"
    splits = [one["split"] for one in header["configs"][0]["data_files"]]
    assert splits == ["train", "test", "val"]
    own = {sample["__key__"]: sample for sample in open_shards(str(folder / "*.tar"))}
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    rows = {row["__key__"]: row for split in splits for row in loaded[split]}
    assert rows.keys() == own.keys()
    for key, sample in own.items():
        row = rows[key]
        assert row["json"]["captions"] == sample["json"]["captions"]
        assert np.array_equal(np.array(row["tokens.npy"]), sample["tokens.npy"])
        assert row["f00.jpg"].size == sample["before"].shape[1::-1]
        assert (row["mask.png"] is None) == ("mask.png" not in sample)
    assert {"changed", "unchanged"} <= set(card.split())


def test_croissant_names_the_files_and_the_columns(folder: Path) -> None:
    """Keeps away: a description whose digests or columns are those of other files."""
    cc_prep("card", folder, "--license", "mit")
    content = json.loads((folder / "croissant.json").read_text())
    assert (content["name"], content["license"]) == ("mine", "mit")
    files = {one["@id"]: one for one in content["distribution"]}
    assert files.keys() == {"index", *(f"{split}-000000" for split in SPLITS)}
    for file in files.values():
        assert file["sha256"] == storage.sha256(folder / file["contentUrl"])
    [records] = content["recordSet"]
    index = pyarrow.parquet.read_table(folder / files["index"]["contentUrl"])
    for field in records["field"]:
        assert field["source"]["fileObject"] == {"@id": "index"}
        kind = index.schema.field(field["source"]["extract"]["column"]).type
        assert field.get("repeated", False) == pyarrow.types.is_list(kind)


def test_the_builder_of_webdataset_takes_them_by_the_card(
    folder: Path, tmp_path: Path, offline: None
) -> None:
    cc_prep("card", folder)
    header = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert "license" not in header
    features = datasets.Features._from_yaml_list(header["dataset_info"]["features"])
    files = {"train": str(folder / "train-*.tar")}
    loaded = datasets.load_dataset(
        "webdataset", data_files=files, split="train", features=features, streaming=True
    )
    assert sum(1 for _ in loaded) == SPLITS["train"]


def test_a_folder_without_shards_is_one_line(tmp_path: Path) -> None:
    done = cc_prep("card", tmp_path)
    assert (done.returncode, "Give the folder that `cc-prep` wrote" in done.stderr) == (2, True)
