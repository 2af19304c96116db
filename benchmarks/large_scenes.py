"""Changed tiles of a mosaic of rendered scenes, found by `cc-train caption --tile`.

    cc-prep synth out/fresh --scenes 200 --seed 994 --size 112
    python benchmarks/large_scenes.py out/fresh

The mosaic has 20 × 10 scenes, 12 of which changed, as two GeoTIFFs in different projections: before
in UTM, after in the equal-area projection of Europe. The other scenes are the same picture in
both (`still`), or one of another camera and other light (`jittered`). The GeoJSON is read back: a
tile is found if one of its polygons says so. With `--peak SIDE` the memory of a pair of SIDE × SIDE
px is measured instead; the rasters are sparse but for their middle, and 0.3 px apart.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import rasterio
from lib.measuring import report
from rasterio.enums import Resampling
from rasterio.transform import from_origin
from rasterio.warp import calculate_default_transform, reproject

from cc_prep.media import images

COLUMNS, ROWS, CHANGED = 20, 10, 12
UTM, EUROPE = "EPSG:32632", "EPSG:3035"
PIXEL = 0.5  # m
ORIGIN = (690_000.0, 5_335_000.0)
CAPTIONERS = ("captioner-mini", "chain-mini")


def mosaic(root: Path, folder: str, others: str, changed: set[int]) -> np.ndarray:
    """Uint8 [H, W, 3] of the scenes: those of `changed` from `folder`, the rest from `others`."""
    names = {"images": "default", "sc_images": "semantic", "nsc_images": "nonsemantic"}

    def scene(number: int) -> np.ndarray:
        of = folder if number in changed else others
        return images.read(str(root / of / f"CLEVR_{names[of]}_{number:06d}.png"))

    rows = [
        np.concatenate([scene(row * COLUMNS + column) for column in range(COLUMNS)], axis=1)
        for row in range(ROWS)
    ]
    return np.concatenate(rows, axis=0)


def write(path: Path, pixels: np.ndarray, crs: str, transform: rasterio.Affine) -> None:
    """A tiled GeoTIFF of uint8 [H, W, bands]; a fourth band is alpha."""
    height, width, count = pixels.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype="uint8", crs=crs,
        transform=transform, tiled=True, compress="deflate", photometric="RGB",
        **({"alpha": "yes"} if count == 4 else {}),
    ) as raster:  # fmt: skip
        raster.write(np.moveaxis(pixels, -1, 0))


def in_europe(path: Path, pixels: np.ndarray, transform: rasterio.Affine) -> None:
    """The same picture in the projection EUROPE."""
    height, width = pixels.shape[:2]
    bounds = rasterio.transform.array_bounds(height, width, transform)
    target, columns, rows = calculate_default_transform(UTM, EUROPE, width, height, *bounds)
    opaque = np.full((height, width, 1), 255, np.uint8)
    stored = np.moveaxis(np.concatenate([pixels, opaque], axis=2), -1, 0)
    seen = np.zeros((4, rows, columns), np.uint8)
    reproject(
        stored, seen, src_transform=transform, src_crs=UTM, dst_transform=target, dst_crs=EUROPE,
        resampling=Resampling.cubic,
    )  # fmt: skip
    write(path, np.moveaxis(seen, 0, -1), EUROPE, target)


def captioned(captioner: str, folder: Path, side: int, overlap: int) -> tuple[dict, float, float]:
    """The GeoJSON of the command, its seconds and the peak of its memory in GB."""
    out = folder / "changes.geojson"
    code = "import sys; from cc_train.cli import main; sys.exit(main())"
    started = time.perf_counter()
    subprocess.run(
        [
            sys.executable, "-c", code, "caption", captioner, str(folder / "before.tif"),
            str(folder / "after.tif"), "--tile", str(side), "--overlap", str(overlap),
            "--geojson", str(out),
        ],
        check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return json.loads(out.read_bytes()), seconds, peak


def figures(found: set[int], changed: set[int]) -> dict[str, float]:
    """Precision and recall of the scenes that were found."""
    right = len(found & changed)
    return {
        "found": len(found),
        "precision": right / max(1, len(found)),
        "recall": right / len(changed),
    }


def peak_of(side: int, folder: Path) -> dict[str, float]:
    """Memory and time for a pair of side × side px, of three bands of 16 bits."""
    rng = np.random.default_rng(0)
    middle = rasterio.windows.Window(side // 2, side // 2, 2048, 2048)
    for name, shift in (("before", 0.0), ("after", 0.3 * PIXEL)):
        grid = from_origin(ORIGIN[0] + shift, ORIGIN[1], PIXEL, PIXEL)
        with rasterio.open(
            folder / f"{name}.tif", "w", driver="GTiff", height=side, width=side, count=3,
            dtype="uint16", crs=UTM, transform=grid, tiled=True, sparse_ok=True, bigtiff="YES",
        ) as raster:  # fmt: skip
            raster.write(rng.integers(0, 60000, (3, 2048, 2048), np.uint16), window=middle)
    document, seconds, peak = captioned("captioner-mini", folder, 256, 32)
    return {"tiles found": len(document["features"]), "seconds": seconds, "GB": peak}


@click.command()
@click.argument("root", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--peak", type=int, help="Measure memory with rasters of this side instead.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the rasters in this folder.")
def main(root: Path | None, peak: int | None, keep: Path | None) -> None:
    """Prints precision and recall of the changed tiles of ROOT, which cc-prep synth wrote."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if peak is not None:
            of_peak = peak_of(peak, folder)
            print(f"{peak} × {peak} px: {of_peak['GB']:.2f} GB, {of_peak['seconds']:.0f} s")
            report("large_scenes_peak", {"side": peak, **of_peak})
            return
        assert root is not None, "give the folder that cc-prep synth wrote"
        rng = np.random.default_rng(12)
        changed = set(map(int, rng.choice(COLUMNS * ROWS, CHANGED, replace=False)))
        rows = {}
        print("| unchanged scenes | captioner | found | precision | recall | seconds |")
        print("|---|---|---|---|---|---|")
        for kind, others in (("still", "images"), ("jittered", "nsc_images")):
            before = mosaic(root, "images", "images", changed)
            side = before.shape[0] // ROWS
            transform = from_origin(*ORIGIN, PIXEL, PIXEL)
            write(folder / "before.tif", before, UTM, transform)
            in_europe(folder / "after.tif", mosaic(root, "sc_images", others, changed), transform)
            for captioner in CAPTIONERS:
                document, seconds, _ = captioned(captioner, folder, side, 0)
                boxes = [feature["properties"]["box"] for feature in document["features"]]
                found = {box[1] // side * COLUMNS + box[0] // side for box in boxes}
                row = {**figures(found, changed), "seconds": seconds}
                rows[f"{kind}, {captioner}"] = row
                print(
                    f"| {kind} | {captioner} | {row['found']:.0f} | {row['precision']:.3f} "
                    f"| {row['recall']:.3f} | {seconds:.0f} |",
                    flush=True,
                )
        report("large_scenes", {"changed": CHANGED, "scenes": COLUMNS * ROWS, "rows": rows})


if __name__ == "__main__":
    main()
