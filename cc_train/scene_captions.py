"""Captions of the tiles of a large scene, and the file of polygons that a GIS opens.

A scene of 20,000 × 20,000 px has 8,100 tiles of 256 px. They are read, captioned and forgotten a
batch at a time; what is found is noted beside the output, so that a run that was ended goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep import storage, strict_json
from cc_prep.datasets.no_change_sentences import says_nothing_changed
from cc_prep.errors import RejectedPair, UserError
from cc_prep.media.masks import fitted
from cc_prep.media.scenes import Scene, Tile, tiles
from cc_prep.progress import Progress
from cc_train.captioner import Caption
from cc_train.pretrained import Captioner

BATCH = 32
PART = ".part"  # behind the name of the output: what is found so far
WORLD = "OGC:CRS84"  # of a GeoJSON that names no other system


@dataclass(frozen=True)
class TileCaption:
    """What changed in a tile of a scene.

    Attributes:
        mask: Where, class ids uint8 [H, W] of the tile; None for captioners that do not say it.
        polygons: The places of the mask, or else the tile, as a MultiPolygon of GeoJSON; in the
            coordinates of the rasters, or for plain images in px.
    """

    tile: Tile
    caption: Caption
    mask: np.ndarray | None
    polygons: list[list[list[list[float]]]]


def captions_of(
    captioner: Captioner, scene: Scene, parts: list[Tile], beams: int = 1
) -> Iterator[list[TileCaption]]:
    """For each BATCH of tiles those where something changed.

    Tiles that are the same to the bit, or of which too little has data, are not captioned.

    Raises:
        UserError: For a raster that is damaged.
    """
    for first in range(0, len(parts), BATCH):
        pairs, captioned = [], []
        for tile in parts[first : first + BATCH]:
            try:
                both = scene.read(tile)
            except RejectedPair as error:
                raise UserError(error.detail, error.remedy) from None
            if both is not None and not np.array_equal(*both):
                pairs.append(both)
                captioned.append(tile)
        captions = captioner(pairs, beams=beams, batch_size=BATCH) if pairs else []
        yield [
            _placed(scene, tile, caption)
            for tile, caption in zip(captioned, captions, strict=True)
            if not says_nothing_changed(caption.text)
        ]


def _placed(scene: Scene, tile: Tile, caption: Caption) -> TileCaption:
    mask = None if caption.mask is None else fitted(caption.mask, tile.height, tile.width)
    place = mask > 0 if mask is not None and mask.any() else None
    return TileCaption(tile, caption, mask, scene.grid.polygons(tile, place))


def write_geojson(
    captioner: Captioner,
    scene: Scene,
    out: str,
    *,
    side: int,
    overlap: int,
    beams: int,
    row: Callable[[Caption], dict[str, Any]],
    progress: Progress,
) -> tuple[int, int]:
    """Writes a polygon for each tile where something changed; how many these are, of how many.

    A run that was ended goes on where it was.

    Args:
        out: The file, of this machine. Until it is whole, `out` + PART holds what is found.
        row: What is said of a caption.
        progress: Is told how many tiles are done.

    Raises:
        UserError: For plain images, which lie nowhere, and where another call left its PART.
    """
    if scene.grid.crs is None:
        raise UserError(
            f"{scene.paths[0]}: has no reference system", "Leave --geojson out, and give --json"
        )
    parts = tiles(scene.grid.width, scene.grid.height, side, overlap)
    journal = Path(out + PART)
    call = {
        "files": [[os.path.abspath(path), *_stat(path)] for path in scene.paths],
        "captioner": [str(captioner.folder), *map(_stat, sorted(captioner.folder.glob("*")))],
        "options": [side, overlap, beams, scene.values.model_dump(mode="json")],
    }
    done, features = _resumed(journal, call)
    progress(done, len(parts))
    # As one, so that a run that is killed before its first batch keeps what earlier ones did.
    begun = f"{json.dumps(call)}\n{_entry(done, features)}"
    storage.write_bytes(str(journal), begun.encode())
    with journal.open("a", encoding="utf-8") as file:
        for found in captions_of(captioner, scene, parts[done:], beams):
            done = min(done + BATCH, len(parts))
            new = [_feature(scene, one, row) for one in found]
            features += new
            file.write(_entry(done, new))
            file.flush()
            progress(done, len(parts))
    document = {"type": "FeatureCollection", **_crs(scene), "features": features}
    storage.write_bytes(out, json.dumps(document, ensure_ascii=False).encode())
    journal.unlink()
    return len(features), len(parts)


def _entry(done: int, features: list[dict[str, Any]]) -> str:
    """A line of the journal: how many tiles are done, and what was found since the last line."""
    return json.dumps({"done": done, "features": features}, ensure_ascii=False) + "\n"


def _resumed(journal: Path, call: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """How many tiles an earlier run of the same call did, and what it found. Raises UserError."""
    done, features = 0, list[dict[str, Any]]()
    if not journal.exists():
        return done, features
    first, *lines = journal.read_text("utf-8").split("\n")
    if not first:
        return done, features
    try:
        is_same = strict_json.loads(first) == json.loads(json.dumps(call))
    except ValueError:
        is_same = False
    if not is_same:
        raise UserError(f"{journal}: left by another call", "Delete it, or give another file")
    for line in lines:
        try:
            entry = strict_json.loads(line)
        except ValueError:  # the last line of a run that was killed
            break
        done, features = entry["done"], features + entry["features"]
    return done, features


def _feature(
    scene: Scene, one: TileCaption, row: Callable[[Caption], dict[str, Any]]
) -> dict[str, Any]:
    polygons = one.polygons
    if scene.grid.crs.to_authority() is None:
        polygons = [[_in_the_world(scene, ring) for ring in polygon] for polygon in polygons]
    return {
        "type": "Feature",
        "geometry": {"type": "MultiPolygon", "coordinates": polygons},
        "properties": {**row(one.caption), "box": list(one.tile.box)},
    }


def _crs(scene: Scene) -> dict[str, Any]:
    """The member that names the reference system; GIS programs read it, though RFC 7946 dropped it.

    Of a system without a number the polygons are in longitude and latitude, and need none.
    """
    known = scene.grid.crs.to_authority()
    if known is None:
        return {}
    name = f"urn:ogc:def:crs:{known[0]}::{known[1]}"
    return {"crs": {"type": "name", "properties": {"name": name}}}


def _in_the_world(scene: Scene, ring: list[list[float]]) -> list[list[float]]:
    from rasterio.warp import transform

    x, y = zip(*ring, strict=True)
    return [list(point) for point in zip(*transform(scene.grid.crs, WORLD, x, y), strict=True)]


def _stat(path: str | Path) -> list[Any]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]
