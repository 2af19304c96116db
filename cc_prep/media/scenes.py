"""Two rasters of one place, however large, on one grid: the same window of both as RGB.

The grid is that of the raster before; the raster after is reprojected to it where its own differs
(rasterio's WarpedVRT, bilinear). Only windows are read, and black and white are those of the whole
scene, so that its tiles go together. A reference `before/NAME.tif#tile=0,224,256,256` names the
tile of 256 × 256 px whose left upper corner is in column 0 and row 224, of the scene that
`before/NAME.tif` and `after/NAME.tif` are.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from cc_prep import extras, storage
from cc_prep.errors import Reason, RejectedPair, first_line
from cc_prep.manifest import ImageValues
from cc_prep.media import deep, file_kinds
from cc_prep.media.deep import Values

TILE = "#tile="  # between a raster's path and a tile of its scene
TILE_NUMBERS = re.compile(r"(\d{1,9}),(\d{1,9}),(\d{1,5}),(\d{1,5})")
SIDES = (("before", "after"), ("A", "B"))  # folders of the two rasters of a scene
ENDINGS = (".tif", ".tiff", ".jp2", ".png", ".jpg", ".jpeg")  # of rasters
# Of GDAL, by how files begin: no driver that opens other files, or addresses.
DRIVERS = {
    **dict.fromkeys(file_kinds.TIFFS, "GTiff"),
    b"\0\0\0\x0cjP  ": "JP2OpenJPEG",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
}
CACHE_MB = 256  # of GDAL's blocks
SAMPLE_SIDE = 1024  # px of the picture of a raster of which black and white are taken
MIN_DATA = 0.5  # of a tile that must have data in both rasters


@dataclass(frozen=True)
class Tile:
    """A part of a scene: the column and row of its left upper corner, and its size in px."""

    x: int
    y: int
    width: int
    height: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom in px; right and bottom are outside."""
        return self.x, self.y, self.x + self.width, self.y + self.height

    def of(self, path: str) -> str:
        """The reference to this tile of a raster."""
        return f"{path}{TILE}{self.x},{self.y},{self.width},{self.height}"


def tiles(width: int, height: int, side: int, overlap: int) -> list[Tile]:
    """Squares that cover a scene, row by row; the last ones lie at its edge and overlap more."""

    def starts(length: int) -> list[int]:
        last = max(0, length - side)
        return [*range(0, last, side - overlap), last]

    width_of, height_of = min(side, width), min(side, height)
    return [Tile(x, y, width_of, height_of) for y in starts(height) for x in starts(width)]


@dataclass(frozen=True)
class Grid:
    """The pixels of a raster on the earth.

    Attributes:
        crs: rasterio's reference system; None for a plain image.
        transform: From column and row to its coordinates; the identity for a plain image.
    """

    width: int
    height: int
    crs: Any
    transform: Any

    @classmethod
    def of(cls, raster: Any) -> Grid:
        """That of an open raster."""
        return cls(raster.width, raster.height, raster.crs, raster.transform)

    def georeference(self, tile: Tile) -> dict[str, Any] | None:
        """The reference system of a tile and its transform; None for a plain image.

        `transform` is [a, b, c, d, e, f]: the place of column u and row v is x = a·u + b·v + c and
        y = d·u + e·v + f.
        """
        if self.crs is None:
            return None
        return {"crs": self.crs.to_string(), "transform": [*map(float, self._of(tile)[:6])]}

    def polygons(self, tile: Tile, mask: np.ndarray | None) -> list[list[list[list[float]]]]:
        """Polygons of a mask, or of the whole tile, as a MultiPolygon of GeoJSON has them.

        They are in the coordinates of the raster, for a plain image in px.

        Args:
            mask: Bool [H, W] of the tile; None takes all of it.
        """
        from rasterio import features

        shown = np.ones((tile.height, tile.width), bool) if mask is None else mask
        shapes = features.shapes(shown.astype(np.uint8), mask=shown, transform=self._of(tile))
        return [
            [[[float(x), float(y)] for x, y in ring] for ring in shape["coordinates"]]
            for shape, _ in shapes
        ]

    def _of(self, tile: Tile) -> Any:
        return self.transform * self.transform.translation(tile.x, tile.y)


