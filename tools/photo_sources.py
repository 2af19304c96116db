"""Photographs and cut-outs for `cc-prep composites`, from packages of Debian that may be passed on.

    python -m tools.photo_sources out/photos

OUT gets `backgrounds/`, `objects/` with a folder for each class and in it one for each 3-D model,
with its icon and rendered views, and `licences.csv` with the author and the licence of every file.
Only what is in the public domain, CC0 or CC-BY is taken, as the packages' copyright files say it of
each file. It needs apt-get and dpkg-deb; what is there already is not fetched or rendered again.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import re
import shutil
import struct
import subprocess
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from cc_prep import storage
from cc_prep.composites import sources
from cc_prep.errors import RejectedPair
from cc_prep.media import images
from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from tools import model_views

PACKAGES = (
    "gcompris-qt-data",
    "lomiri-wallpapers-16.04",
    "python3-skimage",
    "sweethome3d-furniture",
)
_FREE = r"(?:public[- ]domain|CC0(?:-[0-9.]+)?|CC-BY-[0-9.]+(?:-USA)?)"
FREE = re.compile(rf"{_FREE}(?: (?:and|or) {_FREE})*", re.IGNORECASE)
MIN_SIDE = 224  # px
MIN_MODELS = 3  # of a class
RENDERED = "rendered"  # a file in the folder of a model whose views are all there
WHITE, MAX_WHITE = (
    225,
    0.4,
)  # level, and share of the edge from which on a thing is in front of white
# Those of GCompris that show photographs.
ACTIVITIES = re.compile(r"activities/(?:categorization|details|erase|explore_\w+)/resource/")
# As skimage's documentation of its data says it.
SKIMAGE = {
    "astronaut.png": ("NASA", "public-domain"),
    "chelsea.png": ("Stefan van der Walt", "CC0-1.0"),
    "coffee.png": ("Rachel Michetti, Pikolo Espresso Bar", "CC0-1.0"),
    "rocket.jpg": ("SpaceX", "CC0-1.0"),
    "motorcycle_left.png": ("Middlebury stereo data", "CC0-1.0"),
    "brick.png": ("CC0 Textures", "CC0-1.0"),
    "grass.png": ("CC0 Textures", "CC0-1.0"),
    "gravel.png": ("CC0 Textures", "CC0-1.0"),
    "camera.png": ("Lav Varshney", "CC0-1.0"),
}
# Catalogues of Sweet Home 3D: their licence, and who made them; "" where each model names its own.
FURNITURE = {
    "BlendSwap-CC-0": ("CC0-1.0", ""),
    "BlendSwap-CC-BY": ("CC-BY-3.0", ""),
    "KatorLegaz": ("CC-BY-3.0-US", "Andrew Kator and Jennifer Legaz"),
    "Reallusion": ("CC-BY-3.0-US", "Reallusion"),
    "Scopia": ("CC-BY-3.0", "Scopia Visual Interfaces Systems"),
}
# The class of a model by words of its name, the first that fits; names of COCO where it has one.
# What has none of them is left out.
NAMES = {
    "": r"plug|socket|switch|dimmer|rj45|railing|slot|arrow|antenna|board|faucet|hood|net\b|rack|"
    r"wall|stair|roof|column|ladder|holder|dispenser|tennis|football|pool|tablet|table fan|remote|"
    r"stand$|brush|hut|swing|shoes|crossing|hot dog|dog house|fork lift|doormat|bathmat|cup cake|"
    r"clothes horse|bedside|curtain|shutter|blind|punching|mannequin|seat leon|iphone|ibook|imac",
    "chair": r"chair|arm ?chair|stool|seat\b",
    "couch": r"sofa|couch",
    "bed": r"bed|crib|cradle",
    "lamp": r"lamp|light|lantern|candle|chandelier",
    "bench": r"bench",
    "dining table": r"table|desk",
    "cabinet": r"cabinet|wardrobe|bookcase|shelves|cupboard|dresser|drawers|sideboard|chest",
    "person": r"male|female|boy|girl|man|woman|child\b|pedestrian|baby$|people",
    "car": r"sedan|car\b|suv|van\b|beetle|peugeot|renault|chevrolet|coupe|ford|leon|convertible",
    "truck": r"truck|lorry",
    "bicycle": r"bike|bicycle",
    "motorcycle": r"motorcycle|motorbike|scooter|moped",
    "potted plant": r"plant|ficus|cactus|bonsai|yucca|bamboo|tulips|orchid|lily|flower",
    "tree": r"tree|pine|palm|oak|hedge|bush",
    "bottle": r"bottle",
    "vase": r"vase|pottery|jar\b|amphora|urn",
    "cup": r"cup\b|mug|teapot|kettle|goblet|coffee pot",
    "bowl": r"bowl|salad",
    "wine glass": r"glass$|cocktail",
    "tv": r"\btv\b|television|monitor|flat screen",
    "sink": r"sink|washbasin|vanity",
    "toilet": r"toilet|urinal|bidet",
    "oven": r"oven|stove|cooker",
    "refrigerator": r"fridge|refrigerator|freezer",
    "washing machine": r"washing|washer|dryer",
    "bath": r"bath|shower|jacuzzi",
    "window": r"window",
    "door": r"door",
    "box": r"box|crate|carton|suitcase",
    "radiator": r"radiator|heater",
    "fireplace": r"fireplace|chimney",
}


class Licensed(NamedTuple):
    """A file that may be passed on. name: below OUT."""

    name: str
    package: str
    origin: str
    author: str
    licence: str


class Model(NamedTuple):
    """A 3-D model with a class. folder: of its cut-outs, below OUT."""

    archive: Path
    properties: Mapping[str, str]
    folder: str
    author: str
    licence: str

    def licensed(self, file: str, key: str, prefix: str = "") -> Licensed:
        origin = f"{prefix}{self.archive.stem}{self.properties[key]}"
        return Licensed(f"{self.folder}/{file}", PACKAGES[3], origin, self.author, self.licence)


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
def main(out: Path) -> None:
    """Fetches the packages into OUT, takes from them what may be passed on, and renders views."""
    fetched = out / "packages"
    for package in PACKAGES:
        _fetch(package, fetched)
    pictures = list(_backgrounds(fetched, out / "backgrounds"))
    furniture = fetched / PACKAGES[3] / "usr/share/sweethome3d/furniture"
    models = [one for one in _with_classes(furniture) if _has_icon(one, out)]
    many = _of_large_classes(models)
    for one in set(map(_folder, models)) - set(map(_folder, many)):
        shutil.rmtree(out / one)
    icons = [one.licensed("icon.png", "icon") for one in many]
    views = list(_views(many, out))
    rows = sorted([*pictures, *icons, *views])
    _refuse_others(out, {row.name for row in rows})
    table = io.StringIO(newline="")
    csv.writer(table).writerows([Licensed._fields, *rows])
    storage.write_bytes(str(out / "licences.csv"), table.getvalue().encode())
    classes = len(set(map(_folder, many)))
    echo(
        f"{len(pictures)} photographs, {len(icons)} models of {classes} classes, {len(views)} views"
    )


def _refuse_others(out: Path, listed: set[str]) -> None:
    """Raises ClickException where OUT has pictures whose licences nobody has looked at."""
    for folder in ("backgrounds", "objects"):
        for path in sorted((out / folder).rglob("*")):
            name = path.relative_to(out).as_posix()
            if path.suffix in images.ENDINGS and name not in listed:
                raise click.ClickException(f"{path}: not of this run; move it away")


def _folder(model: Model) -> str:
    return model.folder.rpartition("/")[0]


def _of_large_classes(models: Sequence[Model]) -> list[Model]:
    sizes = Counter(map(_folder, models))
    return [one for one in models if sizes[_folder(one)] >= MIN_MODELS]


def _fetch(package: str, folder: Path) -> None:
    if (folder / package / "usr").is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
    archive = next(folder.glob(f"{package}_*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive.name, package], cwd=folder, check=True)


def _backgrounds(fetched: Path, out: Path) -> Iterator[Licensed]:
    """Writes the photographs, and yields where each comes from."""
    out.mkdir(parents=True, exist_ok=True)
    for package, origin, data, author, licence in _photographs(fetched):
        if not FREE.fullmatch(licence):
            continue
        try:
            pixels = images.decode(data, origin)
        except RejectedPair:
            continue
        if min(pixels.shape[:2]) < MIN_SIDE or _is_in_front_of_white(pixels):
            continue
        name = re.sub(r"\W+", "_", Path(origin).with_suffix("").as_posix()).strip("_")
        path = out / f"{name}{Path(origin).suffix.lower()}"
        path.write_bytes(data)
        yield Licensed(f"backgrounds/{path.name}", package, origin, author, licence)


def _photographs(fetched: Path) -> Iterator[tuple[str, str, bytes, str, str]]:
    """Package, name in it, bytes, author and licence of everything that may be a photograph."""
    package = PACKAGES[0]
    licences = _copyright(fetched / package / "usr/share/doc" / package / "copyright")
    for archive in sorted((fetched / package / "usr/share/gcompris-qt/rcc").glob("*.rcc")):
        for name, data in _resources(archive.read_bytes()):
            if ACTIVITIES.search(name) and name.endswith((".webp", ".jpg", ".png")):
                name = name.removeprefix("gcompris/")
                yield package, name, data, *_licence_of(name, licences)
    package = PACKAGES[1]
    licences = _copyright(fetched / package / "usr/share/doc" / package / "copyright")
    for path in sorted((fetched / package / "usr/share/backgrounds").glob("*.jpg")):
        author, licence = _licence_of(f"16.04/{path.name}", licences)
        yield package, path.name, path.read_bytes(), author, licence
    package = PACKAGES[2]
    folder = next((fetched / package).glob("usr/lib/python3/dist-packages/skimage/data"))
    for name, (author, licence) in SKIMAGE.items():
        yield package, name, (folder / name).read_bytes(), author, licence


def _is_in_front_of_white(pixels: np.ndarray) -> bool:
    edge = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    return bool((edge.min(1) > WHITE).mean() > MAX_WHITE)


def _copyright(path: Path) -> list[tuple[list[str], str, str]]:
    """Patterns of files, author and licence of each paragraph of a copyright file of Debian."""
    paragraphs = []
    for text in re.split(r"\n\s*\n", path.read_text()):
        fields: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            match = re.match(r"(\w[\w-]*):(.*)", line)
            name = match[1] if match else name
            fields[name] = f"{fields.get(name, '')} {match[2] if match else line}".strip()
        if "Files" in fields and "License" in fields:
            author = re.sub(r"\s+", " ", fields.get("Copyright", "")).strip()
            paragraphs.append((fields["Files"].split(), author, fields["License"]))
    return paragraphs


def _licence_of(name: str, paragraphs: list[tuple[list[str], str, str]]) -> tuple[str, str]:
    """Author and licence of a file; the last paragraph that fits counts, as Debian's rules say.

    GCompris' package holds images as WebP which its copyright file lists with their own endings.
    """
    stem = name.rpartition(".")[0]
    author, licence = "", ""
    for patterns, one, of in paragraphs:
        for pattern in patterns:
            ends = pattern.rpartition(".")[0] or pattern
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(stem, ends):
                author, licence = one, of
    return author, licence


def _resources(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in a resource file of Qt that are not compressed.

    Source: Qt's qresource.cpp; a tree of entries, each of a name and either children or data.
    """
    version, tree, contents, names = struct.unpack(">4I", data[4:20])
    size = 14 if version == 1 else 22  # with a date from version 2 on

    def walk(number: int, folder: str) -> Iterator[tuple[str, bytes]]:
        start = tree + size * number
        offset, flags, first, second = struct.unpack(">IHII", data[start : start + 14])
        (length,) = struct.unpack(">H", data[names + offset : names + offset + 2])
        text = data[names + offset + 6 : names + offset + 6 + 2 * length].decode("utf-16-be")
        name = f"{folder}/{text}".lstrip("/") if number else ""
        if flags & 2:  # a folder
            for child in range(second, second + first):
                yield from walk(child, name)
        elif not flags & 5:  # neither zlib nor zstd
            at = contents + second
            (count,) = struct.unpack(">I", data[at : at + 4])
            yield name, data[at + 4 : at + 4 + count]

    yield from walk(0, "")


