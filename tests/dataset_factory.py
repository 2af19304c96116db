"""Each data set of the field in its official layout, small enough to be made in a test.

And the photographs and cut-outs of which `cc-prep composites` makes one.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from cc_prep import manifest
from cc_prep.manifest import Manifest

SIDE = 32
PASTED_CLASSES = ("car", "orange", "traffic light")  # of the cut-outs


def image(path: Path, seed: int | None = None) -> None:
    """A flat grey image, or by its seed one like no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((SIDE, SIDE, 3), 90, np.uint8)
    if seed is not None:
        coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
        pixels = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(path), pixels)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def spot(root: Path) -> Manifest:
    rows = {
        "train": [
            {"img_id": "7", "sentences": ["the car is gone", " "]},
            {"img_id": 8, "sentences": ["a man left.", "a dog came"]},
            {"img_id": "7", "sentences": ["no more car"]},
        ],
        "val": [{"img_id": "9", "sentences": ["same"]}],
        "test": [{"img_id": "8", "sentences": ["there are no differences"]}],
    }
    for split, entries in rows.items():
        write(root / f"annotations/{split}.json", entries)
    for name in ("7.png", "7_2.png", "8.jpg", "8_2.jpg", "9.png", "9_2.png"):
        image(root / "resized_images" / name)
    return manifest.load("spot", root=str(root))


def edit(root: Path) -> Manifest:
    for split, names in (("train", ("train", "more")), ("valid", ("valid",)), ("test", ("test",))):
        rows = [
            {
                "uid": f"Z_{name}",
                "img0": "a b.jpg",
                "img1": f"{name}.jpg",
                "sents": ["more light "],
            }
            for name in names
        ]
        write(root / f"{split}.json", rows)
        for name in names:
            image(root / "images" / f"{name}.jpg", len(name) + ord(name[0]))
    image(root / "images" / "a b.jpg")
    return manifest.load("edit", root=str(root))


def levir(root: Path) -> Manifest:
    rows = []
    for number, split in enumerate(("train", "val", "test", "train")):
        name = f"{split}_{number:06d}.png"
        sentences = [{"raw": f" caption {i} ."} for i in range(5)]
        rows.append(
            {"filename": name, "split": split, "changeflag": number % 2, "sentences": sentences}
        )
        for at, side in enumerate("AB"):
            image(root / "images" / split / side / name, 10 * number + at)
    write(root / "LevirCCcaptions.json", {"images": rows})
    return manifest.load("levir", root=str(root))


def levir_mci(root: Path) -> Manifest:
    """Labels as the archive has them: grey values 0, 128 and 255, in all pairs."""
    levir(root)
    for number, split in enumerate(("train", "val", "test", "train")):
        label = np.zeros((SIDE, SIDE), np.uint8)
        if number % 2:
            label[4:12, 4:20], label[20:28, 8:16] = 128, 255
        path = root / f"images/{split}/label/{split}_{number:06d}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), label)
    return manifest.load("levir_mci", root=str(root))


def whu_cdc(root: Path) -> Manifest:
    levir(root)
    (root / "LevirCCcaptions.json").rename(root / "whuCCcaptions.json")
    for number, split in enumerate(("train", "val", "test", "train")):
        label = np.zeros((SIDE, SIDE), np.uint8)
        label[4:12, 4:20] = number % 2
        path = root / f"images/{split}/label/{split}_{number:06d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(label.astype(bool)).save(path)  # one bit a pixel
    return manifest.load("whu_cdc", root=str(root))


def second_cc(root: Path) -> Manifest:
    """White where nothing changed, else what covers the ground: trees become buildings."""
    rows = []
    for number, split in enumerate(("train", "val", "test", "train")):
        name = f"{number:05d}_0_0.png"
        sentences = [{"raw": f" caption {i} .", "tokens": ["caption", str(i)]} for i in range(5)]
        rows.append(
            {"filename": name, "split": split, "filepath": split, "changeflag": number % 2,
             "sentences": sentences}
        )  # fmt: skip
        for at, (side, colour) in enumerate((("A", (0, 255, 0)), ("B", (128, 0, 0)))):
            image(root / split / "rgb" / side / name, 10 * number + at)
            cover = np.full((SIDE, SIDE, 3), 255, np.uint8)
            if number % 2:
                cover[8:24, 8:24] = colour
            path = root / split / "sem" / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(cover).save(path)
    write(root / "SECOND-CC-AUG.json", {"images": rows})
    return manifest.load("second_cc", root=str(root))


