"""A manifest's mistakes get one line each that names file, key and remedy."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("interpolate: {dept: 2}", 'interpolate.dept: unknown key. Did you mean "depth"?'),
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
        ("clevr", ["interpolate.depth=["], "not YAML (expected the node content"),
        ("clevr", ["interpolate={depth: 2, depth: 3}"], "not YAML (depth occurs twice)"),
        ("clevr", ["name.x=1"], "name has no keys below it"),
        ("clevr", ["interpolate.depht=2"], 'Did you mean "depth"?'),
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
        "video.": manifest.Video,
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