def _with_classes(furniture: Path) -> Iterator[Model]:
    for catalogue, (licence, maker) in FURNITURE.items():
        path = furniture / f"{catalogue}.sh3f"
        with zipfile.ZipFile(path) as archive:
            for properties in _models(archive):
                name = _class_of(properties["name"]).replace(" ", "_")
                if name:
                    folder = f"objects/{name}/{catalogue}_{Path(properties['icon']).stem}"
                    author = maker or properties["creator"]
                    yield Model(path, properties, folder, author, licence)


def _has_icon(model: Model, out: Path) -> bool:
    """Writes the icon, if it can be used as a cut-out."""
    path = out / model.folder / "icon.png"
    with zipfile.ZipFile(model.archive) as archive:
        storage.write_bytes(str(path), archive.read(model.properties["icon"].lstrip("/")))
    if not _is_cutout(path):
        shutil.rmtree(path.parent)
        return False
    return True


def _is_cutout(path: Path) -> bool:
    try:
        sources.cutout(str(path))
    except RejectedPair:
        return False
    return True


def _views(models: Sequence[Model], out: Path) -> Iterator[Licensed]:
    """Renders the models that have no views yet, and yields where each view comes from."""
    unusable = 0
    with progress_bar("rendering models") as progress:
        for number, model in enumerate(models, 1):
            folder = out / model.folder
            try:
                if not (folder / RENDERED).exists():
                    _render(model, folder)
            except (model_views.UnusableModel, KeyError, ValueError) as error:
                echo(f"{model.archive.name}: {error}", err=True)
                unusable += 1
            for path in sorted(folder.glob("view*.png")):
                yield model.licensed(path.name, "model", "rendered from ")
            progress(number, len(models))
    if unusable:
        echo(f"{unusable} models could not be rendered", err=True)


