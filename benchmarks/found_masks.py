"""Found masks against the true masks of rendered pairs: IoU, and the marked area of unchanged ones.

    cc-prep synth out/fresh --scenes 200 --seed 996 --size 112
    cc-prep synth out/still --scenes 100 --seed 997 --size 112 --jitter 0
    python benchmarks/found_masks.py out/fresh out/still

Each row is a setting of the manifest's section `changes`; the first is the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import click
import numpy as np
from lib.measuring import report

from cc_prep import datasets, manifest, storage
from cc_prep.manifest import Changes, Manifest
from cc_prep.media import images, masks
from cc_prep.records import CHANGE, ImagePair
from cc_prep.steps import changes
from cc_prep.steps.changes.finding import iou
from cc_prep.steps.changes.segmenters import make

ROWS: dict[str, dict[str, object]] = {
    "default": {},
    "relative 0": {"relative": 0.0},
    "relative 0.3": {"relative": 0.3},
    "relative 0.5": {"relative": 0.5},
    "segmenter none": {"segmenter": "none"},
    "tolerance 0": {"tolerance": 0},
    "tolerance 2": {"tolerance": 2},
    "tolerance 4": {"tolerance": 4},
    "tolerance 0, relative 0": {"tolerance": 0, "relative": 0.0},
    "delta 15": {"delta": 15.0},
    "delta 25": {"delta": 25.0},
    "delta 40": {"delta": 40.0},
    "top 1": {"top": 1},
    "relative 0.3, delta 15, blur 0.5": {"relative": 0.3, "delta": 15.0, "blur": 0.5},
}
Triple = tuple[ImagePair, np.ndarray, np.ndarray, "np.ndarray | None"]


def read(settings: Manifest, pair: ImagePair) -> Triple:
    """A pair with its images, and its true mask bool [H, W] where it has one."""
    before, after = (
        images.read(storage.resolve(settings.root, path), settings.image_size)
        for path in (pair.before, pair.after)
    )
    mask = masks.of_pair(settings.root, pair, *before.shape[:2]).union
    return pair, before, after, None if mask is None else mask > 0


def measure(pairs: Sequence[Triple], settings: Changes) -> dict[str, float]:
    """Mean IoU, recall and precision over changed pairs, the marked share of the others, ms."""
    segmenter = make(settings, None, "cpu")
    scores, recalls, precisions, empty, shares = [], [], [], 0, []
    started = time.perf_counter()
    for pair, before, after, truth in pairs:
        mask = changes.find(before, after, settings, segmenter).mask
        marked = np.zeros(before.shape[:2], bool) if mask is None else mask
        if pair.kind != CHANGE:
            shares.append(float(marked.mean()))
        elif truth is not None and truth.any():
            scores.append(iou(marked, truth))
            recalls.append((marked & truth).sum() / truth.sum())
            precisions.append((marked & truth).sum() / max(1, marked.sum()))
            empty += not marked.any()
    return {
        "changed pairs": len(scores),
        "IoU": float(np.mean(scores)),
        "recall": float(np.mean(recalls)),
        "precision": float(np.mean(precisions)),
        "nothing found": empty,
        "unchanged marked": float(np.mean(shares)) if shares else float("nan"),
        "ms a pair": 1000 * (time.perf_counter() - started) / len(pairs),
    }


@click.command()
@click.argument("roots", nargs=-1, required=True)
@click.option("--only", default="", help="Rows whose name begins so.")
@click.option("--size", type=int, help="Resize to this side; default: as rendered.")
def main(roots: Sequence[str], only: str, size: int | None) -> None:
    """Prints a table for each of ROOTS, folders that cc-prep synth wrote."""
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for root in roots:
        settings = manifest.load("synth", [f"image_size={size or 'null'}"], root)
        pairs = [
            read(settings, pair)
            for split in settings.splits
            for pair in datasets.pairs(settings, split)
        ]
        print(f"\n{root}: {len(pairs)} pairs of {pairs[0][1].shape[1]} px\n")
        print("| changes | IoU | recall | precision | nothing found | unchanged, marked | ms |")
        print("|---|---|---|---|---|---|---|")
        for name, values in ROWS.items():
            if name.startswith(only):
                row = measure(pairs, Changes.model_validate(values))
                figures.setdefault(root, {})[name] = {
                    of: None if math.isnan(figure) else figure for of, figure in row.items()
                }
                print(
                    f"| {name} | {row['IoU']:.3f} | {row['recall']:.3f} | {row['precision']:.3f} "
                    f"| {row['nothing found']:.0f} of {row['changed pairs']:.0f} "
                    f"| {row['unchanged marked']:.2%} | {row['ms a pair']:.1f} |",
                    flush=True,
                )
    report("found_masks", {"size": size, "roots": figures})


if __name__ == "__main__":
    main()
