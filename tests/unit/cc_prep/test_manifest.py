"""A manifest's mistakes get one line each that names file, key and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from cc_prep import manifest
from cc_prep.errors import UserError
from tests.conftest import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_manifest_loads(path: Path) -> None:
    assert manifest.load(str(path)).name == path.stem


def test_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a package that only works from its own checkout."""
    monkeypatch.chdir(tmp_path)
    assert manifest.load("clevr").layout == "clevr_change"


def test_override_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEVR_ROOT", "/somewhere")
    loaded = manifest.load("clevr", ["interpolate.depth=2", "image_size=null"])
    assert (loaded.interpolate.depth, loaded.image_size, loaded.root) == (2, None, "/somewhere")
    assert manifest.load("clevr", root="/else").root == "/else"
    monkeypatch.delenv("CLEVR_ROOT")
    assert manifest.load("clevr").root == "data/clevr"


def test_paths_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "no folder rel" of a manifest that is used from another folder than its own."""
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    text = "layout: table\nroot: {}\nexclude: out.csv\n"
    (tmp_path / "project/mine.yaml").write_text(text.format("rel"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    mine = "../project/mine.yaml"
    loaded = manifest.load(mine)
    assert (loaded.root, loaded.exclude) == ("../project/rel", "../project/out.csv")
    loaded = manifest.load(mine, ["exclude=mine.csv"], root="here")
    assert (loaded.root, loaded.exclude) == ("here", "mine.csv")
    assert manifest.load(mine, ["root=here"]).root == "here"
    monkeypatch.chdir(tmp_path / "project")
    assert manifest.load("mine.yaml").root == "rel"
    monkeypatch.setenv("MY_ROOT", "here")
    for written, root in (
        ("${MY_ROOT}", "here"),
        ("${MY_ROOT:-there}/x", "here/x"),
        ("${NOT_SET_ANYWHERE:-../there}", "../there"),
        ("/a/b/../c", "/a/c"),
        ("s3://bucket//a", "s3://bucket//a"),
        ("~/data", os.path.expanduser("~/data")),
    ):
        (tmp_path / "project/mine.yaml").write_text(text.format(written))
        assert manifest.load("mine.yaml").root == root
    # One of the package counts as one in `manifests/` of the current folder.
    assert manifest.load("clevr").root == "data/clevr"


@pytest.mark.parametrize(
    ("text", "value"),
    [("0112", 112), ("0x70", 112), ("0o160", 112), ("1_000", 1000), ("+112", 112)],
)
def test_numbers_are_what_everybody_else_reads(tmp_path: Path, text: str, value: int) -> None:
    """Keeps away: 74 px for 0112, which YAML 1.1 takes for an octal number."""
    (tmp_path / "mine.yaml").write_text(f"layout: table\nroot: .\nimage_size: {text}\n")
    assert manifest.load(str(tmp_path / "mine.yaml")).image_size == value
    assert manifest.load("own", [f"image_size={text}"]).image_size == value
    with pytest.raises(UserError, match="image_size: input should be a valid integer, not '1:30'"):
        manifest.load("own", ["image_size=1:30"])


@pytest.mark.parametrize("text", ["1_", "0x_", "1__0"])
def test_names_that_begin_like_a_number(text: str) -> None:
    """Keeps away: a name such as `1_` that ends in a message about literals with base 10."""
    assert manifest.load("own", [f"name={text}"]).name == text


def test_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes("layout: table\nroot: é\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"is not UTF-8 text \(line 2\)\. Save it as UTF-8"):
        manifest.load(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "interpolate: {dept: 2}",
            'interpolate.dept: unknown key. Did you mean "interpolate.depth"?',
        ),
        ("image_size: 8\nimage_size: 9", "line 4: image_size occurs twice"),
        ("interpolate: {depth: 2, depth: 3}", "depth occurs twice"),
        ("bogus: 1", "bogus: unknown key. Known here: name, layout"),
        ("interpolate: {depth: three}", "interpolate.depth: input should be a valid integer"),
        ("interpolate: {depth: -1}", "greater than or equal to 0, not -1"),
        ("interpolate: {depth: true}", "interpolate.depth: input should be a valid integer"),
        ("interpolate: {method: rive}", "interpolate.method"),
        ("layout: clever", "layout"),
        ("splits: []", "splits"),
        ("splits: [a, a]", "named twice"),
        ("splits: [Train, TRAIN]", "two splits differ in small and capital letters alone"),
        ("splits: [a b]", "a split is named in letters"),
        ("name: a/b", "name"),
        ("interpolate: {pad_multiple: 40}", "pad_multiple"),
        ("root: ${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE"),
        ("interpolate: [", "line"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    fields = {"layout: video": "layout", "root: .": "root"}
    base = [line for line, key in fields.items() if not text.startswith(f"{key}:")]
    path.write_text("\n".join([*base, text]))
    with pytest.raises(UserError) as caught:
        manifest.load(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_own_key_beside_a_merged_one_stands_once(tmp_path: Path) -> None:
    """Keeps away: a key "that stands twice", for an alias of its section was read before it."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "layout: video\nroot: .\ntrain:\n  stage1: {loop: &one {steps: 1, batch_size: 3}}\n"
        "  stage2: {deeper: {loop: &two {<<: *one, steps: 2}}}\n  chain: {<<: *two}\n"
    )
    train = manifest.load(str(path)).train
    assert train["chain"] == train["stage2"]["deeper"]["loop"] == {"steps": 2, "batch_size": 3}


