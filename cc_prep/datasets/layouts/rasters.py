"""Large scenes, cut into tiles: two rasters of one name in `before` and `after`.

    [split/]before/NAME.tif, [split/]after/NAME.tif    also A and B; other projections too
    [split/]captions/NAME.geojson                      polygons with a property `caption`
    [split/]masks/NAME.tif                             non-zero where something changed

A scene with captions gives the tiles in which at least half of a polygon lies, each with the
captions of these, and where `rasters.unchanged` is a sentence all others too, as pairs without a
change that it describes. A scene without captions gives all tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from cc_prep import extras, storage, strict_json
from cc_prep.datasets.layouts import folders, masks, split_file, table
from cc_prep.datasets.layouts.annotation_files import visible
from cc_prep.errors import RejectedPair, UserError
from cc_prep.manifest import Manifest
from cc_prep.media import scenes
from cc_prep.media.scenes import Grid, Tile
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair

WANTED = (
    "Put the rasters there as before/NAME.tif and after/NAME.tif, or name the folder with --root"
)
LARGE = 2048  # px of a side, from which on a raster is a scene and no image
MIN_SHARE = 0.5  # of a polygon's box that lies in a tile which has its caption
GEOJSON_CRS = "OGC:CRS84"  # of a GeoJSON that names none
FORM = "Give a GeoJSON of polygons, each with a property caption"
SPLITS = ("", "train/", "val/", "test/")


@dataclass(frozen=True)
class Labelled:
    """Sentences about a place: left, top, right and bottom of its box in px of the scene."""

    box: tuple[float, float, float, float]
    captions: tuple[str, ...]


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    listed = (path for prefix in SPLITS for path in _rasters(root, prefix))
    first = next((storage.join(root, before) for before, _, _ in listed), None)
    is_scene = first is not None and _is_large(first)
    if any(name in table.NAMES for name in storage.list_files(root)):
        is_scene = False  # the table says which pairs there are
    there = any(folders.has_sides(root, prefix) for prefix in SPLITS)
    return {"before/": there, "after/": there, f"rasters of {LARGE:,} px or more": is_scene}


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The tiles of a split's scenes, by name and row by row. Raises UserError."""
    return [pair for pair in every_pair(manifest) if pair.split == split]


def every_pair(manifest: Manifest) -> list[ImagePair]:
    """The tiles of all splits. Raises UserError."""
    extras.require("rasterio", "layout: rasters", "geo")
    found = [pair for prefix in _prefixes(manifest) for pair in _of(manifest, prefix)]
    return split_file.with_splits(manifest, masks.with_empty(found))


def faults(manifest: Manifest) -> list[str]:
    """Rasters without their counterpart, captions and masks of no scene, and captions of no place.

    Raises:
        UserError: Where there are no folders of rasters.
    """
    root = manifest.root
    problems: list[str] = []
    for prefix in _prefixes(manifest):
        before, after = _sides(root, prefix)
        of_before, of_after = ({*_names(root, f"{prefix}{side}")} for side in (before, after))
        for side, other, own, others in (
            (before, after, of_before, of_after),
            (after, before, of_after, of_before),
        ):
            problems += [
                f"{prefix}{side}/{name} has no counterpart in {prefix}{other}"
                for name in sorted(own - others)
            ]
        stems = {_stem(name) for name in of_before | of_after}
        for folder in ("captions", *masks.FOLDERS):
            problems += masks.stray_faults(root, f"{prefix}{folder}", stems)
        problems += [
            f"{prefix}captions/{name} is left out: it is no .geojson"
            for name in visible(storage.list_files(storage.join(root, f"{prefix}captions")))
            if not name.endswith(".geojson")
        ]
    return problems


def _of(manifest: Manifest, prefix: str) -> Iterator[ImagePair]:
    split = prefix.rstrip("/") or manifest.splits[0]
    for before, after, name in _rasters(manifest.root, prefix):
        path = storage.join(manifest.root, before)
        try:
            grid = scenes.grid_of(path)
        except RejectedPair as error:
            raise UserError(error.detail, error.remedy) from None
        side, overlap = manifest.rasters.tile, manifest.rasters.overlap
        labelled = _labelled(manifest.root, f"{prefix}captions/{name}.geojson", grid)
        mask_files = [_mask(manifest.root, f"{prefix}{folder}", name) for folder in masks.FOLDERS]
        for tile in scenes.tiles(grid.width, grid.height, side, overlap):
            kind, captions = CHANGE, _captions(labelled or [], tile)
            if labelled is not None and not captions:
                unchanged = manifest.rasters.unchanged
                if unchanged is None or any(_touches(one, tile) for one in labelled):
                    continue
                kind, captions = NO_CHANGE, (unchanged,)
            yield masks.with_masks(
                ImagePair(
                    dataset=manifest.name,
                    split=split,
                    id=f"{name}_{tile.y:06d}_{tile.x:06d}",
                    kind=kind,
                    before=tile.of(before),
                    after=tile.of(after),
                    captions=captions,
                    georeference=grid.georeference(tile),
                ),
                *(
                    None if mask is None or kind == NO_CHANGE else tile.of(mask)
                    for mask in mask_files
                ),
                land_cover=manifest.masks.land_cover,
            )


