"""Scenes of simple solids, their changes, and the moments between before and after.

A `Moment` is everything that an image shows. Before, after, distractor and the true frames in
between are all moments; `between` moves every parameter along a straight line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

SHAPES = ("cube", "sphere", "cylinder")
SIZES = {"small": 0.4, "large": 0.75}
COLORS = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
MATERIALS = ("rubber", "metal")
CHANGE_TYPES = ("color", "material", "add", "drop", "move")
# How each field of a look is drawn; a change of material moves these two numbers.
SURFACES = {"rubber": (0.0, 0.65), "metal": (1.0, 0.2)}  # metallic, roughness

FIELD = 2.7
GAP = 0.25
NEAREST_MOVE, FARTHEST_MOVE = 1.0, 3.5
CAMERA = (7.0, -6.6, 5.3)
CAMERA_JITTER = 0.9
LOWEST_CAMERA = 2.5  # above the floor, so that objects do not hide each other
TARGET = (0.0, 0.0, 0.15)  # what every camera looks at
FIELD_OF_VIEW = 36.0  # degrees
LIGHTS = ((6.4, -2.9, 8.0), (-4.6, -6.7, 6.0))
LIGHT_JITTER = 1.0

Point = tuple[float, float, float]
View = tuple[Point, tuple[Point, ...]]  # camera, lights


@dataclass(frozen=True)
class Solid:
    """An object on the floor: what a caption can say of it, and its position."""

    shape: str
    size: str
    color: str
    material: str
    x: float
    y: float
    turn: float

    @property
    def radius(self) -> float:
        return SIZES[self.size]


@dataclass(frozen=True)
class Look:
    """An object as an image shows it, which a caption cannot always name: half blue, half there."""

    shape: str
    radius: float
    rgb: Point
    metallic: float
    roughness: float
    x: float
    y: float
    turn: float
    presence: float = 1.0


@dataclass(frozen=True)
class Moment:
    """All that an image shows. Looks are in the order of the objects; None for a missing one."""

    looks: tuple[Look | None, ...]
    camera: Point
    lights: tuple[Point, ...]


@dataclass(frozen=True)
class Scene:
    """Before and after of some changes, and the distractor in which only camera and light moved.

    Attributes:
        change, changed: The type of the first change, and the number of its object.
        before, after: The objects. An added object is None before, a dropped one None after.
        further: Type and object of each further change; no object changes twice.
    """

    index: int
    change: str
    changed: int
    before: tuple[Solid | None, ...]
    after: tuple[Solid | None, ...]
    moments: tuple[Moment, Moment, Moment]  # before, after, distractor
    further: tuple[tuple[str, int], ...] = ()

    def each(self) -> tuple[Scene, ...]:
        """The same scene once for each change, which is then the only one that it speaks of."""
        listed = ((self.change, self.changed), *self.further)
        return tuple(replace(self, change=c, changed=n, further=()) for c, n in listed)

    def reversed(self) -> Scene:
        """The changes the other way round: after is before, and what was added is dropped."""
        first, second, distractor = self.moments
        opposite = {"add": "drop", "drop": "add"}
        return replace(
            self,
            change=opposite.get(self.change, self.change),
            before=self.after,
            after=self.before,
            moments=(second, first, distractor),
            further=tuple((opposite.get(kind, kind), number) for kind, number in self.further),
        )

    def to_json(self) -> dict[str, Any]:
        """For `scenes/000000.json`; further changes only where there are some."""
        value = asdict(self)
        return value if self.further else {k: v for k, v in value.items() if k != "further"}


def sample(
    rng: np.random.Generator,
    index: int,
    change: str,
    jitter: float = 1.0,
    further: Sequence[str] = (),
) -> Scene | None:
    """A scene with changes of the given types; None where the dice left no room for them.

    Args:
        jitter: How far camera and lights move between the images of a pair, from 0 (a camera on a
            tripod) to 1: the camera by up to 1.17 on each axis, some 11 away from its target, and
            the lights by up to 1.3. Up to MAX_JITTER the camera goes on in the same direction, at
            its distance from the target.
        further: Types of further changes, each of another object.
    """
    kinds = (change, *further)
    # Both images show at least 3 and at most 7 objects, also where some come or go; one stays.
    least = max(3 + max(kinds.count("add"), kinds.count("drop")), len(kinds) + 1)
    solids = _solids(rng, int(rng.integers(least, 8)))
    if solids is None:
        return None
    before: list[Solid | None] = list(solids)
    after: list[Solid | None] = list(solids)
    numbers: list[int] = []
    for kind in kinds:
        unchanged = [number for number in range(len(solids)) if number not in numbers]
        number = unchanged[int(rng.integers(len(unchanged)))]
        numbers.append(number)
        if kind == "add":
            before[number] = None
        elif kind == "drop":
            after[number] = None
        else:
            after[number] = _changed_solid(rng, solids, after, number, kind)
            if after[number] is None:
                return None
    if not _told_apart(before, after, numbers):
        return None
    first, *others = (_view(rng, reach) for reach in (0.3, 1.0, 1.0))
    views = [first, *(_toward(first, other, jitter) for other in others)]
    if any(camera[2] < LOWEST_CAMERA for camera, _ in views):
        return None
    moments = tuple(
        Moment(tuple(None if s is None else look(s) for s in shown_solids), *view)
        for shown_solids, view in zip((before, after, before), views, strict=True)
    )
    return Scene(
        index,
        change,
        numbers[0],
        tuple(before),
        tuple(after),
        moments,  # type: ignore[arg-type]
        tuple(zip(kinds[1:], numbers[1:], strict=True)),
    )


def from_json(value: Mapping[str, Any]) -> Scene:
    """A scene as `scenes/000000.json` holds it."""

    def solids(listed: Sequence[Mapping[str, Any] | None]) -> tuple[Solid | None, ...]:
        return tuple(None if one is None else Solid(**one) for one in listed)

    def point(values: Sequence[float]) -> Point:
        x, y, z = values
        return x, y, z

    def moment(one: Mapping[str, Any]) -> Moment:
        looks = (
            None if look is None else Look(**{**look, "rgb": point(look["rgb"])})
            for look in one["looks"]
        )
        lights = tuple(point(light) for light in one["lights"])
        return Moment(tuple(looks), point(one["camera"]), lights)

    before, after, distractor = (moment(one) for one in value["moments"])
    return Scene(
        value["index"],
        value["change"],
        value["changed"],
        solids(value["before"]),
        solids(value["after"]),
        (before, after, distractor),
        tuple((kind, number) for kind, number in value.get("further", ())),
    )


def light_paths(samples: int) -> int:
    """How many light paths a pixel gets that is rendered with `samples`, which is at least 1.

    The sampler divides a pixel into a grid of y = ⌊√samples⌋ rows and as many columns as it takes,
    so that it rounds up: 5 to 6, 10 to 12, and 16 stays.
    """
    rows = math.isqrt(samples)
    return rows * -(-samples // rows)


def height(solid: Solid) -> float:
    """Height of the solid's top above the floor."""
    return solid.radius * {"sphere": 2.0, "cube": float(np.sqrt(2)), "cylinder": 1.7}[solid.shape]