@pytest.mark.parametrize(
    ("dataset", "overrides", "message"),
    [
        ("clever", [], 'Did you mean "clevr"?'),
        ("none.yaml", [], "no manifest none.yaml"),
        ("clevr", ["depth"], "not key=value"),
        ("clevr", ["image_size="], "no value after =. Give one; for none, --set image_size=null"),
        ("clevr", ["image_size= "], "no value after ="),
        ("clevr", ["interpolate.depth=["], "not YAML (expected the node content"),
        ("clevr", ["interpolate={depth: 2, depth: 3}"], "not YAML (depth occurs twice)"),
        ("clevr", ["name.x=1"], "name has no keys below it"),
        ("clevr", ["interpolate.depht=2"], 'Did you mean "interpolate.depth"?'),
    ],
)
def test_wrong_names_and_overrides(dataset: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=None) as caught:
        manifest.load(dataset, overrides)
    assert message in str(caught.value)


def test_readme_lists_every_key_with_its_default() -> None:
    """Keeps away: a key that nobody can find."""
    text = (ROOT / "manifests" / "README.md").read_text()
    sections = {
        "": manifest.Manifest,
        "image.": manifest.ImageValues,
        "pairs.": manifest.Pairs,
        "video.": manifest.Video,
        "rasters.": manifest.Rasters,
        "captions.": manifest.Captions,
        "table.": manifest.Table,
        "levir.": manifest.Levir,
        "masks.": manifest.Masks,
        "interpolate.": manifest.Interpolate,
        "score.": manifest.Score,
        "keyframes.": manifest.Keyframes,
        "tokenize.": manifest.Tokenize,
        "features.": manifest.Features,
        "changes.": manifest.Changes,
        "entities.": manifest.Entities,
        "shards.": manifest.Shards,
    }
    for prefix, section in sections.items():
        for key, field in section.model_fields.items():
            if prefix + key in ("source", *(p.rstrip(".") for p in sections)):
                continue
            row = next(line for line in text.splitlines() if line.startswith(f"| `{prefix}{key}` "))
            if not field.is_required() and field.default_factory is None:
                assert yaml.safe_load(row.split("|")[2].strip().strip("`")) == (
                    list(field.default) if isinstance(field.default, tuple) else field.default
                ), row


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ("{unchanged: 3}", "say nothing without classes"),
        ("{land_cover: true}", "say nothing without classes"),
        ("{classes: {road: 1, tree: 1}}", "two classes have the same value"),
        ('{classes: {road: 1, tree: "#00ff00"}}', "all of them are colours"),
    ],
)
def test_masks_that_mean_nothing(masks: str, message: str) -> None:
    """Keeps away: settings of masks that are taken and have no effect."""
    with pytest.raises(UserError, match=message):
        manifest.load("own", [f"masks={masks}"])


def test_cells_that_are_never_joined() -> None:
    """Keeps away: objects in pieces, or nothing found, since no cell is another's neighbour."""
    with pytest.raises(UserError, match="cell is larger than eps"):
        manifest.load("own", ["changes.cell=7"])
    with pytest.raises(UserError, match="cell is larger than eps"):
        manifest.load("own", ["changes.eps=1"])
    assert manifest.load("own", ["changes.cell=3"]).changes.cell == 3


def test_a_tilde_in_a_manifest_is_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "no folder ~/data" for a folder that is there."""
    monkeypatch.setenv("HOME", "/home/me")
    text = "layout: table\nroot: ~/data\nsplit_file: ~/s.json\ntable: {file: ~/p.csv}\n"
    loaded = manifest.build(text, "mine.yaml", ["features.folder=~/f"])
    assert loaded.root == "/home/me/data"
    assert (loaded.split_file, loaded.table.file) == ("/home/me/s.json", "/home/me/p.csv")
    assert loaded.features.folder == "/home/me/f"
    assert manifest.build("layout: table\nroot: data~\n", "mine.yaml").root == "data~"
