"""Views of 3-D models with nothing around them, rendered by Mitsuba for `tools.photo_sources`."""

from __future__ import annotations

import io
import math
import posixpath
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import mitsuba as mi
import numpy as np
import trimesh
from PIL import Image
from trimesh.resolvers import ZipResolver

mi.set_variant("scalar_rgb")
T = mi.ScalarTransform4f

SIDE = 192  # px, the longer side of a view
SAMPLES = 16  # light paths a pixel
AZIMUTHS = (-35, 30, 205)  # degrees from a model's front
ELEVATION = 17  # degrees
DISTANCE = 3.5  # of the camera, in radii of the model
LAMP = (45, 50)  # degrees beside the camera, and up
# Cosine of the angle between a face and the normal of its corner from which on the edge is sharp. A
# smaller one leaves black what is seen from aside.
CREASE = 0.9
MAX_TRIANGLES = 300_000


class UnusableModel(Exception):
    """A model that is not rendered, and why."""


def read(archive: zipfile.ZipFile, name: str) -> list[trimesh.Trimesh]:
    """The parts of an OBJ file in a zip file, one of each material, which Mitsuba does not read.

    Raises:
        UnusableModel: Where there are none, or too many triangles.
    """
    folder = posixpath.dirname(name)
    beside = {one: archive.open(one) for one in archive.namelist() if one.startswith(f"{folder}/")}
    try:
        scene = trimesh.load_scene(
            io.BytesIO(archive.read(name)),
            file_type="obj",
            resolver=ZipResolver(beside, namespace=folder),
        )
    except Exception as error:  # of a damaged file trimesh raises nearly any type
        raise UnusableModel(f"{name}: {error}") from error
    parts = [one for one in scene.geometry.values() if isinstance(one, trimesh.Trimesh)]
    triangles = sum(len(part.faces) for part in parts)
    if not 0 < triangles <= MAX_TRIANGLES:
        raise UnusableModel(f"{name}: {triangles:,} triangles, at most {MAX_TRIANGLES:,}")
    return parts


def render(
    parts: Sequence[trimesh.Trimesh], size: Sequence[float], rotation: np.ndarray
) -> list[Image.Image]:
    """A view from each of AZIMUTHS, RGBA, its longer side SIDE px long.

    Args:
        size: Width, height and depth that the model is brought to, y up and its front towards z.
        rotation: [3, 3], of the model before that.
    """
    turned = [part.vertices @ rotation.T for part in parts]
    low, high = (of([of(points, 0) for points in turned], 0) for of in (np.min, np.max))
    to_place = np.eye(4)
    to_place[:3, :3] = np.diag(np.asarray(size) / np.maximum(high - low, 1e-9))
    to_place[:3, 3] = -to_place[:3, :3] @ (low + high) / 2
    to_place[:3, :3] = to_place[:3, :3] @ rotation
    placed = [part.copy().apply_transform(to_place) for part in parts]
    shapes = {f"part{number}": _shape(part) for number, part in enumerate(placed)}
    points = np.concatenate([part.vertices for part in placed])
    return [_view(shapes, points, azimuth) for azimuth in AZIMUTHS]


