"""Registration of rendered pairs whose image after is shifted, turned, rescaled or seen from aside.

    cc-prep synth out/still --scenes 60 --seed 995 --size 224 --jitter 0 --wording plain
    cc-prep synth out/fresh --scenes 200 --seed 994 --size 112
    python benchmarks/registration.py out/still out/fresh

The camera of the first scenes does not move, so the motion is known: a table has the share of pairs
that are registered within 1 px (the mean over the image), and how many are refused. For both sets a
second table has what registration gives: exact captions of captioner-mini, and the IoU of the masks
of `cc-prep changes` with the true ones. The motion is drawn anew for each pair: up to 8 % of the
width, 8 degrees, and a tenth of the size; corners move by up to 5 % of the width. With `photos` in
place of a folder the first table is of the photographs that scikit-image brings, with a strange
patch, other light and noise in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
from lib.measuring import report

from cc_prep import datasets, manifest, storage
from cc_prep.errors import RejectedPair
from cc_prep.manifest import Changes, Pairs
from cc_prep.media import images, masks
from cc_prep.media.registration import Registration, on_one_grid
from cc_prep.records import CHANGE, ImagePair
from cc_prep.steps import changes
from cc_prep.steps.changes.finding import iou
from cc_prep.steps.changes.segmenters import make
from cc_train import Captioner
from cc_train.evaluation.rendered.fact_scores import judge

SHIFT, TURN, RESIZE, ASIDE = 0.08, 8.0, 0.1, 0.05
MODELS = {
    "shifted": "translation",
    "turned": "affine",
    "rescaled": "affine",
    "all three": "affine",
    "from aside": "homography",
}
PHOTOS = (
    "coffee.png", "astronaut.png", "hubble_deep_field.jpg", "retina.jpg", "ihc.png", "rocket.jpg",
    "chelsea.png", "motorcycle_left.png", "brick.png", "grass.png", "gravel.png", "coins.png",
    "page.png", "moon.png",
)  # fmt: skip
Pixels = tuple[np.ndarray, np.ndarray]


def motion(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A motion of the image after, float64 [3, 3] in px."""
    height, width = shape[:2]
    if kind == "from aside":
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        ends = corners + rng.uniform(-ASIDE, ASIDE, (4, 2)).astype(np.float32) * width
        return np.asarray(cv2.getPerspectiveTransform(corners, ends))
    shift, turn, size = np.eye(3), np.eye(3), np.eye(3)
    if kind in ("shifted", "all three"):
        shift[:2, 2] = rng.uniform(-SHIFT, SHIFT, 2) * width
    if kind in ("turned", "all three"):
        angle = np.deg2rad(rng.uniform(-TURN, TURN))
        turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    if kind in ("rescaled", "all three"):
        size = np.diag([*[rng.uniform(1 - RESIZE, 1 + RESIZE)] * 2, 1])
    middle = np.array([[1, 0, width / 2], [0, 1, height / 2], [0, 0, 1]])
    return np.asarray(middle @ shift @ turn @ size @ np.linalg.inv(middle))


