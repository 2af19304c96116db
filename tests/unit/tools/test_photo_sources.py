"""What may be passed on is told from what may not, files are found, and models rendered."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from cc_prep.composites import sources
from tests.dataset_factory import cutout
from tools import model_views, photo_sources

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2010 One
           2011 Two
License: GPL-3+

Files: src/photos/*
Copyright: Three
License: CC-BY-SA-3.0

Files: src/photos/lake.jpg
       src/photos/hill.*
Copyright: 2004, Four <four@example.org>
License: CC-BY-2.0
Comment: https://example.org

License: CC-BY-2.0
 The text.
"""


def test_the_last_paragraph_that_fits_counts(tmp_path: Path) -> None:
    """Keeps away: a photograph under CC-BY-SA that is taken for one that may be passed on."""
    (tmp_path / "copyright").write_text(COPYRIGHT)
    paragraphs = photo_sources._copyright(tmp_path / "copyright")
    assert photo_sources._licence_of("src/photos/lake.webp", paragraphs) == (
        "2004, Four <four@example.org>",
        "CC-BY-2.0",
    )
    assert photo_sources._licence_of("src/photos/hill.webp", paragraphs)[1] == "CC-BY-2.0"
    assert photo_sources._licence_of("src/photos/sea.webp", paragraphs)[1] == "CC-BY-SA-3.0"
    assert photo_sources._licence_of("src/other.webp", paragraphs) == (
        "2010 One 2011 Two",
        "GPL-3+",
    )


@pytest.mark.parametrize(
    ("licence", "free"),
    [
        ("public-domain", True),
        ("CC0-1.0", True),
        ("CC-BY-3.0", True),
        ("CC-BY-3.0-USA", True),
        ("CC-BY-SA-3.0", False),
        ("CC-BY-NC-4.0", False),
        ("CC0-1.0 and CC-BY-3.0", True),
        ("CC0-1.0 and CC-BY-SA-3.0", False),
        ("CC-BY-3.0 and Bitstream", False),
        ("GPL-3+", False),
        ("", False),
    ],
)
def test_only_free_licences_are_taken(licence: str, free: bool) -> None:
    assert bool(photo_sources.FREE.fullmatch(licence)) == free


def resource_file(names: list[str], contents: list[bytes], flags: int = 0) -> bytes:
    """A resource file of Qt, version 2: a root with files."""
    texts = b""
    nodes = [struct.pack(">IHIIQ", 0, 2, len(names), 1, 0)]
    data = b""
    for name, content in zip(names, contents, strict=True):
        nodes.append(struct.pack(">IHHHIQ", len(texts), flags, 0, 0, len(data), 0))
        texts += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
        data += struct.pack(">I", len(content)) + content
    at = 20
    tree = b"".join(nodes)
    header = struct.pack(">4I", 2, at, at + len(tree), at + len(tree) + len(data))
    return b"qres" + header + tree + data + texts


def test_files_in_resource_files_are_found() -> None:
    made = resource_file(["a.webp", "ö.png"], [b"one", b"three"])
    assert list(photo_sources._resources(made)) == [("a.webp", b"one"), ("ö.png", b"three")]
    assert list(photo_sources._resources(resource_file(["a"], [b"zzz"], flags=1))) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Oak chair", "chair"),
        ("Armchair", "chair"),
        ("Desk lamp", "lamp"),
        ("Sink cabinet", "cabinet"),
        ("Table tennis bat", ""),
        ("Wall RJ45 plug", ""),
        ("Sitting girl", "person"),
        ("Seat Leon", ""),
        ("Hot dog", ""),
    ],
)
def test_models_are_named_by_their_words(name: str, expected: str) -> None:
    assert photo_sources._class_of(name) == expected