class Scene:
    """Two rasters on the grid of the first.

    Args:
        before, after: Files of this machine.
        values: Which bands are read, and what is black and white.

    Raises:
        RejectedPair: For what is no raster, for rasters without the bands, that do not share a
            place, or of values that would be one grey.
    """

    def __init__(self, before: str, after: str, values: ImageValues = deep.AS_STORED) -> None:
        self.paths, self.values = (before, after), values
        self._lock = threading.Lock()
        self._last: tuple[Tile, tuple[np.ndarray, np.ndarray] | None] | None = None
        with _gdal():
            stored = [_opened(path) for path in self.paths]
            self.grid = Grid.of(stored[0])
            self.is_aligned = _same_grid(*stored)
            warped = stored[1] if self.is_aligned else _warped(stored[1], stored[0])
            self._rasters = [stored[0], warped]
            self._bands = [_bands(raster, values) for raster in stored]
            samples = [_sample(*one) for one in zip(stored, self._bands, strict=True)]
            self._limits = deep.limits(samples, values)

    def read(self, tile: Tile) -> tuple[np.ndarray, np.ndarray] | None:
        """Both images of a tile, uint8 [H, W, 3] RGB, black where one of them has no data.

        None where less than MIN_DATA of it has data in both.
        """
        with self._lock, _gdal():  # a raster of GDAL is for one thread at a time
            if self._last is None or self._last[0] != tile:
                self._last = (tile, self._read(tile))
            return self._last[1]

    def _read(self, tile: Tile) -> tuple[np.ndarray, np.ndarray] | None:
        sides = [self._side(number, tile) for number in (0, 1)]
        has_data = sides[0][1] & sides[1][1]
        if has_data.mean() < MIN_DATA:
            return None
        before, after = (np.where(has_data[..., None], rgb, np.uint8(0)) for rgb, _ in sides)
        return before, after

    def _side(self, number: int, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """A tile of a raster as uint8 [H, W, 3] RGB, and where it has data, bool [H, W]."""
        raster, window = self._rasters[number], _window(tile)
        try:
            stored = raster.read(self._bands[number], window=window)
            has_data = _has_data(raster, stored, window)
        except Exception as error:  # of a damaged file
            raise _rejected(f"{self.paths[number]}: {first_line(error)}") from None
        values = Values(np.moveaxis(stored, 0, -1), self.paths[number])
        return deep.to_rgb(values, self._limits), has_data


def _has_data(raster: Any, stored: np.ndarray, window: Any) -> np.ndarray:
    """Where a raster has data in a window, bool [H, W]; stored: its values there, [bands, H, W]."""
    from rasterio.enums import ColorInterp
    from rasterio.vrt import WarpedVRT

    if not isinstance(raster, WarpedVRT):
        return np.asarray(raster.dataset_mask(window=window) == 255)
    # Its mask is made of the whole raster at each call.
    if ColorInterp.alpha in raster.colorinterp:
        alpha = raster.read(raster.colorinterp.index(ColorInterp.alpha) + 1, window=window)
        return np.asarray(alpha == np.iinfo(alpha.dtype).max)
    nodata = raster.nodata
    is_there = ~np.isnan(stored) if np.isnan(nodata) else stored != nodata
    return np.asarray(is_there.any(axis=0))


def _gdal() -> Any:
    """A block in which GDAL keeps no more than CACHE_MB of blocks. Raises RejectedPair."""
    if find_spec("rasterio") is None:
        raise _rejected("rasters are read by windows by rasterio", extras.install("geo"))
    import rasterio

    return rasterio.Env(GDAL_CACHEMAX=CACHE_MB)


def grid_of(path: str) -> Grid:
    """The grid of a raster. Raises RejectedPair."""
    with _gdal(), _opened(path) as raster:
        return Grid.of(raster)


def _opened(path: str) -> Any:
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    if storage.is_remote(path):
        raise _rejected(f"{path}: scenes are read by windows", "Copy it to this machine")
    if not os.path.exists(path):
        raise RejectedPair(Reason.MISSING_IMAGE, path)
    try:
        with open(path, "rb") as file:
            head = file.read(8)
        driver = next((name for start, name in DRIVERS.items() if head.startswith(start)), None)
        if driver is None:
            raise _rejected(f"{path}: no GeoTIFF, JPEG 2000, PNG or JPEG")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            return rasterio.open(path, driver=driver)
    except (OSError, RasterioError) as error:
        raise _rejected(f"{path}: {first_line(error)}") from None


def _same_grid(one: Any, other: Any) -> bool:
    """Whether rasters have the same pixels. Raises RejectedPair where that cannot be said."""
    if one.crs is None and other.crs is None:
        if one.shape != other.shape:
            sizes = " and ".join(f"{raster.width}×{raster.height}" for raster in (one, other))
            what = f"{one.name} and {other.name}: {sizes} px, without georeference"
            raise _rejected(what, "Give images of one size, or georeferenced rasters")
        return True
    if one.crs is None or other.crs is None:
        bare = one if one.crs is None else other
        raise _rejected(f"{bare.name}: has no reference system, as the other raster has")
    is_same = one.transform.almost_equals(other.transform, 1e-9 * abs(one.transform.a))
    return bool(one.crs == other.crs and is_same and one.shape == other.shape)


def _warped(raster: Any, grid: Any, resampling: Any = None) -> Any:
    """A raster as seen on the grid of another. Raises RejectedPair where they share no place."""
    from rasterio.enums import ColorInterp, Resampling
    from rasterio.vrt import WarpedVRT
    from rasterio.warp import transform_bounds

    left, bottom, right, top = transform_bounds(raster.crs, grid.crs, *raster.bounds)
    there = grid.bounds
    if left >= there.right or right <= there.left or bottom >= there.top or top <= there.bottom:
        raise _rejected(f"{grid.name} and {raster.name}: rasters of two places")
    nodata, has_alpha = raster.nodata, ColorInterp.alpha in raster.colorinterp
    if nodata is None and not has_alpha and np.dtype(raster.dtypes[0]).kind == "f":
        nodata = np.nan
    return WarpedVRT(
        raster,
        crs=grid.crs,
        transform=grid.transform,
        width=grid.width,
        height=grid.height,
        resampling=Resampling.bilinear if resampling is None else resampling,
        nodata=nodata,
        add_alpha=nodata is None and not has_alpha,
        warp_mem_limit=64,
    )


def _bands(raster: Any, values: ImageValues) -> list[int]:
    """Numbers of the bands that become grey or RGB. Raises RejectedPair."""
    from rasterio.enums import ColorInterp

    if ColorInterp.palette in raster.colorinterp:
        raise _rejected(f"{raster.name}: has a palette", "Save it as RGB")
    colours = sum(kind != ColorInterp.alpha for kind in raster.colorinterp)
    rgb = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
    if colours == 4 and raster.colorinterp[:3] == rgb:
        colours = 3  # as a TIFF of RGB and one more sample is read, see `deep`
    every = Values(np.empty((1, 1, colours)), raster.name)
    deep.choose(every, values)
    return list(values.bands or range(1, colours + 1))


def _sample(raster: Any, bands: list[int]) -> Values:
    """A small picture of a raster, of whose values black and white are taken."""
    step = max(1, -(-max(raster.shape) // SAMPLE_SIDE))
    shape = (len(bands), max(1, raster.height // step), max(1, raster.width // step))
    nodata, dtype = raster.nodata, np.dtype(raster.dtypes[bands[0] - 1])
    bits = raster.tags(bands[0], ns="IMAGE_STRUCTURE").get("NBITS")
    white = deep.white_of(dtype, None if bits is None else int(bits))
    stored = raster.read(bands, out_shape=shape)
    return Values(np.moveaxis(stored, 0, -1), raster.name, white, nodata)


def _window(tile: Tile) -> Any:
    from rasterio.windows import Window

    return Window(tile.x, tile.y, tile.width, tile.height)


def _rejected(detail: str, remedy: str = "") -> RejectedPair:
    return RejectedPair(Reason.UNREADABLE_IMAGE, detail, remedy)


def is_tile(reference: str) -> bool:
    """Whether a reference names a tile of a scene, and no file that is called so itself."""
    return TILE in reference and not storage.exists(reference)


def read_tile(reference: str, values: ImageValues) -> np.ndarray:
    """The tile of one raster that a reference names, uint8 [H, W, 3] RGB.

    Raises:
        RejectedPair: As `Scene` does, and for a tile of which less than MIN_DATA has data.
    """
    path, tile = _parts(reference)
    before, after = _scene_of(path)
    both = _open_scene(before, after, values).read(tile)
    if both is None:
        raise _rejected(f"{reference}: too little of it has data")
    return both[path == after]


def read_mask_tile(reference: str) -> np.ndarray:
    """The tile of a raster of class numbers that a reference names, [H, W], by nearest neighbour.

    Raises:
        RejectedPair: For a raster that is none, or lies elsewhere than its scene.
    """
    from rasterio.enums import Resampling

    path, tile = _parts(reference)
    with _gdal(), _opened(_scene_of(path)[0]) as grid, _opened(path) as mask:
        if _same_grid(grid, mask):
            return np.asarray(mask.read(1, window=_window(tile)))
        with _warped(mask, grid, Resampling.nearest) as warped:
            return np.asarray(warped.read(1, window=_window(tile)))


def _parts(reference: str) -> tuple[str, Tile]:
    """The path and the tile of a reference. Raises RejectedPair."""
    path, _, numbers = reference.rpartition(TILE)
    match = TILE_NUMBERS.fullmatch(numbers)
    if match is None:
        raise _rejected(f"{reference}: {numbers!r} is no column, row, width and height")
    return path, Tile(*map(int, match.groups()))


def _scene_of(path: str) -> tuple[str, str]:
    """The two rasters of the scene to which a raster in one of its folders belongs."""
    folder, name = os.path.split(path)
    for sides in SIDES:
        before, after = (os.path.join(os.path.dirname(folder), side) for side in sides)
        is_there = os.path.exists(os.path.join(before, name))
        found = name if is_there else _of_other_ending(name, before, after)
        if found is not None:
            return os.path.join(before, found), os.path.join(after, found)
    raise RejectedPair(Reason.MISSING_IMAGE, f"{path}: no raster before of its scene")


def _of_other_ending(name: str, before: str, after: str) -> str | None:
    """The raster in both folders that differs from a mask's name in its ending alone."""
    if not (os.path.isdir(before) and os.path.isdir(after)):
        return None
    for one in sorted({*os.listdir(before)} & {*os.listdir(after)}):
        if os.path.splitext(one)[0] == os.path.splitext(name)[0] and one.lower().endswith(ENDINGS):
            return one
    return None


# A worker reads the tiles of a few scenes in turn, and opening one costs a look at all of it.
_open_scene = lru_cache(maxsize=4)(Scene)
