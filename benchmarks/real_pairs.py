"""Chooses real pairs by background subtraction, and draws them for a check by eye.

    python benchmarks/real_pairs.py choose out/real
    python benchmarks/real_pairs.py sheet out/real

`choose` writes benchmarks/results/real_pairs.json anew, so it is run once; who has looked at the
sheets deletes the rows that are not as their truth says. OUT gets the videos.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import cv2
import numpy as np
from lib import real_pairs
from lib.real_pairs import LOOKS, OTHERS, SURVEILLANCE, Box, RealPair

ABOUT = (
    "Real pairs: frames, crops (left, top, width, height) and truth. Chosen by background "
    "subtraction (benchmarks/real_pairs.py) and checked by eye on contact sheets."
)
COUNTS = {"add": 46, "drop": 46, "move": 24}  # of each half
STILL, PERSON_STAYS, OF_OTHERS = 40, 20, 40  # unchanged pairs of each half
OF_LOOK, VIEWS = 10, 24
DELTA = 30  # levels from the background that make a pixel foreground
FEW = 25  # px of foreground that an empty crop may have
Rectangle = tuple[int, int, int, int]  # left, top, width, height


class Surveillance:
    """The frames of the camera, their foreground, and the people in it."""

    def __init__(self, folder: Path) -> None:
        self.frames = real_pairs.frames(folder, SURVEILLANCE)
        background = np.median(self.frames[::8], axis=0)
        small, large = np.ones((3, 3), np.uint8), np.ones((17, 9), np.uint8)
        self.foreground: list[np.ndarray] = []
        self.people: list[list[Rectangle]] = []
        for frame in self.frames:
            mask = (np.abs(frame - background).max(2) > DELTA).astype(np.uint8)
            mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, small)
            self.foreground.append(mask)
            joined = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, large)
            _, _, boxes, _ = cv2.connectedComponentsWithStats(joined)
            self.people.append([_rectangle(b) for b in boxes[1:] if _is_person(b)])

    def inside(self, number: int, crop: Rectangle) -> int:
        """How many px of foreground a crop of a frame has."""
        left, top, width, height = crop
        return int(self.foreground[number][top : top + height, left : left + width].sum())


def _rectangle(component: Sequence[int]) -> Rectangle:
    left, top, width, height = map(int, component[:4])
    return left, top, width, height


def _is_person(component: Sequence[int]) -> bool:
    left, top, width, height, area = map(int, component)
    fits = 40 <= height <= 150 and 0.18 <= width / height <= 0.75 and area > 0.35 * width * height
    return fits and left > 4 and top > 4 and left + width < 764 and top + height < 572


def _crop_around(box: Rectangle, generator: np.random.Generator) -> Rectangle:
    """A random crop of the frame of 768 × 576 that has the box in it."""
    left, top, width, height = box
    tall = int(np.clip(height * generator.uniform(1.4, 4.5), 112, 420))
    wide = int(tall * generator.choice((1.0, 4 / 3, 1.5)))
    wide = min(max(wide, width + 16), 700)
    tall = max(tall, height + 16)
    x = generator.integers(max(0, left + width + 6 - wide), min(left - 6, 767 - wide) + 1)
    y = generator.integers(max(0, top + height + 6 - tall), min(top - 6, 575 - tall) + 1)
    return int(x), int(y), wide, tall


def _shares(box: Rectangle, crop: Rectangle) -> Box:
    left, top, width, height = box
    x, y, wide, tall = crop
    edges = (
        (left - x) / wide,
        (top - y) / tall,
        (left + width - x) / wide,
        (top + height - y) / tall,
    )
    return tuple(round(edge, 4) for edge in edges)  # type: ignore[return-value]


def changed(scene: Surveillance, half: str, generator: np.random.Generator) -> Iterator[RealPair]:
    """Pairs in which one person appears, disappears or moves, as many as COUNTS says."""
    middle = len(scene.frames) // 2
    own = range(middle - 5) if half == "first" else range(middle + 5, len(scene.frames))
    left = dict(COUNTS)
    used: set[tuple[int, int]] = set()
    while any(left.values()):
        number = int(generator.choice(own))
        if not scene.people[number]:
            continue
        box = scene.people[number][generator.integers(len(scene.people[number]))]
        kind = str(generator.choice([kind for kind, count in left.items() if count]))
        step = int(generator.integers(12, 45))
        if (number // 8, box[0] // 60) in used:
            continue
        try:
            if kind == "move":
                pair = _moved(scene, number, number + step, box, own, generator)
            else:
                pair = _appeared(scene, number, box, own, generator)
        except ValueError:  # no room for a crop
            continue
        if pair is None:
            continue
        other, crop, origin = pair
        used.add((number // 8, box[0] // 60))
        before, after = (number, other) if kind == "drop" else (other, number)
        left[kind] -= 1
        yield RealPair(
            f"{half}_{kind}_{COUNTS[kind] - left[kind]:02d}", half, SURVEILLANCE, before, after,
            crop, kind, "person", _shares(box, crop), origin and _shares(origin, crop),
        )  # fmt: skip


def _appeared(
    scene: Surveillance,
    number: int,
    box: Rectangle,
    own: range,
    generator: np.random.Generator,
) -> tuple[int, Rectangle, Rectangle | None] | None:
    """Another frame and a crop which shows nobody there, and here the person alone."""
    crop = _crop_around(box, generator)
    left, top, width, height = box
    around = (left - 4, top - 4, width + 8, height + 8)
    if scene.inside(number, crop) - scene.inside(number, around) > FEW:
        return None
    empty = [n for n in own if abs(n - number) >= 25 and scene.inside(n, crop) <= FEW]
    return (int(generator.choice(empty)), crop, None) if empty else None


def _moved(
    scene: Surveillance,
    number: int,
    earlier: int,
    box: Rectangle,
    own: range,
    generator: np.random.Generator,
) -> tuple[int, Rectangle, Rectangle | None] | None:
    """A frame near it and a crop which has one person in both, at two places."""
    if earlier not in own:
        return None
    left, top, width, height = box
    for other in scene.people[earlier]:
        near = abs(other[0] - left) + abs(other[1] - top)
        apart = abs(other[0] - left) > width or abs(other[1] - top) > height
        if not (apart and near < 160 and 0.75 < other[3] / height < 1.33):
            continue
        x, y = min(left, other[0]), min(top, other[1])
        both = (x, y, max(left + width, other[0] + other[2]) - x,
                max(top + height, other[1] + other[3]) - y)  # fmt: skip
        crop = _crop_around(both, generator)
        alone = all(
            scene.inside(frame, crop)
            - scene.inside(frame, (one[0] - 4, one[1] - 4, one[2] + 8, one[3] + 8))
            <= FEW
            for frame, one in ((number, box), (earlier, other))
        )
        if alone:
            return earlier, crop, other
    return None


def unchanged(
    scene: Surveillance, folder: Path, half: str, generator: np.random.Generator
) -> Iterator[RealPair]:
    """Pairs in which nothing happened: other times, and one frame encoded or exposed anew."""
    middle = len(scene.frames) // 2
    own = np.arange(middle - 5) if half == "first" else np.arange(middle + 5, len(scene.frames))
    number = 0
    while number < STILL:
        before, after = (int(n) for n in generator.choice(own, 2))
        tall = int(generator.integers(112, 420))
        wide = min(int(tall * generator.choice((1.0, 4 / 3, 1.5))), 700)
        crop = (
            int(generator.integers(768 - wide)),
            int(generator.integers(576 - tall)),
            wide,
            tall,
        )
        if abs(before - after) < 40 or max(scene.inside(n, crop) for n in (before, after)) > FEW:
            continue
        number += 1
        yield RealPair(f"{half}_still_{number:02d}", half, SURVEILLANCE, before, after, crop)
    number = 0
    while number < PERSON_STAYS:
        frame = int(generator.choice(own))
        if not scene.people[frame]:
            continue
        try:
            crop = _crop_around(scene.people[frame][0], generator)
        except ValueError:
            continue
        number += 1
        edits = _edits(generator)
        name = f"{half}_stays_{number:02d}"
        yield RealPair(name, half, SURVEILLANCE, frame, frame, crop, edits=edits)
    for number in range(OF_OTHERS):
        video = OTHERS[number % len(OTHERS)]
        count, height, width = real_pairs.frames(folder, video).shape[:3]
        frame = int(generator.integers(count // 2)) + (count // 2 if half == "second" else 0)
        tall = int(generator.integers(height // 2, height - 2))
        wide = int(tall * min(width / height, 1.5) - 4)
        crop = (
            1 + int(generator.integers(width - wide - 1)),
            1 + int(generator.integers(height - tall - 1)),
            wide,
            tall,
        )
        name = f"{half}_other_{number + 1:02d}"
        yield RealPair(name, half, video, frame, frame, crop, edits=_edits(generator))


def edited(folder: Path, half: str, generator: np.random.Generator) -> Iterator[RealPair]:
    """Pairs whose picture as a whole became another, and pairs of two views."""
    for kind, count in (*((look, OF_LOOK) for look in LOOKS), ("view", VIEWS)):
        for number in range(count):
            video = (SURVEILLANCE, *OTHERS)[number % 4]
            frames, height, width = real_pairs.frames(folder, video).shape[:3]
            first = frames // 2 if half == "second" else 0
            before = after = first + int(generator.integers(frames // 2 - 1))
            tall = int(generator.integers(height // 2, int(0.7 * height)))
            wide = min(int(1.33 * tall), int(0.7 * width))
            room = (width - wide - 1, height - tall - 1)
            left, top = (int(generator.integers(one)) for one in room)
            edits: dict[str, object] = {"jpeg": int(generator.integers(60, 96))}
            if kind in ("brighter", "darker"):
                low, high = (1.4, 1.8) if kind == "brighter" else (0.4, 0.7)
                edits["gain"] = round(float(generator.uniform(low, high)), 2)
            elif kind == "grey":
                edits["grey"] = True
            elif kind == "blurred":
                edits["blur"] = round(float(generator.uniform(0.012, 0.03)), 4)
            else:  # the camera turned by 8 to 40 % of the picture
                turn = float(generator.uniform(0.08, 0.4)) * wide
                edits["shift"] = [int(turn) if left + turn <= room[0] else -int(turn), 0]
                left = max(left, -edits["shift"][0])  # type: ignore[index]
            name = f"{half}_{kind}_{number + 1:02d}"
            crop = (left, top, wide, tall)
            yield RealPair(name, half, video, before, after, crop, kind, edits=edits)


def _edits(generator: np.random.Generator) -> dict[str, object]:
    """One or two of: encoded again, brighter or darker, noise, shifted by a pixel."""
    shift = [(0, 1), (1, 0), (1, 1)][generator.integers(3)]
    edits: list[tuple[str, object]] = [
        ("jpeg", int(generator.integers(50, 96))),
        ("gain", round(float(generator.uniform(0.88, 1.14)), 3)),
        ("noise", round(float(generator.uniform(1, 4)), 1)),
        ("shift", [int(step) for step in shift]),
    ]
    chosen = generator.choice(len(edits), generator.integers(1, 3), replace=False)
    return dict(edits[number] for number in sorted(chosen))


@click.group(help=__doc__)
def main() -> None:
    """Its commands are below."""


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
def choose(out: Path) -> None:
    """Writes the list of pairs."""
    real_pairs.fetch(out)
    scene = Surveillance(out)
    generator = np.random.default_rng(49)
    pairs = [
        pair
        for half in ("first", "second")
        for pairs in (changed(scene, half, generator), unchanged(scene, out, half, generator))
        for pair in pairs
    ]
    generator = np.random.default_rng(50)
    pairs += [pair for half in ("first", "second") for pair in edited(out, half, generator)]
    real_pairs.write_list(pairs, ABOUT)


@main.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--side", default=120, show_default=True, help="Height of an image in px.")
@click.option("--match", default="", help="Pairs in whose id this is found (regex).")
@click.option("--columns", default=8, show_default=True)
def sheet(out: Path, side: int, match: str, columns: int) -> None:
    """Draws pairs as OUT/sheet.jpg, before beside after, with the box of what changed."""
    cells = []
    ends = {"add": ("", "box"), "drop": ("box", ""), "move": ("origin", "box")}
    for pair in real_pairs.listed():
        if not re.search(match, pair.id):
            continue
        halves = []
        for end, image in zip(("before", "after"), real_pairs.images(out, pair), strict=True):
            size = (side * 4 // 3, side)
            small = cv2.resize(image[..., ::-1], size, interpolation=cv2.INTER_AREA)
            box = getattr(pair, ends.get(pair.type, ("", ""))[end == "after"], None)
            if box is not None:
                corners = [int(v * s) for v, s in zip(box, size * 2, strict=True)]
                cv2.rectangle(small, corners[:2], corners[2:], (0, 0, 255), 1)
            halves.append(small)
        cell = np.hstack(halves)
        name = pair.id.replace("first_", "1 ").replace("second_", "2 ")
        cv2.putText(cell, name, (2, 10), cv2.FONT_HERSHEY_SIMPLEX, 0.35, (0, 255, 255))
        cells.append(cv2.copyMakeBorder(cell, 0, 3, 0, 3, cv2.BORDER_CONSTANT))
    cells += [np.zeros_like(cells[0])] * (-len(cells) % columns)
    rows = [np.hstack(cells[n : n + columns]) for n in range(0, len(cells), columns)]
    cv2.imwrite(str(out / "sheet.jpg"), np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, 50])
    print(f"{out / 'sheet.jpg'}: {len(cells)} pairs")


if __name__ == "__main__":
    main()