def look(solid: Solid) -> Look:
    """A solid as an image shows it."""
    metallic, roughness = SURFACES[solid.material]
    red, green, blue = (channel / 255 for channel in COLORS[solid.color])
    return Look(
        shape=solid.shape,
        radius=solid.radius,
        rgb=(red, green, blue),
        metallic=metallic,
        roughness=roughness,
        x=solid.x,
        y=solid.y,
        turn=solid.turn,
    )


def between(before: Moment, after: Moment, t: float) -> Moment:
    """The moment at time t in [0, 1]: every parameter on the straight line between the two.

    An object that comes or goes grows out of the floor or shrinks into it.
    """
    looks: list[Look | None] = []
    for start, end in zip(before.looks, after.looks, strict=True):
        if start is None and end is None:
            looks.append(None)
            continue
        first = start or replace(end, presence=0.0)  # type: ignore[type-var]
        last = end or replace(start, presence=0.0)  # type: ignore[type-var]
        looks.append(_blend(first, last, t))  # type: ignore[arg-type]
    lights = tuple(_line(a, b, t) for a, b in zip(before.lights, after.lights, strict=True))
    return Moment(tuple(looks), _line(before.camera, after.camera, t), lights)


def _blend(first: Look, last: Look, t: float) -> Look | None:
    presence = first.presence + (last.presence - first.presence) * t
    if presence <= 0:
        return None
    numbers = {
        name: getattr(first, name) + (getattr(last, name) - getattr(first, name)) * t
        for name in ("radius", "metallic", "roughness", "x", "y", "turn")
    }
    return replace(first, **numbers, rgb=_line(first.rgb, last.rgb, t), presence=presence)


