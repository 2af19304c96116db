"""Is what ProCap's queries imagine nearer to the true frames than both images are?

    cc-prep synth out/true --scenes 200 --seed 997 --size 112 --wording plain --truth
    python benchmarks/imagined_frames.py out/synth_features/stage2 out/true [--limit N]

Of the changed pairs of folders that `cc-prep synth --truth` wrote. All that is compared with a true
frame has gone through the captioner's VQGAN, as the imagined frame has, so the last row is the best
that it could draw. PSNR is in dB: of the whole frame, and of the mask of the change, which covers
where an object is before and after, but not where a moving one is in between. "Nearer" is the share
of the true frames that this row is nearer to, within the mask, than before and after are. The last
figure says whether a larger error within the mask goes with a wrong caption (0.5: it does not).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from typing import Any

import click
import numpy as np
from lib.measuring import report
from lib.rendered import changed
from sklearn.metrics import roc_auc_score

from cc_prep import storage
from cc_prep.manifest import Interpolate
from cc_prep.media import images, masks
from cc_prep.records import ImagePair
from cc_prep.steps import interpolate
from cc_prep.steps.score import choose_keyframes
from cc_prep.steps.tokenization import Tokenizer
from cc_train import Captioner
from cc_train.evaluation.rendered.fact_scores import judge
from cc_train.report import strips
from cc_train.systems.procap.captioner import ProCap

DEPTH = 3  # `--truth` renders the frames at eighths
IMAGINED, BEFORE, AFTER, TRUE = "imagined", "before", "after", "the true frame"
METHODS = {"cross-fade": Interpolate(method="crossfade"), "DIS flow": Interpolate(method="dis")}
Errors = dict[str, list[tuple[float, float]]]  # mean squared, of a frame: whole, where it changed


@click.command()
@click.argument("path", metavar="CAPTIONER")
@click.argument("roots", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1), help="At most so many pairs of each folder.")
@click.option("--depth", type=click.IntRange(1, DEPTH), default=2, show_default=True,
              help="interpolate.depth of its stage 1; keyframes were uniform.")  # fmt: skip
def main(path: str, roots: tuple[str, ...], limit: int | None, depth: int) -> None:
    """Prints the table of CAPTIONER, a run of stage 2 or a name, on the scenes of ROOTS."""
    captioner = Captioner.from_pretrained(path, device="cpu")
    if not isinstance(captioner.model, ProCap):
        raise click.UsageError(f"{path}: no captioner of ProCap's stage 2")
    frames = Frames(captioner.model, depth)
    report("imagined_frames", {root: _figures(root, captioner, frames, limit) for root in roots})


def _figures(root: str, captioner: Captioner, frames: Frames, limit: int | None) -> dict[str, Any]:
    """The figures of one folder, which are printed too."""
    errors: Errors = defaultdict(list)
    own, wrong = [], []
    for pair in islice(changed(root), limit):
        before = len(errors[IMAGINED])
        frames.measure(root, pair, errors)
        own.append(float(np.mean([there for _, there in errors[IMAGINED][before:]])))
        wrong.append(not _is_exact(root, pair, captioner))
    table = {name: np.array(values) for name, values in errors.items()}
    nearer_end = np.minimum(table[BEFORE][:, 1], table[AFTER][:, 1])
    rows = {}
    print(f"\n{root}: {len(own)} changed pairs\n")
    print("| frame | PSNR | PSNR of the change | nearer |\n|---|---|---|---|")
    for name, values in table.items():
        whole, there = (float(np.mean(-10 * np.log10(values[:, i] / 255**2))) for i in range(2))
        nearer = float((values[:, 1] < nearer_end).mean())
        rows[name] = {"PSNR": whole, "PSNR of the change": there, "nearer": nearer}
        share = "" if name in (BEFORE, AFTER) else f"{nearer:.1%}"
        print(f"| {name} | {whole:.2f} | {there:.2f} | {share} |")
    exact = 1 - float(np.mean(wrong))
    area = float(roc_auc_score(wrong, own)) if 0 < exact < 1 else float("nan")
    print(f"\nexact: {exact:.1%}; area under the curve of wrong captions by error: {area:.3f}")
    return {"pairs": len(own), "rows": rows, "exact": exact, "area under the curve": area}


class Frames:
    """What is drawn of the moments that a captioner imagines: by it, interpolated, true."""

    def __init__(self, model: ProCap, depth: int) -> None:
        count = model.encoder.config.frames - 2
        keyframes = choose_keyframes(np.zeros(2**depth + 1), count, "uniform")
        self.moments = [one * 2 ** (DEPTH - depth) for one in keyframes[1:-1]]
        self.model, self.side = model, model.inputs.size[0]
        self.tokenizer = Tokenizer(model.features.vqgan)
        self.ways: dict[str, Callable[..., np.ndarray]] = {
            name: interpolate.make(settings, {}, "cpu").interpolate_batch
            for name, settings in METHODS.items()
        }

    def measure(self, root: str, pair: ImagePair, errors: Errors) -> None:
        """Appends the errors of all rows at the moments that the captioner imagines."""
        ends = _ends(root, pair, self.side)
        imagined = strips.imagined(self.model, np.stack(ends)[None])
        if imagined is None:
            raise click.UsageError("the captioner imagines no frames")
        interpolated = {
            name: way(ends[0][None], ends[1][None], DEPTH)[0] for name, way in self.ways.items()
        }
        truth = {round(time * 2**DEPTH): path for time, path in pair.truth}
        if not truth:
            raise click.UsageError(f"{root}: no true frames; render it with --truth")
        mask = masks.of_pair(root, pair, self.side, self.side).union
        assert mask is not None
        for image_imagined, moment in zip(imagined[1:-1], self.moments, strict=True):
            true = images.read(storage.resolve(root, truth[moment]), self.side)
            rows = {
                BEFORE: ends[0],
                AFTER: ends[1],
                **{name: frames[moment] for name, frames in interpolated.items()},
                TRUE: true,
            }
            drawn = self.tokenizer.reconstruct(self.tokenizer(np.stack([*rows.values()])))
            for name, image in ((IMAGINED, image_imagined), *zip(rows, drawn, strict=True)):
                squared = (image.astype(np.float32) - true) ** 2
                errors[name].append((float(squared.mean()), float(squared[mask > 0].mean())))


def _ends(root: str, pair: ImagePair, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Before and after, uint8 [side, side, 3]."""
    before, after = (
        images.read(storage.resolve(root, path), side) for path in (pair.before, pair.after)
    )
    return before, after


def _is_exact(root: str, pair: ImagePair, captioner: Captioner) -> bool:
    assert pair.facts is not None
    caption = captioner(*_ends(root, pair, captioner.inputs.size[0]))
    text = caption.text if caption.raw is None else caption.raw
    return judge(text, pair.facts, pair.captions).exact


if __name__ == "__main__":
    main()
