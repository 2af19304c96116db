"""Does the confidence rule choose the frame in the true middle of the change?

    python benchmarks/keyframe_rule.py [--scenes 100] [--size 112] [--weights clip4idc-mini]
        [--out out/bench/middle] [--docs benchmarks/results/notes/results.md]

Of rendered pairs the true frames between are known. The middle of a change is the true frame whose
changed pixels differ as much from those of before as from those of after, within the mask. The
rule's best frame is the one of the lowest penalty, on the true frames and on those of each
interpolator. Chance is a frame drawn evenly from the seven. The scenes are rendered from a seed
that no shipped network has seen. With --docs the table and the picture of a page are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from lib import tables
from lib.measuring import report

from cc_prep import datasets, manifest, storage, weights
from cc_prep.manifest import Interpolate
from cc_prep.media import images, masks
from cc_prep.records import CHANGE
from cc_prep.steps import interpolate
from cc_prep.steps.score import FrameScorer, penalties
from cc_prep.synth import dataset
from cc_prep.weights import networks

SEED, DEPTH = 994, 3
DRAWS = 2000  # of the bootstrap over pairs
# Whose frames the rule chooses among, and what the table calls them.
METHODS = {
    interpolate.TRUTH: "the true frames",
    "dis": "DIS flow's",
    "crossfade": "a cross-fade's",
    "rife": "RIFE's",
}
CHANCE = "chance: any of the seven"
PICTURE = "docs/images/keyframe-rule.png"
FARTHEST = 3  # of the picture: so many frames off, or more


@dataclass(frozen=True)
class Change:
    """A changed pair. frames: the true ones, uint8 [9, H, W, 3]. middle: the number of a frame."""

    kind: str
    captions: tuple[str, ...]
    frames: np.ndarray
    middle: int


@click.command()
@click.option("--scenes", default=100, show_default=True)
@click.option("--size", default=112, show_default=True, help="Of the images, in px.")
@click.option("--weights", "name", default="clip4idc-mini", show_default=True)
@click.option("--out", default="out/bench/middle", show_default=True)
@click.option("--docs", type=click.Path(exists=True, dir_okay=False),
              help=f"A page whose table is replaced, with {PICTURE}.")  # fmt: skip
def main(scenes: int, size: int, name: str, out: str, docs: str | None) -> None:
    """Prints how far the chosen frame is from the middle, with 95 % intervals."""
    root = f"{out}/{size}"
    settings = dataset.Settings(seed=SEED, size=size, wording="plain", truth=True)
    for done in dataset.make(root, scenes, settings, workers=2):
        print(f"\rscene {done + 1}", end="", flush=True)
    print()
    pairs = list(changes(root, size))
    middles = np.array([pair.middle for pair in pairs])
    print(f"{len(pairs)} changed pairs; middle by frame: {np.bincount(middles, minlength=9)[1:8]}")
    scorer = FrameScorer(networks.clip4idc(name)[0])
    distances = {}
    for method, title in METHODS.items():
        frames_of = sequence_of(method)
        chosen = np.array([best(scorer, frames_of(pair), pair.captions) for pair in pairs])
        print(f"{title}: chosen by frame {np.bincount(chosen, minlength=9)[1:8]}")
        distances[title] = np.abs(chosen - middles)[:, None].astype(float)
    distances[CHANCE] = np.abs(np.arange(1, 8)[None] - middles[:, None]).astype(float)
    figures = {row: summary(values) for row, values in distances.items()}
    table = table_of(figures)
    print(table)
    report("keyframe_rule", {"pairs": len(pairs), "size": size, "weights": name, **figures})
    if docs:
        tables.replace(Path(docs), "keyframe rule", table)
        draw(distances, Path(PICTURE))


def table_of(figures: Mapping[str, Mapping[str, float]]) -> str:
    """A table in Markdown: a row for each source of frames."""
    lines = ["| the rule chooses among | frames off | at most one off |", "|---|---|---|"]
    for row, one in figures.items():
        off = f"{one['frames off']:.2f}"
        if row != CHANCE:  # chance is exact for each pair
            off += f" ({one['from']:.2f} … {one['to']:.2f})"
        lines.append(f"| {row} | {off} | {100 * one['within one']:.0f} % |")
    return "\n".join(lines)


def draw(distances: Mapping[str, np.ndarray], path: Path) -> None:
    """A picture: of each source of frames a bar, divided by how far the chosen frames are off."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 2.6), dpi=120)
    titles = [*distances][::-1]
    left = np.zeros(len(titles))
    for frames in range(FARTHEST + 1):
        capped = [np.minimum(distances[title], FARTHEST) == frames for title in titles]
        shares = np.array([100 * one.mean() for one in capped])
        label = f"{frames} or more" if frames == FARTHEST else f"{frames}"
        shade = pyplot.get_cmap("viridis")(0.95 - 0.85 * frames / FARTHEST)
        axes.barh(titles, shares, left=left, label=label, color=shade)
        left += shares
    axes.set(xlabel="pairs, %", xlim=(0, 100))
    axes.legend(title="frames off", ncols=FARTHEST + 1, fontsize=8, loc="lower center",
                bbox_to_anchor=(0.5, 1.0))  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def changes(root: str, size: int) -> Iterator[Change]:
    """The changed pairs of a rendered data set."""
    loaded = manifest.load("synth", root=root)
    for split in loaded.splits:
        for pair in datasets.pairs(loaded, split):
            if pair.kind != CHANGE or pair.mask is None:
                continue
            ends = pair.before, pair.after
            between = [path for _, path in sorted(pair.truth)]
            paths = [storage.resolve(root, p) for p in (ends[0], *between, ends[1])]
            frames = np.stack([images.read(path, size) for path in paths])
            mask = masks.of_pair(root, pair, *frames.shape[1:3]).union
            assert mask is not None
            yield Change(str(pair.change_type), pair.captions, frames, middle(frames, mask > 0))


def middle(frames: np.ndarray, mask: np.ndarray) -> int:
    """The frame between that is as far from before as from after, on the mask's pixels."""
    pixels = frames[:, mask].astype(np.float32)
    from_before = np.abs(pixels - pixels[0]).mean(axis=(1, 2))
    from_after = np.abs(pixels - pixels[-1]).mean(axis=(1, 2))
    return 1 + int(np.abs(from_before - from_after)[1:-1].argmin())


def sequence_of(method: str) -> Callable[[Change], np.ndarray]:
    """Frames uint8 [9, H, W, 3] of a pair by a method."""
    if method == interpolate.TRUTH:
        return lambda change: change.frames
    settings = Interpolate(method=method)  # type: ignore[arg-type]
    tensors = None
    if interpolate.has_weights(settings):
        tensors = weights.read_tensors(weights.locate(settings.weights).path)
    maker = interpolate.make(settings, tensors, "cpu")
    return lambda change: maker.interpolate_batch(change.frames[:1], change.frames[-1:], DEPTH)[0]


def best(scorer: FrameScorer, frames: np.ndarray, captions: tuple[str, ...]) -> int:
    """The frame between of the lowest penalty."""
    penalty = penalties(*scorer(frames, captions).similarities())
    return 1 + int(penalty[1:-1].argmin())


def summary(distances: np.ndarray) -> dict[str, float]:
    """Mean distance in frames and share within one frame, with the interval over pairs.

    distances: [pairs, draws] of the chosen frame from the middle.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(distances), (DRAWS, len(distances)))
    means = distances.mean(1)[rows].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {
        "frames off": float(distances.mean()), "from": float(low), "to": float(high),
        "within one": float((distances <= 1).mean()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
