"""Measures photos-mini on real pairs of videos, and fits its confidence.

    python benchmarks/photo_captions.py measure out/real
    python benchmarks/photo_captions.py turned out/real
    python benchmarks/photo_captions.py page out/real docs/images/photo-captions.jpg
    python benchmarks/photo_captions.py fit out/real
    python benchmarks/photo_captions.py pairs out/real out/own
    python benchmarks/photo_captions.py own out/own/evaluation

OUT gets the videos and the pairs (see lib/real_pairs.py). `measure` captions the second half, which
nothing was chosen on, `turned` does so where the camera turned as well, and `page` shows pairs of
it, drawn by chance; `fit` takes the first half, and writes cc_train/assets/photos-mini. `pairs`
writes both halves as own pairs, to train on and to test, and `own` says how much of captions of
them is right (tools/recipes/own-photographs.sh).
"""

from __future__ import annotations

import csv
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import torch
from lib import real_pairs
from lib.real_pairs import LOOKS, OTHERS, RealPair
from PIL import Image, ImageDraw, ImageFont, ImageOps

from cc_prep.composites import sentences as composed
from cc_prep.errors import UserError
from cc_prep.records import CHANGE, NO_CHANGE
from cc_train import Captioner, doubt
from cc_train.captioner import Caption
from cc_train.data import image_pairs
from cc_train.evaluation import calibrating
from cc_train.evaluation.evaluation_files import wilson
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.systems.photos import sentences
from cc_train.systems.photos.captioner import PhotoCaptioner

KINDS = {"add": "appeared", "drop": "disappeared", "move": "moved"}
PICTURES = dict(zip(LOOKS, ("brighter", "darker", "black and white", "blurred"), strict=True))
COLUMNS, SIDE, CELL = 3, (226, 170), (470, 212)  # of the page, in px
FONT = ImageFont.load_default(13)
SILENT = (sentences.NOTHING, doubt.EQUAL)


@dataclass(frozen=True)
class Judged:
    """What a caption says of a pair, and how much of it is right.

    Attributes:
        pair: What happened.
        caption: What is said.
        type: Whether the type is right; of an unchanged pair, whether the captioner is silent.
        noun: Whether the type and each name are right.
        cell: Whether the type, the name and the cell of the first change are right.
        stated: Whether all that is stated is right, where "something" states no name.
    """

    pair: RealPair
    caption: Caption
    type: bool
    noun: bool
    cell: bool
    stated: bool

    @property
    def is_unsure(self) -> bool:
        """Whether the caption says that it is not sure."""
        return self.caption.text.startswith(doubt.NOT_SURE)


def judge(pair: RealPair, caption: Caption) -> Judged:
    """Compares a caption with what happened."""
    changes = caption.changes or ()
    if pair.type == "none":
        right = caption.text in SILENT
    elif pair.type in LOOKS:
        right = caption.text == f"the picture became {PICTURES[pair.type]}"
    elif pair.type == "view":
        right = caption.text.startswith(doubt.NOT_SURE)
    else:
        right = "picture" not in caption.text and {one.kind for one in changes} == {
            KINDS[pair.type]
        }
    if pair.type not in KINDS:
        return Judged(pair, caption, right, right, right, right and pair.type != "view")
    noun = right and all(one.label == pair.label for one in changes)
    box = (changes[0].after or changes[0].before) if changes else None
    placed = right and box is not None and sentences.cell(box) == pair.cell
    named = all(one.label in (pair.label, "") for one in changes)
    return Judged(pair, caption, right, noun, noun and placed, placed and named)


def captions(
    captioner: Callable[[Sequence[tuple[Path, Path]]], list[Caption]], out: Path, half: str
) -> Iterator[Judged]:
    """The judged captions of a half."""
    pairs = [pair for pair in real_pairs.listed() if pair.half == half]
    for pair, before, after in real_pairs.cut(out, pairs):
        yield judge(pair, captioner([(before, after)])[0])


def with_comparison(captioner: Captioner, run: str) -> Captioner:
    """The captioner with another comparison, and the confidence that was fitted to its own."""
    model, other = captioner.model, Captioner.from_pretrained(run, device="cpu").model
    assert isinstance(model, PhotoCaptioner)
    assert isinstance(other, PairTrunk)
    changed = PhotoCaptioner(other, model.detector)
    changed.confidence.load_state_dict(model.confidence.state_dict())
    return Captioner(changed, captioner.folder)


