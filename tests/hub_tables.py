"""Tables as they are published on a hub: images in them, beside them, and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.dataset_factory import SIDE, image, write

SENTENCES = ("the lamp is on", "nothing has changed", "a car came", "the tree is gone")


def encoded(seed: int) -> bytes:
    """A PNG of smooth colours by its seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    pixels = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    return bytes(cv2.imencode(".png", pixels)[1].tobytes())


def struct(seed: int) -> dict[str, Any]:
    """A value of a column of images."""
    return {"bytes": encoded(seed), "path": f"{seed}.png"}


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)


def diffspot(root: Path) -> None:
    """Structs of images in two files of a split and one of another, DiffSpot's columns."""
    for name, numbers in {
        "train-00000-of-00002": range(0, 5),
        "train-00001-of-00002": range(5, 8),
        "test-00000-of-00001": range(8, 11),
    }.items():
        rows = [
            {
                "image_before": struct(2 * i),
                "image_after": struct(2 * i + (i % 4 != 1)),
                "task_type": "layout",
                "ground_truth_diff": SENTENCES[i % 4],
                "mutation_types": ["color"],
                "target_bbox_x": 3,
            }
            for i in numbers
        ]
        write_parquet(root / f"data/{name}.parquet", rows, row_group_size=2)


def mantis(root: Path) -> None:
    """A list of images and a conversation a row."""
    rows = [
        {
            "images": [struct(2 * i), struct(2 * i + 1)],
            "conversation": [
                {"role": "user", "content": "What changed?"},
                {"role": "assistant", "content": SENTENCES[i % 4]},
            ],
        }
        for i in range(6)
    ]
    write_parquet(root / "train-00000-of-00001.parquet", rows)


def imagefolder(root: Path) -> None:
    """A folder with `metadata.csv` for each split, two columns of file names in it."""
    for number, (split, count) in enumerate((("train", 4), ("validation", 2), ("test", 2))):
        lines = ["before_file_name,after_file_name,text"]
        for i in range(count):
            for at, side in enumerate(("before", "after")):
                image(root / split / side / f"{i}.png", 100 * number + 10 * i + at)
            lines.append(f"before/{i}.png,after/{i}.png,{SENTENCES[i % 4]}")
        (root / split / "metadata.csv").write_text("\n".join(lines))


def conversations(root: Path) -> None:
    """Instructions as ChangeChat-105k has them, with questions of several kinds."""
    rows = []
    for i in range(6):
        names = [f"train/{side}/train_{i:06d}.png" for side in "AB"]
        for at, name in enumerate(names):
            image(root / "images" / name, 10 * i + at)
        for question, answer in (
            ("Please describe the changes.", SENTENCES[i % 4]),
            ("How many buildings came?", "3"),
        ):
            turns = [
                {"from": "human", "value": f"<image>\n<image>\n{question}"},
                {"from": "gpt", "value": answer},
            ]
            rows.append(
                {"id": f"{i}_{question[:3]}", "image": names, "changeflag": int(i % 4 != 1),
                 "conversations": turns}
            )  # fmt: skip
    write(root / "ChangeChat.json", rows)


def c3_bench(root: Path) -> None:
    """Items in `data/items.json`, whose paths begin at the root."""
    items = []
    for i in range(4):
        paths = [f"data/street/signs/{i}_t{side}.png" for side in (0, 1)]
        for at, path in enumerate(paths):
            image(root / path, 10 * i + at)
        items.append(
            {"index": i, "domain": "street", "topic": "signs", "image_t0_path": paths[0],
             "image_t1_path": paths[1], "captions": [SENTENCES[i % 4], "another"]}
        )  # fmt: skip
    write(root / "data/items.json", items)


def karpathy(root: Path, file: str = "dataset_karp.json", folder: str = "imgs/{side}") -> None:
    """`images[].sentences[].raw` without flags, the images in two folders of any name."""
    rows = []
    for i, split in enumerate(("train", "train", "val", "test")):
        name = f"{split}_{i}.png"
        rows.append({"filename": name, "split": split, "sentences": [{"raw": SENTENCES[i % 4]}]})
        for at, side in enumerate("AB"):
            image(root / folder.format(side=side, split=split) / name, 10 * i + at)
    write(root / file, {"images": rows, "dataset": "karp"})


def forest_change(root: Path) -> None:
    """LEVIR-MCI's folders, a file of another name, rows without split and flag."""
    karpathy(root, "ForestChatcaptions.json", "images/{split}/{side}")
    value = json.loads((root / "ForestChatcaptions.json").read_text())
    for row in value["images"]:
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[4:12, 4:20] = 0 if row["sentences"][0]["raw"] == SENTENCES[1] else 255
        path = root / "images" / row.pop("split") / "label" / row["filename"]
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), mask)
    write(root / "ForestChatcaptions.json", value)


def fotbcd(root: Path) -> None:
    """Folders of images and masks by split, no captions."""
    for number, (split, count) in enumerate((("train", 3), ("val", 1), ("test", 1))):
        for i in range(count):
            for at, side in enumerate(("before", "after")):
                image(root / "images" / split / side / f"{i}.png", 100 * number + 10 * i + at)
            mask = np.zeros((SIDE, SIDE), np.uint8)
            mask[4:12, 4:20] = 1
            path = root / "images" / split / "label" / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            cv2.imwrite(str(path), mask)