def moved(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The image as a camera sees it that moved; what it did not show is mirrored."""
    return cv2.warpPerspective(
        image, matrix, image.shape[1::-1], flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101
    )


def miss(found: Registration, true: np.ndarray) -> float:
    """Px by which a found motion is off, the mean over the part of the image that stays in it."""
    height, width = found.size
    y, x = np.mgrid[0:height:9j, 0:width:9j]
    points = np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    ends = [(one := matrix @ points)[:2] / one[2] for matrix in (found.matrix, true)]
    inside = ((ends[1] >= 0) & (ends[1] < [[width], [height]])).all(axis=0)
    return float(np.linalg.norm(ends[0] - ends[1], axis=0)[inside].mean())


def registered(pair: Pixels, kind: str) -> tuple[Pixels, Registration] | None:
    """Both images on one grid and the motion; None where it is refused."""
    try:
        *both, found = on_one_grid(*pair, Pairs(register=MODELS[kind]))  # type: ignore[arg-type]
    except RejectedPair:
        return None
    assert found is not None
    return (both[0], both[1]), found


def rendered(root: str) -> Iterator[tuple[ImagePair, Pixels, np.ndarray]]:
    """The changed pairs of a folder of cc-prep synth, their images and true masks."""
    settings = manifest.load("synth", ["image_size=null"], root)
    for split in settings.splits:
        for pair in datasets.pairs(settings, split):
            if pair.kind == CHANGE:
                before, after = (
                    images.read(storage.resolve(root, path)) for path in (pair.before, pair.after)
                )
                mask = masks.of_pair(root, pair, *before.shape[:2]).union
                assert mask is not None
                yield pair, (before, after), mask > 0


def photos() -> Iterator[Pixels]:
    """Photographs with a patch of another one in the image after."""
    import skimage.data

    folder = Path(skimage.data.__file__).parent
    pictures = [images.resize(images.read(str(folder / name)), (320, 400)) for name in PHOTOS]
    for number, before in enumerate(pictures):
        after = before.copy()
        after[100:180, 150:250] = pictures[number - 1][100:180, 150:250]
        yield before, after


def accuracy(pairs: list[Pixels], seen: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    """The share of pairs registered within 1 px, and the refused ones, by kind of motion.

    Args:
        seen: What else happens to the image after.
    """
    rows = {}
    print("| motion | model | within 1 px | median px | refused |\n|---|---|---|---|---|")
    for kind, model in MODELS.items():
        rng = np.random.default_rng(7)
        misses, refused = [], 0
        for before, after in pairs:
            matrix = motion(kind, before.shape, rng)
            result = registered((before, seen(moved(after, matrix))), kind)
            refused += result is None
            misses.append(float("inf") if result is None else miss(result[1], matrix))
        rows[kind] = {
            "within 1 px": float(np.mean(np.array(misses) < 1)),
            "median": float(np.median(misses)),
            "refused": refused / len(pairs),
        }
        one = rows[kind]
        print(
            f"| {kind} | {model} | {one['within 1 px']:.1%} | {one['median']:.2f} "
            f"| {one['refused']:.1%} |",
            flush=True,
        )
    return rows


def gain(root: str, limit: int | None) -> dict[str, Any]:
    """Exact captions and IoU of found masks: unmoved, moved, and moved and registered."""
    captioner = Captioner.from_pretrained("captioner-mini", device="cpu")
    found = list(islice(rendered(root), limit))
    segmenter, settings = make(Changes(), None, "cpu"), Changes()

    def figures(pairs: list[Pixels | None]) -> dict[str, float]:
        there = [number for number, pair in enumerate(pairs) if pair is not None]
        captions = captioner([pairs[number] for number in there])  # type: ignore[misc]
        exact, scores = 0, []
        for number, caption in zip(there, captions, strict=True):
            pair, _, truth = found[number]
            assert pair.facts is not None
            own = caption.text if caption.raw is None else caption.raw
            exact += judge(own, pair.facts, pair.captions).exact
            both = pairs[number]
            assert both is not None
            mask = changes.find(*both, settings, segmenter).mask
            scores.append(0.0 if mask is None else iou(mask, truth))
        return {"exact": exact / len(pairs), "IoU": sum(scores) / len(pairs)}

    rows: dict[str, Any] = {"unmoved": figures([pair for _, pair, _ in found])}
    print("| motion | exact | IoU | exact, registered | IoU, registered |\n|---|---|---|---|---|")
    print(f"| none | {rows['unmoved']['exact']:.1%} | {rows['unmoved']['IoU']:.3f} | | |")
    for kind in MODELS:
        rng = np.random.default_rng(7)
        plain: list[Pixels | None] = []
        laid: list[Pixels | None] = []
        for _, (before, after), _ in found:
            pair = (before, moved(after, motion(kind, before.shape, rng)))
            result = registered(pair, kind)
            plain.append(pair)
            laid.append(None if result is None else result[0])
        rows[kind] = {"moved": figures(plain), "registered": figures(laid)}
        one, other = rows[kind]["moved"], rows[kind]["registered"]
        print(
            f"| {kind} | {one['exact']:.1%} | {one['IoU']:.3f} | {other['exact']:.1%} "
            f"| {other['IoU']:.3f} |",
            flush=True,
        )
    return rows


@click.command()
@click.argument("roots", nargs=-1, required=True)
@click.option("--limit", type=int, help="At most so many pairs of each folder.")
def main(roots: tuple[str, ...], limit: int | None) -> None:
    """Prints the tables of ROOTS, folders that cc-prep synth wrote; the first without jitter."""
    figures: dict[str, Any] = {}
    if roots[0] == "photos":
        rng = np.random.default_rng(8)

        def seen(image: np.ndarray) -> np.ndarray:
            lit = image * rng.uniform(0.8, 1.2) + rng.normal(0, 5, image.shape)
            return lit.clip(0, 255).astype(np.uint8)

        figures["photos"] = accuracy(list(photos()), seen)
    else:
        pairs = [pair for _, pair, _ in islice(rendered(roots[0]), limit)]
        print(f"\n{roots[0]}: {len(pairs)} changed pairs of {pairs[0][0].shape[1]} px\n")
        figures["accuracy"] = accuracy(pairs, lambda image: image)
        for root in roots:
            print(f"\n{root}\n")
            figures[root] = gain(root, limit)
    report("registration", figures)


if __name__ == "__main__":
    main()