def _labelled(root: str, file: str, grid: Grid) -> list[Labelled] | None:
    """What a file of captions says; None where there is none. Raises UserError."""
    path = storage.join(root, file)
    if not storage.exists(path):
        return None
    try:
        document = strict_json.loads(storage.read_bytes(path))
        crs = document.get("crs", {}).get("properties", {}).get("name", GEOJSON_CRS)
        return [_label(feature, str(crs), grid) for feature in document["features"]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {type(error).__name__}: {error}", FORM) from None


def _label(feature: dict[str, Any], crs: str, grid: Grid) -> Labelled:
    """A feature of a GeoJSON. Raises IndexError, KeyError, TypeError and ValueError."""
    points = list(_points(feature["geometry"]["coordinates"]))
    if grid.crs is not None:
        from rasterio.warp import transform

        points = [*zip(*transform(crs, grid.crs, *zip(*points, strict=True)), strict=True)]
    columns, rows = zip(*(~grid.transform @ point for point in points), strict=True)
    value = feature["properties"]
    captions = value["captions"] if "captions" in value else [value["caption"]]
    if not captions or not all(isinstance(one, str) and one.strip() for one in captions):
        raise ValueError("a feature without a caption")
    box = (min(columns), min(rows), max(columns), max(rows))
    return Labelled(box, tuple(one.strip() for one in captions))


def _points(coordinates: Any) -> Iterator[tuple[float, float]]:
    """The points of a geometry's coordinates, however deep they are nested."""
    if isinstance(coordinates[0], int | float):
        yield float(coordinates[0]), float(coordinates[1])
        return
    for inner in coordinates:
        yield from _points(inner)


def _captions(labelled: list[Labelled], tile: Tile) -> tuple[str, ...]:
    return tuple(caption for one in labelled if _is_in(one, tile) for caption in one.captions)


def _is_in(one: Labelled, tile: Tile) -> bool:
    """Whether so much of a place lies in a tile that its captions are of the tile."""
    left, top, right, bottom = one.box
    width, height = _common(one, tile)
    return width >= MIN_SHARE * (right - left) and height >= MIN_SHARE * (bottom - top)


def _touches(one: Labelled, tile: Tile) -> bool:
    return min(_common(one, tile)) > 0


def _common(one: Labelled, tile: Tile) -> tuple[float, float]:
    """Width and height in px of what a place and a tile share; negative where they share none."""
    left, top, right, bottom = one.box
    x0, y0, x1, y1 = tile.box
    return min(right, x1) - max(left, x0), min(bottom, y1) - max(top, y0)


def _is_large(path: str) -> bool:
    if find_spec("rasterio") is None or storage.is_remote(path):
        return False
    try:
        grid = scenes.grid_of(path)
    except RejectedPair:
        return False
    return max(grid.width, grid.height) >= LARGE


def _prefixes(manifest: Manifest) -> list[str]:
    """ "" where the scenes lie in the root, else `split/` of each split that has some."""
    root = manifest.root
    if folders.has_sides(root, ""):
        return [""]
    found = [f"{split}/" for split in manifest.splits if folders.has_sides(root, f"{split}/")]
    if not found:
        raise UserError(f"{root}: no folders before and after in it", WANTED)
    return found


def _sides(root: str, prefix: str) -> tuple[str, str]:
    return next(
        sides
        for sides in folders.SIDES
        if all(storage.is_folder(storage.join(root, f"{prefix}{side}")) for side in sides)
    )


def _rasters(root: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Before, after and the name of each scene; a raster that has no counterpart is a fault."""
    if not folders.has_sides(root, prefix):
        return
    before, after = _sides(root, prefix)
    there = {*_names(root, f"{prefix}{after}")}
    for name in _names(root, f"{prefix}{before}"):
        if name in there:
            yield f"{prefix}{before}/{name}", f"{prefix}{after}/{name}", _stem(name)


def _names(root: str, folder: str) -> list[str]:
    listed = visible(storage.list_files(storage.join(root, folder)))
    return sorted(name for name in listed if name.lower().endswith(scenes.ENDINGS))


def _mask(root: str, folder: str, name: str) -> str | None:
    """The raster of masks of a scene; None without one."""
    names = [one for one in _names(root, folder) if _stem(one) == name]
    return f"{folder}/{names[0]}" if names else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]
