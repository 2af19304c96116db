"""A moment of a scene as pixels, by Mitsuba 3 in its scalar variant: any CPU, no compiler.

The same moment gives the same bytes on every run and with any number of threads: the film's box
filter keeps each sample in its own pixel, so no sum depends on an order.
"""

from __future__ import annotations

from typing import Any

import cv2
import mitsuba as mi
import numpy as np

from cc_prep.synth.scenes import FIELD_OF_VIEW, TARGET, Look, Moment, light_paths

mi.set_variant("scalar_rgb")
T = mi.ScalarTransform4f

# A pixel brighter than its surroundings by this factor is a stray sample of a caustic.
FIREFLY = 1.6


def image(moment: Moment, size: int, samples: int, seed: int) -> np.ndarray:
    """The moment as uint8 [size, size, 3] sRGB, with `light_paths(samples)` in each pixel."""
    rendered = mi.render(_scene(moment, size, samples), seed=seed)
    linear = _without_fireflies(np.array(rendered, dtype=np.float32))
    encoded = np.where(
        linear <= 0.0031308, 12.92 * linear, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055
    )
    return np.rint(encoded.clip(0, 1) * 255).astype(np.uint8)


def object_map(moment: Moment, size: int) -> np.ndarray:
    """Which object is seen at a point of each pixel: its number, -1 for ground; int [size, size].

    The point is a random one of its pixel, the same on every run, since the sampler moves also a
    single sample. So edges are ragged by up to half a pixel on each axis.
    """
    scene = _scene(moment, size, 1)
    integrator = mi.load_dict({"type": "aov", "aovs": "i:shape_index"})
    shape_indices = np.array(mi.render(scene, integrator=integrator, spp=1))[..., -1]
    numbers = {i: _number(shape.id()) for i, shape in enumerate(scene.shapes())}
    table = np.array([-1, *(numbers[i] for i in range(len(numbers)))])
    return table[np.rint(shape_indices).astype(int)]


def _scene(moment: Moment, size: int, samples: int) -> Any:
    film = {"type": "hdrfilm", "width": size, "height": size, "pixel_format": "rgb"}
    parts: dict[str, Any] = {
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 4},
        "sensor": {
            "type": "perspective",
            "fov": FIELD_OF_VIEW,
            "to_world": T().look_at(origin=list(moment.camera), target=list(TARGET), up=[0, 0, 1]),
            "film": {**film, "rfilter": {"type": "box"}},
            "sampler": {"type": "multijitter", "sample_count": light_paths(samples)},
        },
        "floor": {
            "type": "rectangle",
            "to_world": T().scale([40, 40, 1]),
            "bsdf": {"type": "diffuse", "reflectance": _rgb((0.5, 0.5, 0.5))},
        },
        "sky": {"type": "constant", "radiance": _rgb((0.35, 0.35, 0.37))},
    }
    for number, (place, power) in enumerate(zip(moment.lights, (26.0, 9.0), strict=True)):
        parts[f"light_{number}"] = {
            "type": "sphere",
            "center": list(place),
            "radius": 1.2,
            "emitter": {"type": "area", "radiance": _rgb((power, power, power * 0.97))},
        }
    for number, look in enumerate(moment.looks):
        if look is not None:
            parts.update(_solid(number, look))
    return mi.load_dict(parts)


def _solid(number: int, look: Look) -> dict[str, Any]:
    linear = tuple(channel**2.2 for channel in look.rgb)
    bsdf = {
        "type": "principled",
        "base_color": _rgb(linear),
        "metallic": look.metallic,
        "roughness": look.roughness,
        "specular": 0.5,
    }
    radius = look.radius * look.presence
    stand = T().translate([look.x, look.y, 0]) @ T().rotate([0, 0, 1], look.turn)
    if look.shape == "sphere":
        sphere = {"type": "sphere", "center": [look.x, look.y, radius], "radius": radius}
        return {f"solid_{number}": {**sphere, "bsdf": bsdf}}
    if look.shape == "cube":
        half = float(radius / np.sqrt(2))
        place = stand @ T().translate([0, 0, half]) @ T().scale(half)
        return {f"solid_{number}": {"type": "cube", "to_world": place, "bsdf": bsdf}}
    # Mitsuba's cylinder is open, so a disk closes its top.
    side, height = 0.85 * radius, 1.7 * radius
    wall = {"type": "cylinder", "p0": [0, 0, 0], "p1": [0, 0, height], "radius": side}
    lid = {"type": "disk", "to_world": stand @ T().translate([0, 0, height]) @ T().scale(side)}
    return {
        f"solid_{number}": {**wall, "to_world": stand, "bsdf": bsdf},
        f"solid_{number}_lid": {**lid, "bsdf": bsdf},
    }


def _number(shape_id: str) -> int:
    """`solid_3` and `solid_3_lid` → 3; anything else → -1."""
    kind, _, rest = shape_id.partition("_")
    return int(rest.partition("_")[0]) if kind == "solid" else -1


def _without_fireflies(linear: np.ndarray) -> np.ndarray:
    """Replaces stray bright pixels by the median around them."""
    around = cv2.medianBlur(np.ascontiguousarray(linear), 3)
    bright = linear.max(axis=2) > FIREFLY * around.max(axis=2) + 0.05
    return np.where(bright[..., None], around, linear)


def _rgb(value: tuple[float, ...]) -> dict[str, Any]:
    return {"type": "rgb", "value": list(value)}
