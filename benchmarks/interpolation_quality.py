"""PSNR and SSIM of the interpolators against true frames → docs/interpolation.md.

Synthetic moves (an object and the camera move; rendered true frames) and the three videos of
`cc-prep videos` (real frames in between). Not a timing: the figures are the same on every run. It
takes about eight minutes on two cores, most of it for rendering.

    python benchmarks/interpolation_quality.py --write docs/interpolation.md
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from lib.measuring import report

from cc_prep import manifest, storage, weights
from cc_prep.datasets import pairs, sample_videos
from cc_prep.inspect import stats
from cc_prep.manifest import Interpolate
from cc_prep.media import images
from cc_prep.records import ImagePair
from cc_prep.steps import interpolate
from cc_prep.synth import dataset as synth

METHODS = {
    "crossfade": Interpolate(method="crossfade"),
    "dis": Interpolate(method="dis"),
    "rife, padded to 128": Interpolate(pad_multiple=128),
    "rife, padded to 32": Interpolate(pad_multiple=32),
    "rife, refined": Interpolate(refine=True),
}
SYNTHETIC_SCENES = 100
HEADER = """# Interpolators compared with true frames

This page is written by `python benchmarks/interpolation_quality.py --write docs/interpolation.md`.

The images have 224×224 px and the depth is 3: each of the 7 frames between the ends is compared
with the true frame. PSNR is in dB over 8-bit RGB, SSIM uses 7×7 windows, and the values are means
over all frames. *Moves* are synthetic scenes in which one object and the camera move. The videos
are those of `cc-prep videos`, with ends 8 frames apart and every pair of the film.

"""


@click.command()
@click.option("--write", type=click.Path(path_type=Path), help="The Markdown file to write.")
@click.option("--scenes", default=SYNTHETIC_SCENES, show_default=True)
def main(write: Path | None, scenes: int) -> None:
    """Prints the table of PSNR and SSIM."""
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        sets = dict(_sets(folder, scenes))
        for method, settings in METHODS.items():
            tensors = dict(weights.read_tensors(weights.locate(settings.weights).path))
            interpolator = interpolate.make(settings, tensors, "cpu")
            rows[method] = {}
            for name, set_pairs in sets.items():
                rows[method][name] = _score(interpolator, set_pairs)
                counts[name] = len(set_pairs)
                print(f"{method}: {name}: {rows[method][name]}", flush=True)
    text = HEADER + _table(rows, counts)
    if write:
        old_text = write.read_text() if write.exists() else ""
        _, mark, rest = old_text.partition("\n## ")  # what a person wrote below the table stays
        write.write_text(text + (mark + rest if mark else ""))
    print(text)
    report("interpolation_quality", {"scenes": scenes, "pairs": counts, "PSNR, SSIM": rows})


Pair = tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]


def _sets(folder: str, scenes: int) -> Iterator[tuple[str, list[Pair]]]:
    root = storage.join(folder, "scenes")
    for _ in synth.make(root, scenes, synth.Settings(seed=7, truth=True)):
        pass
    settings = manifest.load("synth", root=root)
    all_pairs = [pair for split in settings.splits for pair in pairs(settings, split)]
    yield "moves", [_read(root, p) for p in all_pairs if p.change_type == "move"]
    root = storage.join(folder, "videos")
    videos = sample_videos.fetch(root)
    settings = manifest.load("video", root=root)
    for path in videos:
        of_video = [p for p in pairs(settings, "train") if p.before.startswith(path.name)]
        yield path.stem, [_read(root, pair) for pair in of_video]


def _read(root: str, pair: ImagePair) -> Pair:
    def image(reference: str) -> np.ndarray:
        return images.read(storage.resolve(root, reference), 224)

    truth = {round(t * 8): image(path) for t, path in pair.truth}
    return image(pair.before), image(pair.after), truth


def _score(interpolator: interpolate.Interpolator, set_pairs: list[Pair]) -> tuple[float, float]:
    psnr: list[float] = []
    ssim: list[float] = []
    for before, after, truth in set_pairs:
        frames = interpolator.interpolate_batch(before[None], after[None], 3)[0]
        figures = stats.against_truth(frames, truth)
        psnr += figures["PSNR"].values()
        ssim += figures["SSIM"].values()
    return float(np.mean(psnr)), float(np.mean(ssim))


def _table(rows: dict[str, dict[str, tuple[float, float]]], counts: dict[str, int]) -> str:
    names = list(counts)
    lines = [
        "| | " + " | ".join(f"{name} ({counts[name]} pairs)" for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for method, scores in rows.items():
        cells = [f"{scores[name][0]:.2f} dB, {scores[name][1]:.3f}" for name in names]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
