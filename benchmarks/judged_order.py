"""Does a judge put captioners into the order that the truth has? Shown on rendered pairs.

    python benchmarks/judged_order.py out/judged                     # a stand-in that reads facts
    python benchmarks/judged_order.py out/judged --judge MODEL --judge-url URL

Three systems caption the same pairs: captioner-mini, captioner-mini that sees them as 28 px images,
and captioner-mini with its captions dealt to other pairs. What truly changed is known, so `exact`
is the truth's verdict and needs no judge. Of the judge are F1, specificity and reversibility, and
the share of its verdicts on changed pairs that are the truth's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

import click
import cv2
import numpy as np
from rich.console import Console

from cc_prep import datasets, manifest
from cc_prep.media import images
from cc_prep.synth import dataset
from cc_train import Captioner
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.captions.coco import Item
from cc_train.evaluation.judging import judge_captions
from cc_train.evaluation.judging.judge_captions import Options

# The path of a program starts with its own folder, and the tests lie beside that.
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import judge_factory
from tests.server_factory import MODEL, serving

SMALL = 28  # px of a side
SIZE, SEED = 112, 1  # captioner-mini was trained on scenes of seed 7 at this size
Pair = tuple[np.ndarray, np.ndarray]


def rendered(root: Path, scenes: int) -> tuple[list[Item], list[Pair]]:
    """The pairs of scenes, which are rendered unless they are there, and their images."""
    settings = dataset.Settings(seed=SEED, size=SIZE, wording="both")
    for _ in dataset.make(str(root), scenes, settings, workers=1):
        pass
    known = manifest.load("synth", root=str(root))
    pairs = [pair for split in known.splits for pair in datasets.pairs(known, split)]
    metas = [{**pair.to_json(), "key": pair.key} for pair in pairs]
    shown = [
        (images.read(str(root / pair.before)), images.read(str(root / pair.after)))
        for pair in pairs
    ]
    return coco.items(metas), shown


def captioned(captioner: Captioner, pairs: list[Pair], side: int | None = None) -> list[str]:
    """Captions of pairs, as images of `side` px where it is given."""

    def seen(image: np.ndarray) -> np.ndarray:
        if side is None:
            return image
        small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
        return cv2.resize(small, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)

    return [captioner(seen(before), seen(after)).text for before, after in pairs]


@contextlib.contextmanager
def judging(model: str | None, url: str | None) -> Iterator[Options]:
    """The judge that is asked: the one that is named, or the stand-in."""
    if model is not None and url is not None:
        yield Options(model, url)
        return
    with serving(judge_factory.JudgeServer(judge_factory.by_facts)) as server:
        yield Options(MODEL, server.address)


@click.command()
@click.argument("out", type=Path)
@click.option("--scenes", default=20, show_default=True)
@click.option("--judge")
@click.option("--judge-url")
def main(out: Path, scenes: int, judge: str | None, judge_url: str | None) -> None:
    items, pairs = rendered(out / "scenes", scenes)
    captioner = Captioner.from_pretrained("captioner-mini", device="cpu")
    turned = [(after, before) for before, after in pairs]
    names = [item.id for item in items]
    mini, mini_turned = (captioned(captioner, shown) for shown in (pairs, turned))
    weak, weak_turned = (captioned(captioner, shown, SMALL) for shown in (pairs, turned))
    dealt = np.random.default_rng(0).permutation(len(names))
    systems = {
        "captioner-mini": (mini, mini_turned),
        f"the same at {SMALL} px": (weak, weak_turned),
        "captions dealt anew": ([mini[n] for n in dealt], [mini_turned[n] for n in dealt]),
    }
    print("| system | exact | CIDEr | F1 | specificity | reversibility | as the truth |")
    print("|---|---|---|---|---|---|---|")
    with judging(judge, judge_url) as options, mock.patch.dict(os.environ, {"NO_PROXY": "*"}):
        for name, texts in systems.items():
            captions, swapped = (dict(zip(names, one, strict=True)) for one in texts)
            folder = out / f"{options.model}-{name.replace(' ', '-')}"
            scores = evaluation.evaluate(items, captions, metrics.PLAIN)  # no Java
            scores = replace(
                scores, swapped=evaluation.swap_check(items, captions, swapped),
                swapped_captions=swapped,
            )  # fmt: skip
            bench = judge_captions.prepared(options)
            folder.mkdir(parents=True, exist_ok=True)
            scores = judge_captions.judged(
                bench, scores, items, captions, swapped, folder, Console(stderr=True)
            )
            evaluation.write(folder, scores, items, captions)
            print(row(name, scores, items))


def row(name: str, scores: evaluation.Evaluation, items: list[Item]) -> str:
    """A system's figures, by the truth and by the judge."""
    assert scores.rendered is not None
    assert scores.judged is not None
    exact = scores.rendered.scores.shares["exact"].share
    total = scores.judged.scores.groups["total"]
    figures = [total[key].value for key in ("F1", "specificity", "reversibility") if key in total]
    alike = [
        said == scores.rendered.verdicts[item.id].exact
        for item in items
        for said in right(scores.judged.pairs[item.name])
        if item.facts is not None and item.facts.type != "none"
    ]
    cells = [100 * exact, scores.groups["total"].corpus["CIDEr"], *figures]
    cells.append(100 * sum(alike) / len(alike) if alike else float("nan"))
    return f"| {name} | " + " | ".join(f"{value:.1f}" for value in cells) + " |"


def right(said: Mapping[str, list[dict[str, object]]]) -> list[bool]:
    """Whether each asking calls the caption of a changed pair right, without any other claim."""
    return [one["said"] == [[0], 0] for one in said.get("matching", ()) if "said" in one]


if __name__ == "__main__":
    main()
