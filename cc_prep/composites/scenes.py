"""What a composed scene shows before and after a change, its pixels, masks and facts.

A scene is a part of a photograph with cut-outs on it. It is drawn on a canvas that is a little
larger than the images; each image is what a camera of its own sees of a canvas: moved by up to 3 of
224 px, turned, zoomed, with an exposure, a noise and a JPEG of its own.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cc_prep.composites.sentences import CLASS, COLOR, COLORS, OF_PICTURE, TEXT
from cc_prep.media import images
from cc_prep.records import Facts, ObjectAttributes

# How often each type of change is drawn, of every 21 scenes.
COUNTS = {
    "add": 4,
    "drop": 4,
    "move": 3,
    "replace": 2,
    "color": 2,
    "brighter": 1,
    "darker": 1,
    "blurred": 1,
    "black_and_white": 1,
    "text_added": 1,
    "cropped": 1,
}
MARGIN = 0.04  # of an image's side, on each side of the canvas
OBJECT = (0.2, 0.42)  # the longer side of an object, of an image's side
BORDER = 0.035  # of an image's side: how far from the lines of the 3 × 3 grid a centre is
BYSTANDERS = (0, 0, 1, 1, 2)  # objects that do not change
TINTED = 0.1  # share of the objects that have a color from the start
SHADOWED = 0.6  # share of the objects that cast a shadow
MIRRORED = 0.5  # share of backgrounds and objects
STILL = 0.3  # share of the images whose camera does not move
SHIFT, TURN, ZOOM = 0.0134, 0.6, 0.01  # of a camera: of the side, in degrees, of the scale
EXPOSURE, OFFSET, NOISE = 0.07, 5.0, 5.0  # of the brightness, in levels, in levels
JPEG = (60, 95)
SEEN = 0.03  # opacity from which on a mask holds a pixel
MIN_AREA = 0.004  # share of an image that a changed object shows at least
MIN_DIFFERENCE = 14.0  # levels by which the pixels of a changed object differ on average
# Levels by which a picture that changed as a whole differs on average at least.
MIN_CHANGE = {"brighter": 14.0, "darker": 14.0, "blurred": 2.5, "black_and_white": 6.0}
WORDS = (
    "SALE", "OPEN", "Hello", "2026", "PHOTO", "Welcome", "DRAFT", "Copyright", "No. 7", "Summer",
    "EXIT", "Thank you", "www.example.org", "Room 12", "Happy Birthday", "TEST", "Sunday", "50 %",
)  # fmt: skip
INKS = ((255, 255, 255), (0, 0, 0), (225, 35, 35), (255, 225, 0), (25, 70, 220), (20, 140, 60))
LETTERS = (0.09, 0.17)  # height of a text's letters, of an image's side


@dataclass(frozen=True)
class Item:
    """A cut-out on the canvas.

    Attributes:
        pixels: uint8 [h, w, 4] RGBA, as large as it is drawn.
        centre: x and y on the canvas, in px.
        color: Its name if it was tinted, else empty.
    """

    name: str
    pixels: np.ndarray
    centre: tuple[float, float]
    shadow: bool = False
    color: str = ""

    @property
    def corner(self) -> tuple[int, int]:
        """Left and top on the canvas, in px."""
        height, width = self.pixels.shape[:2]
        return round(self.centre[0] - width / 2), round(self.centre[1] - height / 2)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom on the canvas, in px."""
        (left, top), (height, width) = self.corner, self.pixels.shape[:2]
        return left, top, left + width, top + height