def _view(shapes: Mapping[str, Any], points: np.ndarray, azimuth: float) -> Image.Image:
    radius = float(np.linalg.norm(points, axis=1).max())
    eye = DISTANCE * radius * _towards(azimuth, ELEVATION)
    to_world = T().look_at(origin=eye.tolist(), target=[0, 0, 0], up=[0, 1, 0])
    seen = np.c_[points, np.ones(len(points))] @ np.linalg.inv(np.array(to_world.matrix)).T
    half = 1.03 * np.abs(seen[:, :2] / seen[:, 2:3]).max(0)  # of the picture, one away from the eye
    width, height = np.maximum(np.ceil(SIDE * half / half.max()), 1).astype(int).tolist()
    film = {"type": "hdrfilm", "width": width, "height": height, "pixel_format": "rgba"}
    lamp = 4 * radius * _towards(azimuth + LAMP[0], LAMP[1])
    scene = {
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 3, "hide_emitters": True},
        "sensor": {
            "type": "perspective",
            "fov": 2 * math.degrees(math.atan(half[0])),
            "fov_axis": "x",
            "near_clip": 0.1 * radius,
            "far_clip": 10 * radius,
            "to_world": to_world,
            "film": {**film, "rfilter": {"type": "box"}},
            "sampler": {"type": "multijitter", "sample_count": SAMPLES},
        },
        "sky": {"type": "constant", "radiance": {"type": "rgb", "value": 0.55}},
        "lamp": {
            "type": "sphere",
            "center": lamp.tolist(),
            "radius": 1.2 * radius,
            "emitter": {"type": "area", "radiance": {"type": "rgb", "value": 7.0}},
        },
        **shapes,
    }
    pixels = np.array(mi.render(mi.load_dict(scene)), np.float32)
    alpha = pixels[..., 3:].clip(0, 1)
    linear = (pixels[..., :3] / np.maximum(alpha, 1e-6)).clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return Image.fromarray(np.rint(np.dstack((encoded, alpha)) * 255).astype(np.uint8))


def _towards(azimuth: float, elevation: float) -> np.ndarray:
    around, up = math.radians(azimuth), math.radians(elevation)
    return np.array(
        [math.sin(around) * math.cos(up), math.sin(up), math.cos(around) * math.cos(up)]
    )


def _shape(part: trimesh.Trimesh) -> Any:
    """A mesh of Mitsuba, each triangle with corners of its own: smooth but for sharp edges."""
    whole = part.area_faces > 1e-9 * part.scale**2
    faces, flat = part.faces[whole], part.face_normals[whole][:, None]
    normals = part.vertex_normals[faces]
    smooth = (normals * flat).sum(-1, keepdims=True) > CREASE
    uv = getattr(part.visual, "uv", None)
    properties = mi.Properties()
    properties["bsdf"] = mi.load_dict(_surface(part))
    shape = mi.Mesh(
        "part",
        3 * len(faces),
        len(faces),
        props=properties,
        has_vertex_normals=True,
        has_vertex_texcoords=uv is not None,
    )
    given = mi.traverse(shape)
    given["vertex_positions"] = part.vertices[faces].astype(np.float32).ravel()
    given["vertex_normals"] = np.where(smooth, normals, flat).astype(np.float32).ravel()
    given["faces"] = np.arange(3 * len(faces), dtype=np.uint32)
    if uv is not None:  # Mitsuba's images begin at the top
        turned = np.stack((uv[:, 0], 1 - uv[:, 1]), -1)
        given["vertex_texcoords"] = turned[faces].astype(np.float32).ravel()
    given.update()
    return shape


def _surface(part: trimesh.Trimesh) -> dict[str, Any]:
    """The color or texture, and the opacity, of a part's material (Kd, map_Kd and d)."""
    material = getattr(part.visual, "material", None)
    opacity: Any = float(getattr(material, "kwargs", {}).get("d", [1])[0])
    image = getattr(material, "image", None)
    if image is None:
        srgb = np.asarray(getattr(material, "diffuse", (200, 200, 200)))[:3] / 255
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        color = {"type": "rgb", "value": linear.tolist()}
    else:
        texture = np.asarray(image.convert("RGBA"))
        color = _bitmap(texture[..., :3])
        if texture[..., 3].min() < 255:
            opacity = _bitmap((texture[..., 3:] / 255 * opacity).astype(np.float32))
    surface = {"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": color}}
    return surface if opacity == 1 else {"type": "mask", "opacity": opacity, "bsdf": surface}


def _bitmap(pixels: np.ndarray) -> dict[str, Any]:
    bitmap = mi.Bitmap(np.ascontiguousarray(pixels))
    return {"type": "bitmap", "bitmap": bitmap, "raw": pixels.dtype != np.uint8}
