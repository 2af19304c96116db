"""What a rendered pair says of its change: seen against the renderer, and read back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import datasets, manifest
from cc_prep.errors import UserError
from cc_prep.records import CHANGE, ImagePair
from cc_prep.synth import dataset, facts, render, scenes

SIZE = 160


def all_pairs(root: Path) -> list[ImagePair]:
    settings = manifest.load("synth", root=str(root))
    return [pair for split in settings.splits for pair in datasets.pairs(settings, split)]


@pytest.mark.parametrize("shape", scenes.SHAPES)
@pytest.mark.parametrize(("x", "y"), [(0.0, 0.0), (2.2, -1.5), (-2.4, 2.0), (1.0, 2.5)])
def test_a_place_is_where_the_renderer_puts_it(shape: str, x: float, y: float) -> None:
    """The projected centre against the middle of the object's pixels, seen alone."""
    solid = scenes.Solid(shape, "large", "red", "rubber", x, y, 30.0)
    camera = (7.4, -6.1, 5.6)
    moment = scenes.Moment((scenes.look(solid),), camera, scenes.LIGHTS)
    rows, columns = np.nonzero(render.object_map(moment, SIZE) == 0)
    middle = (np.ptp(columns) / 2 + columns.min() + 0.5, np.ptp(rows) / 2 + rows.min() + 0.5)
    u, v = facts.location((x, y, scenes.height(solid) / 2), camera)
    assert abs(u * SIZE - middle[0]) < 2
    assert abs(v * SIZE - middle[1]) < 2.5


def test_a_place_beside_the_image() -> None:
    u, v = facts.location((7.0, 6.0, 0.0), scenes.CAMERA)
    assert u > 1
    assert 0 < v < 1


def scene_of(change: str) -> scenes.Scene:
    for seed in range(100):
        scene = scenes.sample(np.random.default_rng(seed), 0, change)
        if scene is not None:
            return scenes.from_json(json.loads(json.dumps(scene.to_json())))
    raise AssertionError("no scene in 100 tries")


@pytest.mark.parametrize("change", scenes.CHANGE_TYPES)
def test_each_type_says_what_differs(change: str) -> None:
    scene = scene_of(change)
    scene_facts = facts.of_scene(scene)
    unchanged = scene_facts["no_change"]
    assert (unchanged.type, unchanged.before, unchanged.after) == ("none", None, None)
    assert len(unchanged.objects_before) == len(unchanged.objects_after)
    before, after = scene_facts["change"].before, scene_facts["change"].after
    assert scene_facts["change"].type == change
    assert (before is None) == (change == "add")
    assert (after is None) == (change == "drop")
    if before is None or after is None:
        return
    same = replace(after, location=before.location)
    assert (same == before) == (change == "move")
    if change in ("color", "material"):
        assert replace(same, values={**same.values, change: before[change]}) == before
    # Cameras differ between the two images, and so do places of what stands still.
    assert before.location != after.location


def test_facts_are_read_with_their_pairs(synth_root: Path) -> None:
    """In every changed pair the object's place is in its mask, and its looks are the scene's."""
    for pair in all_pairs(synth_root):
        assert pair.facts is not None
        if pair.kind != CHANGE:
            assert pair.facts.type == "none"
            assert len(pair.facts.reversed_captions) == 6
            continue
        assert pair.facts.before is None or pair.facts.before in pair.facts.objects_before
        assert pair.facts.after is None or pair.facts.after in pair.facts.objects_after
        assert pair.facts.type == pair.change_type
        scene = json.loads((synth_root / f"scenes/{pair.id}.json").read_text())["scene"]
        mask = np.asarray(Image.open(synth_root / f"masks/{pair.id}.png"))
        for end in ("before", "after"):
            attributes, solid = getattr(pair.facts, end), scene[end][scene["changed"]]
            assert (attributes is None) == (solid is None)
            if attributes is not None:
                assert all(attributes[n] == solid[n] for n in ("color", "shape", "size"))
                u, v = attributes.location
                around = mask[max(0, round(v * 64) - 6) :, max(0, round(u * 64) - 6) :][:12, :12]
                assert around.any(), (pair.id, end)


def test_scenes_of_others_have_none(synth_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "synth"
    shutil.copytree(synth_root, root)
    (root / "facts.json").unlink()
    assert all(pair.facts is None for pair in all_pairs(root))
    # `cc-prep synth` puts the file back without rendering anything.
    settings = dataset.Settings(seed=5, size=64, samples=4, truth=True)
    list(dataset.make(str(root), 6, settings))
    assert (root / "facts.json").read_bytes() == (synth_root / "facts.json").read_bytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"change": {}}', "no no_change"),
        ('{"change": {"a": {"type": "x"}}, "no_change": {}}', "facts are"),
    ],
)
def test_damaged_facts_are_named(
    synth_root: Path, tmp_path: Path, value: str, message: str
) -> None:
    root = tmp_path / "synth"
    shutil.copytree(synth_root, root)
    (root / "facts.json").write_text(value)
    with pytest.raises(UserError, match=message) as caught:
        all_pairs(root)
    assert "facts.json" in str(caught.value)