@dataclass(frozen=True)
class Scene:
    """A scene before and after its change.

    Attributes:
        side: Of the canvas in px.
        background: uint8 [side, side, 3].
        before, after: The items, those that do not change first.
        changed: The item that changes, before and after; None where it is not there, and where the
            picture changes as a whole.
        strength: Of a change of the picture: a factor of the brightness, the deviation of a blur in
            px, or the part that is left of a cropped picture.
        part: Where a cropped picture was cut out, 0 to 1 to the right and downwards.
    """

    type: str
    side: int
    background: np.ndarray
    before: tuple[Item, ...]
    after: tuple[Item, ...]
    changed: tuple[Item | None, Item | None] = (None, None)
    strength: float = 0.0
    part: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Composed:
    """The images of a scene, and what is known of them.

    Attributes:
        before, after, unchanged: uint8 [H, W, 3]; the last shows what `before` does.
        masks: bool [H, W]: the union, what vanished as in before, what appeared as in after.
        facts: By kind of pair, without sentences.
    """

    before: np.ndarray
    after: np.ndarray
    unchanged: np.ndarray
    masks: tuple[np.ndarray, np.ndarray, np.ndarray]
    facts: dict[str, Facts]


@dataclass(frozen=True)
class Library:
    """What scenes of a split are made of: photographs, and cut-outs by class.

    Attributes:
        background: Reads one of `backgrounds`, uint8 [H, W, 3].
        cutout: Reads one of `objects`, uint8 [H, W, 4].
    """

    backgrounds: Sequence[str]
    objects: Mapping[str, Sequence[str]]
    background: Callable[[str], np.ndarray]
    cutout: Callable[[str], np.ndarray]

    @property
    def classes(self) -> list[str]:
        """The names of the classes of the cut-outs."""
        return sorted(self.objects)


def sample(rng: np.random.Generator, kind: str, size: int, library: Library) -> Scene | None:
    """A scene with a change of a type; None where the dice give one that cannot be seen.

    Args:
        size: Of the images in px.
    """
    margin = math.ceil(MARGIN * size)
    side = size + 2 * margin
    background = _background(rng, library, side)
    if len(library.classes) < 2 and kind == "replace":
        kind = "color"
    items: list[Item] = []
    for _ in range(int(rng.choice(BYSTANDERS))):
        item = _placed(rng, _object(rng, library, size), items, side, margin)
        if item is not None:
            items.append(item)
    scene = Scene(kind, side, background, tuple(items), tuple(items))
    if kind in OF_PICTURE:
        strengths = {
            "brighter": rng.uniform(1.3, 1.8),
            "darker": rng.uniform(0.4, 0.72),
            "blurred": rng.uniform(2, 4) * size / 224,
            "cropped": rng.uniform(0.6, 0.82),
        }
        part = float(rng.random()), float(rng.random())
        scene = replace(scene, strength=float(strengths.get(kind, 0)), part=part)
        return scene if _is_changed(scene) else None
    thing = _text(rng, size) if kind == "text_added" else _object(rng, library, size)
    first = _placed(rng, thing, items, side, margin)
    if first is None:
        return None
    second: Item | None = first
    if kind == "move":
        second = _placed(rng, first, [*items, first], side, margin)
        if second is None or _cell(second, side, margin) == _cell(first, side, margin):
            return None
    elif kind == "replace":
        others = [name for name in library.classes if name != first.name]
        other = _object(rng, library, size, str(rng.choice(others)))
        second = replace(other, centre=first.centre)
        if not _fits(second, items, side, margin):
            return None
    elif kind == "color":
        color = str(rng.choice([name for name in COLORS if name != first.color]))
        second = replace(first, pixels=tinted(first.pixels, color), color=color)
    ends = (None, first) if kind in ("add", "text_added") else (first, second)
    if kind == "drop":
        ends = (first, None)
    before, after = ((*items, one) if one is not None else tuple(items) for one in ends)
    scene = replace(scene, before=before, after=after, changed=ends)
    return scene if _is_seen(scene, size) else None


