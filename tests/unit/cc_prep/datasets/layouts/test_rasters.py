"""The layout `rasters`: scenes cut into tiles, with the captions of places."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from cc_prep import datasets, manifest
from cc_prep.datasets import detect_layout
from cc_prep.datasets.layouts import rasters
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair
from cc_prep.steps.interpolate import Interpolate

UTM, WEST, NORTH, PIXEL = "EPSG:32632", 600_000, 5_200_000, 10
TILE = ["rasters.tile=64", "rasters.overlap=0", "image_size=64", "splits=[train]"]


def write(path: Path, width: int = 192, height: int = 128, seed: int = 0, bands: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(1, 255, (bands, height, width)).astype(np.uint8)
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=bands, dtype="uint8",
        crs=UTM, transform=from_origin(WEST, NORTH, PIXEL, PIXEL),
    ) as raster:  # fmt: skip
        raster.write(pixels)


def feature(x: float, y: float, width: float, height: float, caption: str) -> dict[str, object]:
    """A rectangle whose left upper corner is in column x and row y of the scene."""
    left, top = WEST + PIXEL * x, NORTH - PIXEL * y
    right, bottom = left + PIXEL * width, top - PIXEL * height
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "geometry": geometry, "properties": {"caption": caption}}


def label(root: Path, *features: dict[str, object]) -> None:
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32632"}}
    (root / "captions").mkdir(exist_ok=True)
    document = {"type": "FeatureCollection", "crs": crs, "features": features}
    (root / "captions/x.geojson").write_text(json.dumps(document))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, side in enumerate(("before", "after")):
        write(tmp_path / side / "x.tif", seed=seed)
    return tmp_path


def settings(root: Path, *overrides: str) -> Manifest:
    text = "layout: rasters\nroot: x\nname: r\n"
    return manifest.build(text, "r.yaml", [*TILE, *overrides], str(root))


def test_a_scene_without_captions_gives_all_tiles(root: Path) -> None:
    pairs = datasets.pairs(settings(root), "train")
    assert [pair.id for pair in pairs] == [
        f"x_{y:06d}_{x:06d}" for y in (0, 64) for x in (0, 64, 128)
    ]
    assert pairs[4].before == "before/x.tif#tile=64,64,64,64"
    assert pairs[4].after == "after/x.tif#tile=64,64,64,64"
    place = [PIXEL, 0, WEST + 640, 0, -PIXEL, NORTH - 640]
    assert pairs[4].georeference == {"crs": UTM, "transform": place}
    assert ImagePair.from_json(json.loads(json.dumps(pairs[4].to_json()))) == pairs[4]


def test_captions_of_polygons_go_to_their_tiles(root: Path) -> None:
    """Keeps away: a caption of the tile beside; a tile that is called unchanged with half a house
    in it."""
    label(
        root,
        feature(70, 10, 20, 20, "a house was built"),
        feature(50, 100, 20, 10, "a road was built"),
        feature(75, 20, 5, 5, "a tree was felled"),
    )
    pairs = datasets.pairs(settings(root), "train")
    assert [(pair.id[2:], pair.captions) for pair in pairs] == [
        ("000000_000064", ("a house was built", "a tree was felled")),
        ("000064_000000", ("a road was built",)),
    ]
    pairs = datasets.pairs(settings(root, "rasters.unchanged=nothing changed"), "train")
    kinds = {pair.id[2:]: pair.kind for pair in pairs}
    assert "000064_000064" not in kinds, "a part of the road is in it"
    assert sorted(kinds.values()) == [CHANGE, CHANGE, NO_CHANGE, NO_CHANGE, NO_CHANGE]
    assert {pair.captions for pair in pairs if pair.kind == NO_CHANGE} == {("nothing changed",)}


def test_tiles_become_samples_that_say_where_they_lie(root: Path) -> None:
    """Keeps away: a data set of tiles that no map finds again, and changed tiles that are rejected
    since their mask ends in .tiff where the rasters end in .tif."""
    write(root / "masks/x.tiff", bands=1)
    made = settings(root, "interpolate.method=crossfade", "interpolate.depth=0")
    pairs = datasets.pairs(made, "train")
    step = Interpolate(made, {}, "cpu")
    members = step.encode(pairs, step.compute(pairs, step.read(pairs)))
    meta = json.loads(members[1]["json"])  # type: ignore[index]
    assert meta["georeference"] == pairs[1].georeference
    assert meta["mask_classes"] == ["change"]
    assert meta["height"] == meta["width"] == 64


def test_faults(root: Path) -> None:
    """Keeps away: a scene that is left out without a word."""
    write(root / "after/y.tif")
    write(root / "masks/z.tif", bands=1)
    label(root)
    (root / "captions/y.json").write_text("{}")
    assert rasters.faults(settings(root)) == [
        "after/y.tif has no counterpart in before",
        "masks/z.tif belongs to no pair",
        "captions/y.json is left out: it is no .geojson",
    ]


@pytest.mark.parametrize(
    "features", [[{"geometry": None}], [{**feature(0, 0, 9, 9, " ")}], [feature(0, 0, 9, 9, 3)]]
)
def test_captions_that_are_none(root: Path, features: list[dict[str, object]]) -> None:
    label(root, *features)
    with pytest.raises(UserError, match=r"x\.geojson: .*property caption"):
        datasets.pairs(settings(root), "train")


def test_large_rasters_are_recognised(tmp_path: Path) -> None:
    """Keeps away: images of 20,000 px that become one square of 224 px."""
    for side in ("before", "after"):
        write(tmp_path / side / "x.tif", width=2048, height=32)
    found = detect_layout.recognise("mine", str(tmp_path))
    assert found.settings.layout == "rasters"
    for side in ("before", "after"):
        write(tmp_path / side / "x.tif", width=256, height=256)
    assert detect_layout.recognise("mine", str(tmp_path)).settings.layout == "folders"