# A box with a red front (z = 1), a green top (y = 1), and the rest blue.
BOX = """mtllib box.mtl
v 0 0 0
v 1 0 0
v 1 1 0
v 0 1 0
v 0 0 1
v 1 0 1
v 1 1 1
v 0 1 1
usemtl front
f 5 6 7 8
usemtl top
f 4 8 7 3
usemtl rest
f 1 4 3 2
f 1 2 6 5
f 1 5 8 4
f 2 3 7 6
"""
MATERIALS = """newmtl front
Kd 0.8 0 0
newmtl top
Kd 0 0.8 0
newmtl rest
Kd 0 0 0.8
"""


def furniture(folder: Path) -> Path:
    """A catalogue of three boxes, a file that is no model, and a lamp alone of its class."""
    icon = io.BytesIO()
    Image.fromarray(cutout(1)).save(icon, "png")
    folder.mkdir()
    with zipfile.ZipFile(folder / "Scopia.sh3f", "w") as archive:
        lines = []
        for i, name in enumerate(("Box", "Crate", "Suitcase", "Carton", "Lamp"), 1):
            lines += [f"name#{i}={name}", f"icon#{i}=/s/{i}.png", f"model#{i}=/s/{i}/box.obj"]
            lines += [f"width#{i}=60", f"height#{i}=40", f"depth#{i}=50", f"creator#{i}=Maker {i}"]
            archive.writestr(f"s/{i}.png", icon.getvalue())
            archive.writestr(f"s/{i}/box.obj", "no model" if name == "Carton" else BOX)
            archive.writestr(f"s/{i}/box.mtl", MATERIALS)
        archive.writestr("PluginFurnitureCatalog.properties", "\n".join(lines))
    return folder


def test_models_are_rendered_from_several_sides_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: things upside down, from behind, or black; hours of rendering for nothing."""
    monkeypatch.setattr(photo_sources, "FURNITURE", {"Scopia": ("CC-BY-3.0", "")})
    monkeypatch.setattr(model_views, "SIDE", 64)
    monkeypatch.setattr(model_views, "SAMPLES", 4)
    found = list(photo_sources._with_classes(furniture(tmp_path / "furniture")))
    models = photo_sources._of_large_classes(
        [one for one in found if photo_sources._has_icon(one, tmp_path)]
    )
    assert [one.folder for one in models] == [f"objects/box/Scopia_{i}" for i in range(1, 5)]
    rows = list(photo_sources._views(models, tmp_path))
    assert "1 models could not be rendered" in capsys.readouterr().err
    assert rows[0] == (
        "objects/box/Scopia_1/view030.png",
        "sweethome3d-furniture",
        "rendered from Scopia/s/1/box.obj",
        "Maker 1",
        "CC-BY-3.0",
    )
    assert len(rows) == 3 * len(model_views.AZIMUTHS)
    for row in rows:
        view = sources.cutout(str(tmp_path / row.name)).astype(int)
        upper, lower = (view[int(share * len(view)), view.shape[1] // 2] for share in (0.1, 0.6))
        assert np.argmax(upper[:3]) == 1
        assert np.argmax(lower[:3]) == (2 if "view205" in row.name else 0)
        assert lower[3] == 255
        assert lower[:3].max() > 90
        assert max(view.shape) > 0.9 * model_views.SIDE
    assert not list((tmp_path / "objects").rglob("*.tmp*"))

    render = model_views.render
    monkeypatch.setattr(model_views, "render", None)
    assert list(photo_sources._views(models, tmp_path)) == rows
    stopped = tmp_path / models[0].folder
    (stopped / photo_sources.RENDERED).unlink()
    (stopped / "view205.png").unlink()
    monkeypatch.setattr(model_views, "render", render)
    assert list(photo_sources._views(models, tmp_path)) == rows, "half of the views were kept"


def test_pictures_without_a_licence_are_refused(tmp_path: Path) -> None:
    """Keeps away: cut-outs of an earlier run, or a user's own, that licences.csv does not name."""
    for name in ("objects/box/a/icon.png", "objects/box/old.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    photo_sources._refuse_others(tmp_path, {"objects/box/a/icon.png", "objects/box/old.png"})
    with pytest.raises(click.ClickException, match=r"old\.png: not of this run"):
        photo_sources._refuse_others(tmp_path, {"objects/box/a/icon.png"})