def interval(right: int, count: int) -> str:
    """A share in percent with its 95 % interval, of Wilson."""
    share = right / count if count else 0.0
    low, high = wilson(share, count)
    return f"{100 * share:.1f} % ({100 * low:.1f} … {100 * high:.1f})"


def table(judged: Sequence[Judged]) -> str:
    """The measures as a table in Markdown."""
    unchanged = [one for one in judged if one.pair.type == "none"]
    changed = [one for one in judged if one.pair.type in KINDS]
    looks = [one for one in judged if one.pair.type in LOOKS]
    views = [one for one in judged if one.pair.type == "view"]
    sources = {
        "another time, one camera": [one for one in unchanged if "still" in one.pair.id],
        "people who stay, edited": [one for one in unchanged if "stays" in one.pair.id],
        "other videos, edited": [one for one in unchanged if one.pair.video in OTHERS],
    }
    rows = [("false alarms", unchanged, [not (one.type or one.is_unsure) for one in unchanged])]
    rows += [(f"- {name}", part, [not (one.type or one.is_unsure) for one in part])
             for name, part in sources.items()]  # fmt: skip
    rows += [("not sure, of unchanged pairs", unchanged, [one.is_unsure for one in unchanged])]
    rows += [("type", changed, [one.type for one in changed])]
    for kind, word in KINDS.items():
        part = [one for one in changed if one.pair.type == kind]
        rows += [(f"- {word}", part, [one.type for one in part])]
    rows += [
        ("type and noun", changed, [one.noun for one in changed]),
        ("type, noun and cell of 3 × 3", changed, [one.cell for one in changed]),
        ("not sure, of changed pairs", changed, [one.is_unsure for one in changed]),
        ("the whole picture: brighter, …", looks, [one.type for one in looks]),
        ("camera turned: says that it is not sure", views, [one.type for one in views]),
    ]
    lines = ["| measure | pairs | share (95 % interval) |", "|---|---|---|"]
    lines += [
        f"| {name} | {len(part)} | {interval(sum(right), len(part))} |"
        for name, part, right in rows
    ]
    confidences = [one.caption.confidence or 0.0 for one in judged]
    stated = [one.stated for one in judged]
    share = sum(stated) / len(stated)
    measures = calibrating.rows(confidences, stated, share)
    sure = [s for c, s in zip(confidences, stated, strict=True) if c >= 0.5]
    lines += [f"| sentences of 50 % confidence or more that are right | {len(sure)} "
              f"| {interval(sum(sure), len(sure))} |"]  # fmt: skip
    lines += [f"| {name} | {len(judged)} | {value} |" for name, value in measures.items()]
    return "\n".join(lines)


@click.group(help=__doc__)
def main() -> None:
    """Its commands are below."""


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--half", default="second", show_default=True)
@click.option("--run", default="photos-mini", show_default=True)
@click.option("--comparison", help="A run of cc-train pair, in place of captioner-mini.")
@click.option("--wrong", is_flag=True, help="Also print what is wrong.")
def measure(out: Path, half: str, run: str, comparison: str | None, wrong: bool) -> None:
    """Prints the table of a half."""
    torch.set_num_threads(1)
    real_pairs.fetch(out)
    captioner = Captioner.from_pretrained(run, device="cpu")
    if comparison is not None:
        captioner = with_comparison(captioner, comparison)
    started = time.process_time()
    judged = list(captions(captioner, out, half))
    seconds = (time.process_time() - started) / len(judged)
    print(table(judged))
    print(f"\n{seconds:.2f} s of one core for each pair")
    if wrong:
        for one in judged:
            if not (one.stated or (one.type and one.pair.type == "view")):
                chance = 100 * (one.caption.confidence or 0.0)
                print(f"{one.pair.id} ({one.pair.video}): {one.caption.text} ({chance:.0f} %)")


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--half", default="second", show_default=True)
@click.option("--run", default="photos-mini", show_default=True)
def turned(out: Path, half: str, run: str) -> None:
    """Prints what registration gives where the camera also turned, by 5 to 15 % of the picture.

    All pairs of a half in which nothing or an object changed are cut again, so that what changed is
    in both pictures. A pair that is refused, or of which the captioner is not sure, says nothing.
    """
    torch.set_num_threads(1)
    real_pairs.fetch(out)
    captioner = Captioner.from_pretrained(run, device="cpu")
    of_half = [one for one in real_pairs.listed() if one.half == half]
    pairs = [turn for one in of_half if (turn := _turned(out, one)) is not None]
    print(
        "| registration | false alarms | silent | type | type and noun | of changed: says nothing |"
    )
    print("|---|---|---|---|---|---|")
    for register in ("none", "translation"):
        said = []
        for pair, *both in real_pairs.cut(out, pairs):
            try:
                caption = captioner(*both, register=register)
            except UserError:
                caption = Caption(doubt.NOT_SURE)
            said.append(judge(pair, caption))
        unchanged = [one for one in said if one.pair.type == "none"]
        changed = [one for one in said if one.pair.type != "none"]
        cells = [
            (unchanged, [not (one.type or one.is_unsure) for one in unchanged]),
            (unchanged, [one.type for one in unchanged]),
            (changed, [one.type for one in changed]),
            (changed, [one.noun for one in changed]),
            (changed, [one.is_unsure for one in changed]),
        ]
        shown = " | ".join(f"{interval(sum(right), len(of))}, n = {len(of)}" for of, right in cells)
        print(f"| {register} | {shown} |", flush=True)