def compose(scene: Scene, size: int, jitter: float, rng: np.random.Generator) -> Composed:
    """The images of a scene, each by a camera of its own.

    Args:
        jitter: How far cameras move, 0 to 1.
    """
    canvases = pictures(scene)
    views = [_view(rng, scene.side, size, jitter) for _ in range(3)]
    if scene.type == "cropped":
        views[1] = views[1] @ _crop(scene)
    before, after, unchanged = (
        _photograph(canvas, view, size, rng)
        for canvas, view in zip((*canvases, canvases[0]), views, strict=True)
    )
    whole = np.full((size, size), scene.type in OF_PICTURE)
    sides = [
        whole if one is None else _seen(coverage(one, scene.side), view, size)
        for one, view in zip(_changing(scene), views, strict=False)
    ]
    return Composed(
        before,
        after,
        unchanged,
        (sides[0] | sides[1], *sides),
        {
            "change": _facts(scene.type, scene, views[:2], size),
            "no_change": _facts("none", scene, (views[0], views[2]), size),
        },
    )


def pictures(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Both canvases of a scene, uint8 [side, side, 3], as no camera has disturbed them.

    A cropped picture is cropped by its camera.
    """
    before, after = (_drawn(scene.background, items) for items in (scene.before, scene.after))
    if scene.type in ("brighter", "darker"):
        after = (after * scene.strength).clip(0, 255).astype(np.uint8)
    elif scene.type == "blurred":
        after = cv2.GaussianBlur(after, (0, 0), scene.strength)
    elif scene.type == "black_and_white":
        after = np.repeat(cv2.cvtColor(after, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    return before, after


def _changing(scene: Scene) -> list[Item | None]:
    """The item that changes, before and after; without its shadow if that stays."""
    stays = scene.type == "color"
    return [one and replace(one, shadow=one.shadow and not stays) for one in scene.changed]


def coverage(item: Item, side: int) -> np.ndarray:
    """Which pixels of the canvas an item and its shadow change, bool [side, side]."""
    opacity = np.zeros((side, side), np.float32)
    left, top, right, bottom = item.box
    opacity[top:bottom, left:right] = item.pixels[..., 3] / 255
    if item.shadow:
        opacity = np.maximum(opacity, _shadow(item, side))
    return opacity > SEEN


def tinted(pixels: np.ndarray, color: str) -> np.ndarray:
    """A cut-out, uint8 [H, W, 4], in another color; its light and shade stay."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in COLORS[color]))
    base = np.array(colorsys.hsv_to_rgb(hue, saturation, value), np.float32)
    light = cv2.cvtColor(pixels[..., :3], cv2.COLOR_RGB2GRAY).astype(np.float32)[..., None] / 255
    light = 0.25 + 0.75 * light
    dark = base * light / 0.6
    bright = base + (1 - base) * (light - 0.6) / 0.4 * 0.7
    rgb = np.where(light < 0.6, dark, bright)
    return np.dstack(((255 * rgb).clip(0, 255).astype(np.uint8), pixels[..., 3]))


def _background(rng: np.random.Generator, library: Library, side: int) -> np.ndarray:
    pixels = library.background(str(rng.choice(library.backgrounds)))
    height, width = pixels.shape[:2]
    part = round(rng.uniform(0.6, 1) * min(height, width))
    x, y = (int(rng.integers(0, whole - part + 1)) for whole in (width, height))
    square = images.resize(pixels[y : y + part, x : x + part], side)
    return np.ascontiguousarray(square[:, ::-1]) if rng.random() < MIRRORED else square


def _object(rng: np.random.Generator, library: Library, size: int, name: str = "") -> Item:
    """A cut-out in its size and light, not yet at a place."""
    name = name or str(rng.choice(library.classes))
    pixels = library.cutout(str(rng.choice(library.objects[name])))
    scale = rng.uniform(*OBJECT) * size / max(pixels.shape[:2])
    height, width = (max(4, round(scale * length)) for length in pixels.shape[:2])
    # Alpha and color are resized apart, or the color of what is transparent would shine through.
    opacity = pixels[..., 3:].astype(np.float32) / 255
    layers = np.dstack((pixels[..., :3] * opacity, opacity))
    small = cv2.resize(layers, (width, height), interpolation=cv2.INTER_AREA)
    opacity = small[..., 3:].clip(0, 1)
    rgb = small[..., :3] / np.maximum(opacity, 1e-3)
    if rng.random() < MIRRORED:
        rgb, opacity = rgb[:, ::-1], opacity[:, ::-1]
    grey = rgb.mean(2, keepdims=True)
    rgb = (grey + rng.uniform(0.7, 1.2) * (rgb - grey)) * rng.uniform(0.75, 1.2)
    drawn = np.dstack((rgb.clip(0, 255), 255 * opacity)).round().astype(np.uint8)
    color = str(rng.choice(list(COLORS))) if rng.random() < TINTED else ""
    shadow = bool(rng.random() < SHADOWED)
    return Item(name, tinted(drawn, color) if color else drawn, (0.0, 0.0), shadow, color)


def _text(rng: np.random.Generator, size: int) -> Item:
    font = ImageFont.load_default(float(rng.uniform(*LETTERS) * size))
    words = str(rng.choice(WORDS))
    left, top, right, bottom = (round(edge) for edge in font.getbbox(words))
    image = Image.new("L", (max(8, right - left + 2), max(8, bottom - top + 2)))
    ImageDraw.Draw(image).text((1 - left, 1 - top), words, 255, font)
    alpha = np.asarray(image)
    ink = np.empty((*alpha.shape, 3), np.uint8)
    ink[:] = INKS[int(rng.integers(len(INKS)))]
    return Item(TEXT, np.dstack((ink, alpha)), (0.0, 0.0))


def _placed(
    rng: np.random.Generator, item: Item, others: Sequence[Item], side: int, margin: int
) -> Item | None:
    """The item at a free place; None where none was found."""
    height, width = item.pixels.shape[:2]
    for _ in range(20):
        edges = (margin + length / 2 for length in (width, height))
        x, y = (float(rng.uniform(edge, max(edge, side - edge))) for edge in edges)
        placed = replace(item, centre=(x, y))
        if _fits(placed, others, side, margin):
            return placed
    return None


def _fits(item: Item, others: Sequence[Item], side: int, margin: int) -> bool:
    """Whether an item is inside the image, beside all others, and clearly in a cell of 3 × 3."""
    left, top, right, bottom = item.box
    if min(left, top) < margin or max(right, bottom) > side - margin:
        return False
    size = side - 2 * margin
    for centre in item.centre:
        share = (centre - margin) / size
        if min(abs(share - 1 / 3), abs(share - 2 / 3)) < BORDER:
            return False
    boxes = (other.box for other in others)
    return all(left >= x1 or right <= x0 or top >= y1 or bottom <= y0 for x0, y0, x1, y1 in boxes)


def _cell(item: Item, side: int, margin: int) -> tuple[int, int]:
    x, y = (int(3 * (centre - margin) / (side - 2 * margin)) for centre in item.centre)
    return x, y


def _drawn(background: np.ndarray, items: Sequence[Item]) -> np.ndarray:
    canvas = background.astype(np.float32)
    for item in items:
        if item.shadow:
            canvas *= 1 - 0.6 * _shadow(item, len(canvas))[..., None]
        left, top, right, bottom = item.box
        opacity = item.pixels[..., 3:].astype(np.float32) / 255
        region = canvas[top:bottom, left:right]
        region += opacity * (item.pixels[..., :3] - region)
    return canvas.round().astype(np.uint8)


def _shadow(item: Item, side: int) -> np.ndarray:
    """How strong the shadow on the ground below an item is, float32 [side, side] in [0, 1]."""
    left, top, right, bottom = item.box
    width, height = right - left, bottom - top
    shadow = np.zeros((side, side), np.float32)
    centre = round((left + right) / 2), round(bottom - 0.05 * height)
    axes = max(2, round(0.45 * width)), max(2, round(0.08 * height))
    cv2.ellipse(shadow, centre, axes, 0, 0, 360, 1.0, -1)
    return cv2.GaussianBlur(shadow, (0, 0), max(1.0, 0.012 * side))


def _view(rng: np.random.Generator, side: int, size: int, jitter: float) -> np.ndarray:
    """From a place on the canvas to one in a camera's image, float [3, 3]."""
    shift = rng.uniform(-SHIFT, SHIFT, 2) * size * jitter
    scale = 1 + rng.uniform(-ZOOM, ZOOM) * jitter
    angle = math.radians(rng.uniform(-TURN, TURN)) * jitter
    if rng.random() < STILL:
        shift, scale, angle = np.zeros(2), 1.0, 0.0
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    turn = np.array([[cos, -sin, size / 2 + shift[0]], [sin, cos, size / 2 + shift[1]], [0, 0, 1]])
    centre = np.array([[1, 0, -side / 2], [0, 1, -side / 2], [0, 0, 1]])
    return turn @ centre


def _crop(scene: Scene) -> np.ndarray:
    """From a place on the canvas to where it is when a part of the image fills the image."""
    side, left = scene.side, scene.strength
    x, y = (offset * (1 - left) * side for offset in scene.part)
    return np.array([[1 / left, 0, -x / left], [0, 1 / left, -y / left], [0, 0, 1]])


def _photograph(
    canvas: np.ndarray, view: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    moved = cv2.warpAffine(
        canvas, _pixels(view), (size, size), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
    ).astype(np.float32)
    moved = moved * rng.uniform(1 - EXPOSURE, 1 + EXPOSURE) + rng.uniform(-OFFSET, OFFSET)
    moved += rng.uniform(0, NOISE) * rng.standard_normal(moved.shape, np.float32)
    pixels = moved.clip(0, 255).round().astype(np.uint8)
    encoded = images.encode_image(pixels, "jpg", int(rng.integers(JPEG[0], JPEG[1] + 1)))
    return images.decode(encoded, "a composed image")


def _pixels(view: np.ndarray) -> np.ndarray:
    """The same view between the centres of pixels, as OpenCV takes it, float [2, 3]."""
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    moved: np.ndarray = (np.linalg.inv(half) @ view @ half)[:2]
    return moved


def _seen(mask: np.ndarray, view: np.ndarray, size: int) -> np.ndarray:
    """What a camera sees of a mask of the canvas, bool [size, size]."""
    moved = cv2.warpAffine(mask.astype(np.float32), _pixels(view), (size, size))
    return np.asarray(moved > 0.25)


def _is_changed(scene: Scene) -> bool:
    """Whether the change of a picture as a whole can be seen."""
    before, after = (picture.astype(np.float32) for picture in pictures(scene))
    return bool(np.abs(before - after).mean() >= MIN_CHANGE.get(scene.type, 0))


def _is_seen(scene: Scene, size: int) -> bool:
    """Whether the item that changes is large enough and differs from what it hides, or was."""
    before, after = (picture.astype(np.float32) for picture in pictures(scene))
    levels = np.abs(before - after).mean(2)
    for item in scene.changed:
        if item is not None:
            mask = np.zeros(levels.shape, bool)
            left, top, right, bottom = item.box
            mask[top:bottom, left:right] = item.pixels[..., 3] > 127
            if mask.sum() < MIN_AREA * size**2 or levels[mask].mean() < MIN_DIFFERENCE:
                return False
    return True


def _facts(kind: str, scene: Scene, views: Sequence[np.ndarray], size: int) -> Facts:
    changed = scene.changed if kind != "none" else (None, None)
    ends = scene.before, scene.after if kind != "none" else scene.before
    before, after = (
        None if one is None else _attributes(one, view, size)
        for one, view in zip(changed, views, strict=True)
    )
    objects_before, objects_after = (
        tuple(
            attributes
            for attributes in (_attributes(one, view, size) for one in items)
            if all(0 <= part <= 1 for part in attributes.location)
        )
        for items, view in zip(ends, views, strict=True)
    )
    return Facts(kind, before, after, objects_before, objects_after, grammar="composites")


def _attributes(item: Item, view: np.ndarray, size: int) -> ObjectAttributes:
    u, v, _ = view @ (*item.centre, 1) / size
    words = {CLASS: item.name, COLOR: item.color}
    return ObjectAttributes(words, (round(float(u), 4), round(float(v), 4)))