def _render(model: Model, folder: Path) -> None:
    """Writes the views that can be used as cut-outs.

    Raises:
        model_views.UnusableModel, KeyError, ValueError: For a model that is not as others are.
    """
    size = [float(model.properties[key]) for key in ("width", "height", "depth")]
    rotation = model.properties.get("modelRotation", "1 0 0 0 1 0 0 0 1").split()
    with zipfile.ZipFile(model.archive) as archive:
        parts = model_views.read(archive, model.properties["model"].lstrip("/"))
    views = model_views.render(parts, size, np.array(rotation, float).reshape(3, 3))
    for azimuth, view in zip(model_views.AZIMUTHS, views, strict=True):
        path, encoded = folder / f"view{azimuth % 360:03}.png", io.BytesIO()
        view.save(encoded, "PNG")
        storage.write_bytes(str(path), encoded.getvalue())
        if not _is_cutout(path):
            path.unlink()
    (folder / RENDERED).touch()


def _models(archive: zipfile.ZipFile) -> Iterator[Mapping[str, str]]:
    """The properties of each model of a catalogue that has an icon."""
    text = io.TextIOWrapper(archive.open("PluginFurnitureCatalog.properties"), "latin-1")
    models: dict[str, dict[str, str]] = {}
    for line in text:
        match = re.match(r"(\w+)#(\d+)=(.*)", line.strip())
        if match:
            models.setdefault(match[2], {})[match[1]] = match[3]
    yield from (model for model in models.values() if "icon" in model and "name" in model)


def _class_of(name: str) -> str:
    found = (one for one, words in NAMES.items() if re.search(rf"\b(?:{words})", name.lower()))
    return next(found, "")


if __name__ == "__main__":
    main()
