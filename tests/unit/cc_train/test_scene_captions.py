"""Captions of large scenes: the polygons, and a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from cc_prep.errors import UserError
from cc_prep.media import images
from cc_prep.media.scenes import Scene
from cc_prep.progress import no_progress
from cc_train import Captioner, scene_captions
from tests.commands import cc_train
from tests.conftest import ROOT

EXAMPLES = ROOT / "cc_train/serve/examples"
CHANGED = 3  # of the six tiles of a scene of 3 × 2
SIDE = 112
WEST, NORTH = 600_000, 5_200_000


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained("captioner-mini", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GeoTIFFs of six rendered scenes, of which one changed, and the same as plain PNGs."""
    folder = tmp_path_factory.mktemp("scene")
    scenes = {
        side: [images.read(str(EXAMPLES / f"scene{n}_{side}.jpg")) for n in (1, 2, 3)]
        for side in ("before", "after")
    }
    for side in scenes:
        tiles = [*scenes["before"], *scenes["before"][::-1]]
        tiles[CHANGED] = scenes[side][2]
        rows = [np.concatenate(tiles[i : i + 3], axis=1) for i in (0, 3)]
        pixels = np.concatenate(rows)
        pixels[0, 0] = (1, 2, 3) if side == "after" else (3, 2, 1)  # so that no tile is skipped
        (folder / f"{side}.png").write_bytes(images.encode_image(pixels, "png", 0))
        with rasterio.open(
            folder / f"{side}.tif", "w", driver="GTiff", height=2 * SIDE, width=3 * SIDE, count=3,
            dtype="uint8", crs="EPSG:32632", transform=from_origin(WEST, NORTH, 1, 1),
        ) as raster:  # fmt: skip
            raster.write(np.moveaxis(pixels, -1, 0))
    return folder


def written(captioner: Captioner, folder: Path, out: Path, **options: Any) -> tuple[int, int]:
    scene = Scene(str(folder / "before.tif"), str(folder / "after.tif"))
    given = {"side": SIDE, "overlap": 0, "beams": 1, "progress": no_progress, **options}
    return scene_captions.write_geojson(
        captioner, scene, str(out), row=lambda one: {"caption": one.text}, **given
    )


def test_a_changed_tile_is_a_polygon_of_the_raster(
    captioner: Captioner, folder: Path, tmp_path: Path
) -> None:
    """Keeps away: polygons in px, or of another tile, and captions of tiles that did not change."""
    assert written(captioner, folder, tmp_path / "o.geojson") == (1, 6)
    document = json.loads((tmp_path / "o.geojson").read_text())
    assert document["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32632"
    [feature] = document["features"]
    assert feature["properties"]["box"] == [0, 112, 112, 224]
    expected = captioner(EXAMPLES / "scene3_before.jpg", EXAMPLES / "scene3_after.jpg")
    assert feature["properties"]["caption"] == expected.text
    [[ring]] = feature["geometry"]["coordinates"]
    assert {tuple(point) for point in ring} == {
        (x, y) for x in (WEST, WEST + 112) for y in (NORTH - 112, NORTH - 224)
    }
    assert list(tmp_path.iterdir()) == [tmp_path / "o.geojson"]


def test_a_run_that_was_ended_goes_on(
    captioner: Captioner, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: hours of captions that are made again, or twice in the file."""
    monkeypatch.setattr(scene_captions, "BATCH", 2)
    written(captioner, folder, tmp_path / "whole.geojson")

    def end(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    out = tmp_path / "o.geojson"
    with pytest.raises(KeyboardInterrupt):
        written(captioner, folder, out, progress=end)
    part = tmp_path / "o.geojson.part"
    part.write_text(part.read_text() + '{"done": 6, "feat')
    assert not out.exists()
    with pytest.raises(UserError, match="left by another call"):
        written(captioner, folder, out, overlap=16)

    def killed(*_: object) -> None:
        assert '"done": 4' in part.read_text(), "what a kill would leave of the earlier run"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scene_captions, "captions_of", killed)
        with pytest.raises(KeyboardInterrupt):
            written(captioner, folder, out)
    seen: list[int] = []
    written(captioner, folder, out, progress=lambda done, total: seen.append(done))
    assert seen == [4, 6]
    assert out.read_text() == (tmp_path / "whole.geojson").read_text()


def test_the_command(folder: Path, tmp_path: Path) -> None:
    """Keeps away: plain images that need a georeference; options that are taken for nothing."""
    pair = [str(folder / f"{side}.png") for side in ("before", "after")]
    done = cc_train("caption", *pair, "--tile", "112", "--overlap", "0", "--json")
    [row] = map(json.loads, done.stdout.splitlines())
    assert row["box"] == [0, 112, 112, 224]
    assert row["confidence"] > 0.5
    for options, message in (
        (["--tile", "112", "--geojson", str(tmp_path / "o")], "has no reference system"),
        (["--tile", "112", "--overlap", "57"], "at most half of the tile"),
        (["--geojson", str(tmp_path / "o")], "without --tile"),
        (["--tile", "112", "--mask", "m.png"], "are of one image"),
    ):
        done = cc_train("caption", *pair, *options)
        assert done.returncode == 2
        assert message in done.stderr
    assert not list(tmp_path.iterdir())
