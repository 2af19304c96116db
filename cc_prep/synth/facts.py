"""What truly changed in a rendered scene, as `facts.json` and the samples' JSON say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cc_prep.records import CHANGE, NO_CHANGE, Facts, ObjectAttributes, ObjectChange
from cc_prep.synth.scenes import FIELD_OF_VIEW, TARGET, Scene, Solid, height

DIGITS = 4  # of a place: a tenth of a pixel at 1,000 px


def of_scene(
    scene: Scene, reversed_captions: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Facts]:
    """The facts of a scene's two pairs by kind.

    Args:
        reversed_captions: Of (after, before) and of (distractor, before), by kind.
    """
    before, after, distractor = (
        [_attributes(solid, moment.camera) for solid in solids]
        for solids, moment in zip(
            (scene.before, scene.after, scene.before), scene.moments, strict=True
        )
    )
    captions = {kind: tuple(listed) for kind, listed in (reversed_captions or {}).items()}
    changes = [
        ObjectChange(one.change, before[one.changed], after[one.changed]) for one in scene.each()
    ]
    return {
        CHANGE: Facts.of_changes(
            changes, _present(before), _present(after), captions.get(CHANGE, ())
        ),
        NO_CHANGE: Facts.of_changes(
            [], _present(before), _present(distractor), captions.get(NO_CHANGE, ())
        ),
    }


def location(point: Sequence[float], camera: Sequence[float]) -> tuple[float, float]:
    """The position in the image of a point of the scene; the camera looks at TARGET.

    (u, v): 0 to 1 from left to right and from top to bottom of the square image; outside of that
    for a point beside it.
    """
    forward = np.subtract(TARGET, camera)
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right = right / np.linalg.norm(right)
    up = np.cross(right, forward)
    ray = np.subtract(point, camera)
    reach = 2 * np.tan(np.radians(FIELD_OF_VIEW) / 2) * (ray @ forward)
    u, v = 0.5 + ray @ right / reach, 0.5 - ray @ up / reach
    return round(float(u), DIGITS), round(float(v), DIGITS)


def _present(attributes: Sequence[ObjectAttributes | None]) -> tuple[ObjectAttributes, ...]:
    return tuple(one for one in attributes if one is not None)


def _attributes(solid: Solid | None, camera: Sequence[float]) -> ObjectAttributes | None:
    if solid is None:
        return None
    centre = (solid.x, solid.y, height(solid) / 2)
    words = solid.color, solid.shape, solid.material, solid.size
    return attributes(*words, location(centre, camera))


def attributes(
    color: str, shape: str, material: str, size: str, location: tuple[float, float]
) -> ObjectAttributes:
    """The attributes of a solid."""
    words = {"color": color, "shape": shape, "material": material, "size": size}
    return ObjectAttributes(words, location)