def clevr(root: Path) -> Manifest:
    names = [f"{i:06d}.png" for i in range(4)]
    for i, name in enumerate(names):
        for at, (folder, word) in enumerate(
            (("images", "default"), ("sc_images", "semantic"), ("nsc_images", "nonsemantic"))
        ):
            image(root / folder / f"CLEVR_{word}_{name}", 10 * i + at)
    captions = {f"CLEVR_default_{name}": ["the red cube moved", "it moved"] for name in names}
    write(root / "change_captions.json", captions)
    write(root / "no_change_captions.json", {name: ["nothing changed"] for name in captions})
    write(root / "splits.json", {"train": [0, 1], "val": [2], "test": [3]})
    write(root / "type_mapping.json", {"move": names})
    return manifest.load("clevr", root=str(root))


def clevr_dc(root: Path) -> Manifest:
    splits = {"train": [0, 8_001, 40_000], "val": [16_000], "test": [32_000]}
    indices = [i for listed in splits.values() for i in listed]
    for i in indices:
        image(root / f"bef/{i}.png", i)
        image(root / f"aft/{i}.png", i + 1)
    captions = {str(i): [f"change {i} ", "another"] for i in indices}
    write(root / "captions.json", {**captions, "40000": ["no change was made"]})
    write(root / "split.json", splits)
    return manifest.load("clevr_dc", root=str(root))


def own(root: Path) -> Manifest:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["before", "after", "caption", "split"])
        for i, split in enumerate(("train", "train", "val", "test")):
            rows.writerow([f"a {i}.png", f"é {i}.png", "the lamp is on", split])
            image(root / f"a {i}.png", 10 * i)
            image(root / f"é {i}.png", 10 * i + 1)
    return manifest.load("own", root=str(root))


def folders(root: Path) -> Manifest:
    for i, split in enumerate(("train", "train", "val", "test")):
        image(root / split / f"before/{i}.png", 10 * i)
        image(root / split / f"after/{i}.jpg", 10 * i + 1)
        captions = root / split / f"captions/{i}.txt"
        captions.parent.mkdir(exist_ok=True)
        captions.write_text("a tree grew\n\nthere is a tree \n")
    return manifest.load("own", ["layout=folders"], root=str(root))


MAKERS: dict[str, Callable[[Path], Manifest]] = {
    "clevr": clevr,
    "clevr_dc": clevr_dc,
    "spot": spot,
    "edit": edit,
    "levir": levir,
    "levir_mci": levir_mci,
    "second_cc": second_cc,
    "whu_cdc": whu_cdc,
    "own": own,
    "folders": folders,
}


def photograph(seed: int, side: int = 160) -> np.ndarray:
    """A textured ground, uint8 [side, side + 32, 3]."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 200, (6, 7, 3)).astype(np.float32)
    fine = rng.normal(0, 25, (side // 2, side // 2, 3)).astype(np.float32)
    parts = [
        cv2.resize(x, (side + 32, side), interpolation=cv2.INTER_CUBIC) for x in (coarse, fine)
    ]
    return (parts[0] + parts[1]).clip(0, 255).astype(np.uint8)


def cutout(seed: int, side: int = 64) -> np.ndarray:
    """A blob with stripes in front of nothing, uint8 [side, side, 4] RGBA."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((side, side, 4), np.uint8)
    points = np.stack([rng.uniform(4, side - 4, 12), rng.uniform(4, side - 4, 12)], axis=1)
    hull = cv2.convexHull(points.astype(np.float32)).astype(np.int32)
    shape = cv2.fillPoly(np.zeros((side, side), np.uint8), [hull], 255)
    pixels[...] = rng.integers(0, 256, 4)
    pixels[:: rng.integers(2, 9)] = rng.integers(0, 256, 4)
    pixels[..., 3] = shape
    return pixels


def composites(folder: Path) -> tuple[str, str]:
    """A folder of six backgrounds, two of them alike, and one of cut-outs, three of each class."""
    pictures, objects = folder / "photos", folder / "objects"
    (pictures / "more").mkdir(parents=True)
    for i in range(5):
        assert cv2.imwrite(str(pictures / f"{i}.png"), photograph(i))
    assert cv2.imwrite(str(pictures / "more" / "0.jpg"), photograph(0))
    for i, name in enumerate(PASTED_CLASSES):
        (objects / name.replace(" ", "_")).mkdir(parents=True)
        for j in range(3):
            path = objects / name.replace(" ", "_") / f"{j}.png"
            assert cv2.imwrite(str(path), cutout(10 * i + j)[..., [2, 1, 0, 3]])
    return str(pictures), str(objects)