def _turned(out: Path, pair: RealPair) -> RealPair | None:
    """The pair with another view in the image after; None where none shows what changed."""
    if pair.type not in ("none", *KINDS):
        return None
    width = real_pairs.frames(out, pair.video).shape[2]
    left, _, wide, _ = pair.crop
    generator = random.Random(pair.id)
    part = generator.uniform(0.05, 0.15)
    for turn in generator.sample((part, -part), 2):
        step = round(turn * wide)
        boxes = [box for box in (pair.box, pair.origin) if box is not None]
        seen = all(max(0, turn) <= box[0] and box[2] <= min(1, 1 + turn) for box in boxes)
        if seen and left + step >= 0 and left + step + wide <= width:
            edits = {**pair.edits, "shift": [step, 0]}
            return replace(pair, id=f"{pair.id}_turned", edits=edits)
    return None


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("--pairs", "count", default=24, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--run", default="photos-mini", show_default=True)
def page(out: Path, picture: Path, count: int, seed: int, run: str) -> None:
    """Draws pairs of the second half of the surveillance video, with their captions, as a JPEG."""
    torch.set_num_threads(1)
    real_pairs.fetch(out)
    captioner = Captioner.from_pretrained(run, device="cpu")
    listed = [pair for pair in real_pairs.listed()
              if (pair.half, pair.video) == ("second", real_pairs.SURVEILLANCE)]  # fmt: skip
    drawn = random.Random(seed).sample(listed, count)
    rows = -(-count // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * CELL[0], rows * CELL[1]), "white")
    for place, (pair, before, after) in enumerate(real_pairs.cut(out, drawn)):
        left, top = CELL[0] * (place % COLUMNS), CELL[1] * (place // COLUMNS)
        one = judge(pair, captioner([(before, after)])[0])
        for side, path in enumerate((before, after)):
            image = ImageOps.pad(Image.open(path).convert("RGB"), SIDE, color="white")
            sheet.paste(image, (left + side * (SIDE[0] + 4), top))
        right = one.type if pair.type == "view" else one.stated
        chance = f"{100 * (one.caption.confidence or 0.0):.0f} %"
        write = ImageDraw.Draw(sheet).text
        write((left, top + SIDE[1] + 2), one.caption.text, "#146c2e" if right else "#b3261e", FONT)
        write((left, top + SIDE[1] + 18), f"{chance}; truth: {_truth(pair)}", "#555555", FONT)
    sheet.save(picture, quality=80, optimize=True)


def _truth(pair: RealPair) -> str:
    """What happened, in words."""
    if pair.type in KINDS:
        return f"a {pair.label} {KINDS[pair.type]}"
    return {"none": "unchanged", "view": "the camera turned"}.get(pair.type) or PICTURES[pair.type]


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--prior", default=0.01, show_default=True, help="Weight of the squared slopes.")
def fit(out: Path, prior: float) -> None:
    """Fits the confidence on the first half, and writes the captioner of the package."""
    from scipy.optimize import minimize

    torch.set_num_threads(1)
    real_pairs.fetch(out)
    model = Captioner.from_pretrained("photos-mini", device="cpu").model
    pairs = [pair for pair in real_pairs.listed() if pair.half == "first"]
    evidence, right, judged = [], [], []
    for pair, before, after in real_pairs.cut(out, pairs):
        pixels = image_pairs.stack([(before, after)], model.inputs.size)
        caption, of_pair = model.unjudged(torch.from_numpy(pixels))[0]  # type: ignore[attr-defined]
        if caption.text == doubt.EQUAL:
            continue
        judged.append(judge(pair, caption))
        evidence.append(of_pair)
        right.append(judged[-1].stated)
    inputs = np.concatenate((np.array(evidence), np.ones((len(evidence), 1))), axis=1)
    truth = np.array(right, float)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = inputs @ weights
        slopes = weights * ([1] * (len(weights) - 1) + [0])
        value = np.logaddexp(0, logits).sum() - truth @ logits + prior / 2 * slopes @ slopes
        return float(value), inputs.T @ (1 / (1 + np.exp(-logits)) - truth) + prior * slopes

    weights = minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B").x
    print(f"{len(truth)} pairs, {truth.mean():.1%} right; weights {weights.round(2)}")
    _write(weights)
    chances = 1 / (1 + np.exp(-inputs @ weights))
    print(table([replace(one, caption=replace(one.caption, confidence=float(chance)))
                 for one, chance in zip(judged, chances, strict=True)]))  # fmt: skip


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("table", type=click.Path(path_type=Path))
def pairs(out: Path, table: Path) -> None:
    """Writes a table of pairs with a sentence each: the first half is `train`, the second `test`.

    Turned cameras are left out, since nothing can be said of them.
    """
    real_pairs.fetch(out)
    listed = [pair for pair in real_pairs.listed() if pair.type != "view"]
    table.mkdir(parents=True, exist_ok=True)
    with (table / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("before", "after", "caption", "kind", "split", "id"))
        for pair, before, after in real_pairs.cut(out, listed):
            changed = pair.type != "none"
            split = "train" if pair.half == "first" else "test"
            kind = CHANGE if changed else NO_CHANGE
            writer.writerow(
                (before.resolve(), after.resolve(), _sentence(pair), kind, split, pair.id)
            )


def _sentence(pair: RealPair) -> str:
    """The sentence that is right."""
    if pair.type == "none":
        return sentences.NOTHING
    if pair.box is None:
        return f"the picture became {PICTURES[pair.type]}"
    left, top, right, bottom = pair.box
    where = composed.where(((left + right) / 2, (top + bottom) / 2))
    return f"{composed.with_article(pair.label)} {KINDS[pair.type]} {where}"


@main.command()
@click.argument("evaluations", nargs=-1, type=click.Path(path_type=Path))
def own(evaluations: Sequence[Path]) -> None:
    """Prints what is right in evaluations of the pairs of `pairs`: type, all, and silence."""
    print("| evaluation | type, changed | all, changed | silent, unchanged |")
    print("|---|---|---|---|")
    words = (*KINDS.values(), *PICTURES.values(), sentences.NOTHING)
    for folder in evaluations:
        said = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
        told = [(one["references"][0], one["caption"]) for one in said]
        types = [
            [next((w for w in words if re.search(rf"\b{w}\b", text)), "") for text in two]
            for two in told
        ]
        changed = [i for i, two in enumerate(types) if two[0] != sentences.NOTHING]
        silent = [i for i in range(len(told)) if i not in changed]
        counts = (
            interval(sum(types[i][0] == types[i][1] for i in changed), len(changed)),
            interval(sum(told[i][0] == told[i][1] for i in changed), len(changed)),
            interval(sum(types[i][0] == types[i][1] for i in silent), len(silent)),
        )
        print(f"| {folder.name} | {' | '.join(counts)} |")


def _write(weights: np.ndarray) -> None:
    """The fitted weights as the captioner of the package."""
    from safetensors.torch import save_file

    from cc_prep import storage
    from cc_train.runs import run_folder

    folder = run_folder.ASSETS / "photos-mini"
    settings = json.loads((folder / "settings.json").read_text())
    tensors = {
        "confidence.weight": torch.tensor(weights[None, :-1], dtype=torch.float32),
        "confidence.bias": torch.tensor(weights[-1:], dtype=torch.float32),
    }
    text = json.dumps(settings, sort_keys=True)
    save_file(tensors, folder / "model.safetensors", metadata={"settings": text})
    (folder / "model.safetensors").chmod(0o644)
    print(f"SHA-256 {storage.sha256(folder / 'model.safetensors')}")


if __name__ == "__main__":
    main()
