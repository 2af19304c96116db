"""Scenes: tiles of two rasters on one grid, by windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import Resampling
from rasterio.transform import from_origin
from rasterio.warp import calculate_default_transform, reproject

from cc_prep.errors import RejectedPair
from cc_prep.manifest import ImageValues
from cc_prep.media import images, masks, scenes
from cc_prep.media.scenes import Scene, Tile

UTM, WEB = "EPSG:32632", "EPSG:3857"
GRID = from_origin(600_000, 5_200_000, 10, 10)


def write(path: Path, values: np.ndarray, crs: Any = UTM, grid: Any = GRID, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width, count = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=values.dtype,
        crs=crs, transform=grid, **options,
    ) as raster:  # fmt: skip
        raster.write(np.moveaxis(values, -1, 0))
    return str(path)


def smooth(seed: int, height: int = 160, width: int = 200) -> np.ndarray:
    """Uint16 [H, W, 3] without fine grain, which a reprojection would blur."""
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(seed)
    waves = [np.sin(x / rng.uniform(9, 20) + y / rng.uniform(9, 20) + seed) for _ in range(3)]
    return (2000 + 900 * np.stack(waves, axis=-1)).astype(np.uint16)


def in_web_mercator(path: Path, values: np.ndarray) -> str:
    height, width, count = values.shape
    bounds = rasterio.transform.array_bounds(height, width, GRID)
    grid, columns, rows = calculate_default_transform(UTM, WEB, width, height, *bounds)
    seen = np.zeros((count, rows, columns), values.dtype)
    reproject(
        np.moveaxis(values, -1, 0), seen, src_transform=GRID, src_crs=UTM, dst_transform=grid,
        dst_crs=WEB, resampling=Resampling.cubic, src_nodata=0, dst_nodata=0,
    )  # fmt: skip
    return write(path, np.moveaxis(seen, 0, -1), WEB, grid, nodata=0)


@pytest.mark.parametrize(
    ("length", "starts"), [(256, [0]), (300, [0, 44]), (480, [0, 224]), (100, [0])]
)
def test_tiles_cover_a_scene(length: int, starts: list[int]) -> None:
    """Keeps away: a strip at the edge that nobody looks at, and tiles of other sizes."""
    found = scenes.tiles(length, 256, 256, 32)
    assert [tile.x for tile in found] == starts
    assert found[-1].box[2] == length
    assert {tile.width for tile in found} == {min(length, 256)}


def test_a_raster_of_another_projection_is_put_on_the_grid(tmp_path: Path) -> None:
    """Keeps away: a change of everything, by half a pixel or by a turned image."""
    values = smooth(1)
    before, after = values, values.copy()
    after[100:120, 50:70] = (3400, 900, 900)
    paths = write(tmp_path / "a.tif", before), in_web_mercator(tmp_path / "b.tif", after)
    scene = Scene(*paths, ImageValues(scale=(1000.0, 3500.0)))
    assert not scene.is_aligned
    both = scene.read(Tile(20, 80, 64, 64))
    assert both is not None
    differs = np.abs(both[0].astype(int) - both[1]).max(axis=2)
    rows, columns = np.nonzero(differs > 40)
    found = np.array([rows.min(), rows.max(), columns.min(), columns.max()])
    assert np.abs(found - [20, 39, 30, 49]).max() <= 1
    assert np.median(differs) <= 2


def test_a_tile_is_the_window_of_the_whole(tmp_path: Path) -> None:
    """Keeps away: tiles whose black and white are their own, so that they do not go together."""
    before, after = smooth(1), smooth(2)
    paths = write(tmp_path / "a.tif", before, tiled=True, blockxsize=64, blockysize=64)
    other = write(tmp_path / "b.tif", after, interleave="band")
    for values in (ImageValues(bands=(3, 2, 1), scale="percentile"), ImageValues(scale="per_band")):
        whole = images.read_together([paths, other], None, values)
        scene = Scene(paths, other, values)
        assert scene.is_aligned
        for tile in scenes.tiles(200, 160, 96, 16):
            both = scene.read(tile)
            assert both is not None
            x0, y0, x1, y1 = tile.box
            assert all(
                np.array_equal(part, one[y0:y1, x0:x1])
                for part, one in zip(both, whole, strict=True)
            )
    with pytest.raises(RejectedPair, match="--scale"):
        Scene(paths, other)


def test_places_without_data_in_one_raster_are_black_in_both(tmp_path: Path) -> None:
    """Keeps away: a change along the edge of one of the two rasters."""
    before, after = smooth(1), smooth(1)
    after[:, :120] = 0
    values = ImageValues(scale=(1000.0, 3500.0))
    paths = write(tmp_path / "a.tif", before), write(tmp_path / "b.tif", after, nodata=0)
    scene = Scene(*paths, values)
    both = scene.read(Tile(96, 0, 64, 64))
    assert both is not None
    assert np.array_equal(*both)
    assert not both[0][:, :24].any()
    assert both[0][:, 24:].any()
    assert scene.read(Tile(0, 0, 64, 64)) is None


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32"])
@pytest.mark.parametrize("nodata", [None, 0])
def test_a_reprojected_raster_ends_where_it_ends(
    tmp_path: Path, dtype: str, nodata: int | None
) -> None:
    """Keeps away: black beside a raster after that is smaller, and a change there, by its type."""
    values = (smooth(1) / 16).astype(dtype)
    here = write(tmp_path / "a.tif", values)
    east = from_origin(600_003, 5_200_000, 10, 10)
    part = write(tmp_path / "b.tif", values[:, :100], UTM, east, nodata=nodata)
    scene = Scene(here, part, ImageValues(scale=(60.0, 200.0)))
    both = scene.read(Tile(64, 0, 64, 64))
    assert both is not None
    shown = [image.any(axis=2) for image in both]
    assert np.array_equal(*shown)
    assert shown[0][:, :34].all()
    assert not shown[0][:, 38:].any()
    assert scene.read(Tile(90, 0, 64, 64)) is None


def test_rasters_that_do_not_go_together(tmp_path: Path) -> None:
    """Keeps away: captions of two places, and of rasters of which nobody knows where they lie."""
    values, wide = smooth(1), ImageValues(scale="percentile")
    here = write(tmp_path / "a.tif", values)
    plain = write(tmp_path / "c.tif", values, None, rasterio.Affine.identity())
    small = write(tmp_path / "d.tif", values[:99], None, rasterio.Affine.identity())
    away = write(tmp_path / "b.tif", values, UTM, from_origin(900_000, 5_200_000, 10, 10))
    bare = write(tmp_path / "e.tif", values[..., :1])
    (tmp_path / "f.tif").write_text("hello")
    for one, other, message in (
        (here, away, "rasters of two places"),
        (here, plain, r"c\.tif: has no reference system, as the other"),
        (plain, small, "200×160 and 200×99 px, without georeference"),
        (here, bare, "bands"),
        (here, str(tmp_path / "f.tif"), r"f\.tif: no GeoTIFF, JPEG 2000, PNG or JPEG"),
        (here, str(tmp_path / "g.tif"), r"^missing image: .*g\.tif"),
    ):
        with pytest.raises(RejectedPair, match=message):
            Scene(one, other, wide)


def test_references_to_tiles(tmp_path: Path) -> None:
    """Keeps away: a job that sees other pixels than `cc-train caption --tile`; masks elsewhere."""
    before, after = smooth(1), smooth(2)
    mask = np.zeros((160, 200, 1), np.uint8)
    mask[40:60, 70:90] = 255
    write(tmp_path / "before/x.tif", before)
    in_web_mercator(tmp_path / "after/x.tif", after)
    write(tmp_path / "masks/x.tif", mask)
    values, tile = ImageValues(scale="percentile"), Tile(64, 32, 96, 96)
    scene = Scene(str(tmp_path / "before/x.tif"), str(tmp_path / "after/x.tif"), values)
    both = scene.read(tile)
    assert both is not None
    names = [tile.of(str(tmp_path / side / "x.tif")) for side in ("before", "after")]
    read = images.read_together(names, None, values)
    assert all(np.array_equal(one, other) for one, other in zip(both, read, strict=True))
    assert np.array_equal(
        masks.read(tile.of(str(tmp_path / "masks/x.tif"))), mask[32:128, 64:160, 0] > 0
    )
    for wrong in ("1,2,3", "a,b,c,d"):
        with pytest.raises(RejectedPair, match="is no column, row, width and height"):
            images.read(f"{tmp_path}/before/x.tif{scenes.TILE}{wrong}")


def test_polygons_lie_where_the_pixels_do(tmp_path: Path) -> None:
    """Keeps away: a polygon of the tile's corner of the scene, and rows that count upwards."""
    scene = Scene(*[write(tmp_path / "a.tif", smooth(1))] * 2, ImageValues(scale="percentile"))
    tile = Tile(100, 50, 64, 64)
    mask = np.zeros((64, 64), bool)
    mask[10:20, 30:34] = True
    [[ring]] = scene.grid.polygons(tile, mask)
    left, top = 600_000 + 10 * 130, 5_200_000 - 10 * 60
    assert {tuple(point) for point in ring} == {
        (x, y) for x in (left, left + 40) for y in (top, top - 100)
    }
    [[whole]] = scene.grid.polygons(tile, None)
    assert len(whole) == 5
    place = scene.grid.georeference(tile)
    assert place == {"crs": UTM, "transform": [10, 0, 601_000, 0, -10, 5_199_500]}