def _line(a: Point, b: Point, t: float) -> Point:
    x, y, z = (p + (q - p) * t for p, q in zip(a, b, strict=True))
    return x, y, z


def _solids(rng: np.random.Generator, count: int) -> tuple[Solid, ...] | None:
    solids: list[Solid] = []
    for _ in range(count):
        for _ in range(100):
            x, y = rng.uniform(-FIELD, FIELD, 2)
            solid = Solid(
                shape=str(rng.choice(SHAPES)),
                size=str(rng.choice(list(SIZES))),
                color=str(rng.choice(list(COLORS))),
                material=str(rng.choice(MATERIALS)),
                x=float(x),
                y=float(y),
                turn=float(rng.uniform(0, 90)),
            )
            if _free(solid, solids):
                solids.append(solid)
                break
        else:
            return None
    return tuple(solids)


def _free(solid: Solid, others: list[Solid]) -> bool:
    return all(
        np.hypot(solid.x - o.x, solid.y - o.y) > solid.radius + o.radius + GAP for o in others
    )


def _changed_solid(
    rng: np.random.Generator,
    solids: Sequence[Solid],
    after: Sequence[Solid | None],
    changed: int,
    change: str,
) -> Solid | None:
    """The object after its change; None where there is no place to move to.

    Args:
        solids: All objects, as they are before or where they come.
        after: They after the changes so far.
    """
    solid = solids[changed]
    if change == "color":
        return replace(solid, color=str(rng.choice([c for c in COLORS if c != solid.color])))
    if change == "material":
        return replace(solid, material=MATERIALS[1 - MATERIALS.index(solid.material)])
    # What goes stays in the way until it is gone.
    others = [
        (one, end or one)
        for number, (one, end) in enumerate(zip(solids, after, strict=True))
        if number != changed
    ]
    for _ in range(100):
        x, y = rng.uniform(-FIELD, FIELD, 2)
        moved = replace(solid, x=float(x), y=float(y))
        far = np.hypot(moved.x - solid.x, moved.y - solid.y)
        if NEAREST_MOVE <= far <= FARTHEST_MOVE and _path_free(solid, moved, others):
            return moved
    return None


def _path_free(start: Solid, end: Solid, others: Sequence[tuple[Solid, Solid]]) -> bool:
    """No collision at the end nor on the way: the true frames show the way.

    Args:
        others: Where each other object is before and after.
    """
    steps = np.linspace(0, 1, 17)[1:]
    return all(
        _free(_on_the_way(start, end, t), [_on_the_way(*other, t) for other in others])
        for t in steps
    )


def _on_the_way(start: Solid, end: Solid, t: float) -> Solid:
    return replace(end, x=start.x + (end.x - start.x) * t, y=start.y + (end.y - start.y) * t)


def _told_apart(
    before: Sequence[Solid | None], after: Sequence[Solid | None], changed: Sequence[int]
) -> bool:
    """Whether no two changes can be taken for others: a cube goes, its like comes; it moved."""

    def attributes(solid: Solid | None) -> tuple[str, ...]:
        return () if solid is None else (solid.shape, solid.size, solid.color, solid.material)

    return not any(
        attributes(before[one]) and attributes(before[one]) == attributes(after[other])
        for one in changed
        for other in changed
        if one != other
    )


def _view(rng: np.random.Generator, reach: float) -> View:
    """Camera and lights: every scene has its own, and a second view differs moderately."""

    def near(place: Point, by: float) -> Point:
        x, y, z = (float(p + d) for p, d in zip(place, rng.uniform(-by, by, 3), strict=True))
        return x, y, z

    camera = near(CAMERA, CAMERA_JITTER * reach)
    return camera, tuple(near(light, LIGHT_JITTER * reach) for light in LIGHTS)


def _toward(first: View, second: View, share: float) -> View:
    """The view at `share` of the way from the first to the second; exact at the end.

    Beyond the end the lights stay, and the camera keeps its distance from the target.
    """
    if share == 1:
        return second
    camera = _line(first[0], second[0], share)
    if share > 1:
        ray, distance = np.subtract(camera, TARGET), np.linalg.norm(np.subtract(second[0], TARGET))
        x, y, z = (float(c) for c in TARGET + ray * (distance / np.linalg.norm(ray)))
        return (x, y, z), second[1]
    lights = tuple(_line(a, b, share) for a, b in zip(first[1], second[1], strict=True))
    return camera, lights
