"""One HTML page on a folder of sequences: strips, differences, quality, motion, rejects.

Everything is inside the file, so it can be mailed. Captions and names come from strangers: the
template escapes all of them and the page runs no script.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np

from cc_prep import figures, storage
from cc_prep.formats import provenance, rejects, sequences
from cc_prep.images import resized

STRIP_PX = 128
MOST_REJECTS = 200
# Figures over some thousand sequences are as good as over all, and come in a minute.
MOST_LOOKED_AT = 2000


@dataclass(frozen=True)
class Frame:
    """A picture of a strip as a data URI, with what stands below it."""

    image: str
    label: str
    psnr: float | None = None
    ssim: float | None = None


@dataclass(frozen=True)
class Strip:
    """One sequence as the page shows it."""

    key: str
    kind: str
    change_type: str
    captions: list[str]
    motion: float
    frames: list[Frame]
    truth: list[Frame | None]
    extras: list[Frame]


def write(folder: str, target: str, samples: int = 24) -> int:
    """Writes the page to `target`; how many strips it shows.

    Strips are spread evenly over the folder's sequences. Raises UserError and DamagedShard.
    """
    record = provenance.read(folder) or {}
    counts = {name: facts["samples"] for name, facts in sorted(record["shards"].items())}
    strips = [_strip(sample) for sample in _spread(folder, counts, samples)]
    found = figures.sequence_figures(folder, MOST_LOOKED_AT)
    rejected = rejects.read(folder)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cc_prep", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("sequences.html.j2").render(
        title=f"{record['settings']['name']}: {found['sequences']:,} sequences",
        record=record,
        figures=found,
        motion=_bars(found["motion in px"]),
        strips=strips,
        rejected=rejected[:MOST_REJECTS],
        rejected_count=len(rejected),
        strip_px=STRIP_PX,
    )
    storage.write_bytes(target, page.encode("utf-8", "replace"))
    return len(strips)


def _spread(folder: str, counts: dict[str, int], most: int) -> list[sequences.StoredSequence]:
    """At most `most` samples, evenly spread, reading only the shards that hold them."""
    total = sum(counts.values())
    wanted = {i * total // most for i in range(most)} if total > most else set(range(total))
    found, start = [], 0
    for name, count in counts.items():
        inside = {i - start for i in wanted if start <= i < start + count}
        start += count
        if not inside:
            continue
        place = storage.join(folder, sequences.FORMAT.file(name))
        for number, sample in enumerate(sequences.read(place)):
            if number in inside:
                found.append(sample)
            if number >= max(inside):
                break
    return found


def _strip(sample: sequences.StoredSequence) -> Strip:
    frames, truth, mask = sample.frames(), sample.truth(), sample.mask()
    scores = figures.against_truth(frames, truth)
    last = len(frames) - 1
    labels = ["before", *(f"{i}/{last}" for i in range(1, last)), "after"]
    extras = [_frame(_heat(frames[0], frames[-1]), "difference")]
    if mask is not None:
        extras.append(_frame(np.repeat(mask[..., None], 3, axis=2), "change mask"))
    return Strip(
        key=sample.key,
        kind=str(sample.meta.get("kind", "")).replace("_", " "),
        change_type=str(sample.meta.get("change_type") or ""),
        captions=[str(caption) for caption in sample.meta.get("captions", ())],
        motion=figures.quality.motion(frames[0], frames[-1]),
        frames=[
            _frame(
                image,
                labels[i],
                scores.get("PSNR", {}).get(i),
                scores.get("SSIM", {}).get(i),
            )
            for i, image in enumerate(frames)
        ],
        truth=[_frame(truth[i], "true") if i in truth else None for i in range(len(frames))]
        if truth
        else [],
        extras=extras,
    )


def _frame(
    image: np.ndarray, label: str, psnr: float | None = None, ssim: float | None = None
) -> Frame:
    height, width = image.shape[:2]
    if min(height, width) > 2 * STRIP_PX:  # a page of full-size photographs cannot be mailed
        image = resized(image, 2 * STRIP_PX)
    data = sequences.encode_image(image, "jpg", 82)
    return Frame(f"data:image/jpeg;base64,{base64.b64encode(data).decode()}", label, psnr, ssim)


def _heat(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The difference of two images as a heat map, black for none, scaled to its own maximum."""
    import cv2

    change = np.abs(after.astype(np.int16) - before.astype(np.int16)).max(axis=2)
    scaled = (change * (255 / max(int(change.max()), 1))).astype(np.uint8)
    return np.ascontiguousarray(cv2.applyColorMap(scaled, cv2.COLORMAP_INFERNO)[..., ::-1])


def _bars(histogram: dict[str, int]) -> list[dict[str, Any]]:
    top = max([*histogram.values(), 1])
    return [
        {"name": name, "count": count, "share": 100 * count / top}
        for name, count in histogram.items()
    ]
