"""Synthetic scenes are possible, their captions single out, their files are official and exact."""

from __future__ import annotations

import filecmp
import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cc_prep.errors import UserError
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth import dataset, grammar, masks, parsing, scenes
from cc_train.evaluation.rendered import fact_scores
from tests import commands

SEEDS = st.integers(0, 10**6)
CHANGES = st.sampled_from(scenes.CHANGE_TYPES)


def sampled(
    seed: int, change: str, jitter: float = 1.0
) -> tuple[scenes.Scene, np.random.Generator]:
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        scene = scenes.sample(rng, seed, change, jitter)
        if scene is not None:
            return scene, rng
    raise AssertionError("no scene in 100 tries")


@given(SEEDS, CHANGES)
@settings(max_examples=80)
def test_only_the_said_change_happens(seed: int, change: str) -> None:
    scene, _ = sampled(seed, change)
    changed = scene.changed
    for there in (scene.before, scene.after):
        assert 3 <= sum(solid is not None for solid in there) <= 7
    for number, (one, other) in enumerate(zip(scene.before, scene.after, strict=True)):
        if number != changed:
            assert one == other
    one, other = scene.before[changed], scene.after[changed]
    if change in ("add", "drop"):
        assert (one is None) == (change == "add")
        assert (other is None) == (change == "drop")
        return
    fields = {"color": {"color"}, "material": {"material"}, "move": {"x", "y"}}[change]
    differing = {k for k in asdict(one) if asdict(one)[k] != asdict(other)[k]}
    assert differing == fields


@given(SEEDS, CHANGES)
@settings(max_examples=60)
def test_no_collision_at_any_time(seed: int, change: str) -> None:
    scene, _ = sampled(seed, change)
    before, after, _ = scene.moments
    for t in np.linspace(0, 1, 33):
        looks = [look for look in scenes.between(before, after, float(t)).looks if look]
        for i, a in enumerate(looks):
            for b in looks[:i]:
                # 33 steps look between the 17 that the sampler checks.
                assert np.hypot(a.x - b.x, a.y - b.y) > a.radius + b.radius + scenes.GAP - 0.1


@given(SEEDS, CHANGES)
@settings(max_examples=40)
def test_moments_meet_their_ends(seed: int, change: str) -> None:
    scene, _ = sampled(seed, change)
    before, after, distractor = scene.moments
    assert scenes.between(before, after, 0.0) == before
    last = scenes.between(before, after, 1.0)
    assert [look is None for look in last.looks] == [look is None for look in after.looks]
    assert np.allclose(last.camera, after.camera)
    assert distractor.looks == before.looks
    assert distractor.camera != before.camera


@given(SEEDS, CHANGES, st.floats(0, 1))
@settings(max_examples=40)
def test_jitter_moves_camera_and_lights_alone(seed: int, change: str, jitter: float) -> None:
    still, moved, whole = (sampled(seed, change, j)[0] for j in (0.0, jitter, 1.0))
    assert still.before == moved.before == whole.before
    assert still.after == moved.after == whole.after
    assert {m.camera for m in still.moments} == {still.moments[0].camera}
    assert moved.moments[0] == whole.moments[0]
    for some, all_ in zip(moved.moments[1:], whole.moments[1:], strict=True):
        part, full = (np.subtract(m.camera, moved.moments[0].camera) for m in (some, all_))
        assert np.allclose(part, jitter * full)


@given(SEEDS, CHANGES)
@settings(max_examples=150)
def test_expressions_single_out(seed: int, change: str) -> None:
    """Keeps away: "the cube moved" in a scene of three cubes."""
    scene, rng = sampled(seed, change)
    there = scene.after if change == "add" else scene.before
    for expression in grammar.referring_expressions(there, scene.changed):
        assert grammar.fits(there, scene.changed, expression) == [scene.changed]
    sentences = grammar.change_captions(scene, rng)
    assert len(sentences) == len(set(sentences)) <= 6
    for sentence in sentences:
        assert "{" not in sentence
        if change == "color":
            assert scene.after[scene.changed].color in sentence.split()


@given(SEEDS, CHANGES)
@settings(max_examples=100)
def test_the_plain_sentence_says_all_in_few_words(seed: int, change: str) -> None:
    scene, _ = sampled(seed, change)
    there = scene.after if change == "add" else scene.before
    if not grammar.referring_expressions(there, scene.changed):
        return
    sentence = grammar.plain_caption(scene)
    assert sentence == grammar.plain_caption(scene)
    solid = (scene.after if change == "add" else scene.before)[scene.changed]
    for feature in grammar.FEATURES:
        assert getattr(solid, feature) in sentence.split()
    if change in ("color", "material"):
        assert sentence.endswith(f" turned {getattr(scene.after[scene.changed], change)}")
    known = {*scenes.SHAPES, *scenes.SIZES, *scenes.COLORS, *scenes.MATERIALS}
    rest = "the turned appeared disappeared moved to right left of behind in front"
    assert set(sentence.split()) - known <= set(rest.split())


def test_other_words_need_no_rendering(tmp_path: Path) -> None:
    """A folder gets the other wording, forwards and backwards, while no image is touched."""
    root = tmp_path / "synth"
    rich, plain = (
        dataset.Settings(seed=3, size=32, samples=1, wording=w) for w in ("rich", "plain")
    )

    def annotations() -> tuple[dict, dict]:
        return tuple(
            json.loads((root / name).read_text()) for name in ("change_captions.json", "facts.json")
        )

    commands.render(root, 3, rich)
    first, images = annotations(), {p: p.stat().st_mtime_ns for p in root.rglob("*.png")}
    commands.render(root, 3, plain)
    captions_by_name, facts = annotations()
    assert {len(listed) for listed in captions_by_name.values()} == {1}
    assert json.loads((root / "synth.json").read_text())["wording"] == "plain"
    for name, of_pair in facts["no_change"].items():
        assert of_pair["reversed_captions"] == [grammar.PLAIN_NO_CHANGE], name
    commands.render(root, 3, rich)
    assert annotations() == first
    assert images == {p: p.stat().st_mtime_ns for p in root.rglob("*.png")}


def test_both_wordings_are_a_plain_and_a_rich_sentence(tmp_path: Path) -> None:
    """Keeps away: a training on both wordings that sees one of them more often, or not at all."""
    sentences = {}
    for wording in ("plain", "rich", "both"):
        commands.render(tmp_path, 2, dataset.Settings(size=32, samples=1, wording=wording))
        facts = json.loads((tmp_path / "facts.json").read_text())
        sentences[wording] = [
            json.loads((tmp_path / f"{kind}_captions.json").read_text())[name]
            for kind in (CHANGE, NO_CHANGE)
            for name in facts[kind]
        ] + [pair["reversed_captions"] for kind in facts for pair in facts[kind].values()]
    assert len(sentences["both"]) == 8
    for plain, rich, both in zip(*sentences.values(), strict=True):
        assert both == [*plain, rich[0]]
        assert len(plain) == 1


def test_a_finished_folder_does_not_shrink(tmp_path: Path) -> None:
    """Keeps away: `--scenes 200` in a folder of 2,000, which then has the captions of 200."""
    tiny = dataset.Settings(size=32, samples=1)
    commands.render(tmp_path, 2, tiny)
    with pytest.raises(
        UserError, match=r"has 2 scenes, more than 1.*a larger --scenes, or another"
    ):
        dataset.make(str(tmp_path), 1, replace(tiny, wording="plain"))
    assert len(json.loads((tmp_path / "change_captions.json").read_text())) == 2
    assert json.loads((tmp_path / "synth.json").read_text())["wording"] == "rich"
    for damage in ("[]", "{", '{"train": 5, "val": [], "test": []}'):
        (tmp_path / "splits.json").write_text(damage)
        with pytest.raises(UserError, match=r"splits\.json: damaged\. Restore it"):
            dataset.make(str(tmp_path), 2, tiny)


@given(SEEDS, CHANGES)
@settings(max_examples=50)
def test_a_scene_is_read_back_and_turned_round(seed: int, change: str) -> None:
    scene, _ = sampled(seed, change)
    assert scenes.from_json(json.loads(json.dumps(asdict(scene)))) == scene
    turned = scene.reversed()
    assert (turned.before, turned.after) == (scene.after, scene.before)
    assert turned.change == {"add": "drop", "drop": "add"}.get(change, change)
    assert turned.reversed() == scene


def test_twins_need_a_relation() -> None:
    def solid(shape: str, x: float) -> scenes.Solid:
        return scenes.Solid(shape, "large", "red", "metal", x, 0.0, 0.0)

    there = (solid("cube", -2), solid("cube", 2), solid("sphere", 0))
    expressions = grammar.referring_expressions(there, 0)
    assert expressions
    assert all(len(e) == 6 and e[-1] == "2" for e in expressions)
    assert grammar.referring_expressions(there, 2) == [
        ("shape",),
        *[e for e in grammar.referring_expressions(there, 2) if len(e) > 1],
    ]
    # Three in a row: the middle one is on neither side of anything alone.
    row = (solid("cube", -2), solid("cube", 0), solid("cube", 2))
    assert grammar.referring_expressions(row, 1) == []


def test_official_layout(synth_root: Path) -> None:
    names = {p.name for p in synth_root.iterdir()}
    assert names >= {
        "images", "sc_images", "nsc_images", "change_captions.json", "no_change_captions.json",
        "splits.json", "type_mapping.json", "scenes", "masks", "masks_before", "masks_after",
        "truth",
    }  # fmt: skip
    for folder, name in (
        ("images", "default"),
        ("sc_images", "semantic"),
        ("nsc_images", "nonsemantic"),
    ):
        files = sorted(p.name for p in (synth_root / folder).iterdir())
        assert files == [f"CLEVR_{name}_{i:06d}.png" for i in range(6)]
    sentences_of = json.loads((synth_root / "change_captions.json").read_text())
    assert all(3 <= len(sentences) <= 6 for sentences in sentences_of.values())
    split = json.loads((synth_root / "splits.json").read_text())
    assert sorted(i for part in split.values() for i in part) == list(range(6))
    assert all(split.values())
    types = json.loads((synth_root / "type_mapping.json").read_text())
    assert sorted(file for files in types.values() for file in files) == [
        f"{i:06d}.png" for i in range(6)
    ]
    assert len(types) == 5


def image(root: Path, path: str) -> np.ndarray:
    return np.asarray(Image.open(root / path)).astype(int)


def test_true_frames_lead_from_before_to_after(synth_root: Path) -> None:
    """Keeps away: true frames in the reverse order, and masks of nothing or of everything."""
    for index in range(6):
        mask = image(synth_root, f"masks/{index:06d}.png") > 0
        assert 0.004 < mask.mean() < 0.4
        facts = json.loads((synth_root / f"scenes/{index:06d}.json").read_text())
        assert facts["scene"]["index"] == index
        before = image(synth_root, f"images/CLEVR_default_{index:06d}.png")
        after = image(synth_root, f"sc_images/CLEVR_semantic_{index:06d}.png")
        first, last = (image(synth_root, f"truth/sc/{index:06d}/{step:02d}.png") for step in (1, 7))
        assert np.abs(first - before).mean() < np.abs(first - after).mean()
        assert np.abs(last - after).mean() < np.abs(last - before).mean()


def test_masks_of_the_two_sides(synth_root: Path) -> None:
    """Keeps away: a moved object that is said to have come, and sides that are swapped."""
    for index in range(6):
        union, before, after = (
            image(synth_root, f"{folder}/{index:06d}.png") for folder in masks.FOLDERS
        )
        assert np.array_equal(union, before | after)
        scene = json.loads((synth_root / f"scenes/{index:06d}.json").read_text())["scene"]
        assert before.any() == (scene["change"] != "add")
        assert after.any() == (scene["change"] != "drop")
        shares = (before & after).sum() / max(1, union.sum())
        assert shares < 0.9 if scene["change"] in ("add", "drop", "move") else shares > 0.3


def test_same_seed_same_bytes_resumed_or_not(tmp_path: Path) -> None:
    settings = dataset.Settings(seed=9, size=48, samples=2)
    one, other = tmp_path / "one", tmp_path / "other"
    list(dataset.make(str(one), 3, settings, workers=2))
    commands.render(other, 1, settings)
    (other / "images" / "CLEVR_default_000001.png").write_bytes(b"half")  # a killed run's rest
    commands.render(other, 3, settings)
    files = [str(p.relative_to(one)) for p in one.rglob("*") if p.is_file()]
    assert filecmp.cmpfiles(one, other, files, shallow=False)[0] == files


def test_other_settings_are_refused(tmp_path: Path) -> None:
    commands.render(tmp_path / "a", 1, dataset.Settings(size=32, samples=1))
    with pytest.raises(UserError, match=r"other settings \(seed\)"):
        list(dataset.make(str(tmp_path / "a"), 1, dataset.Settings(seed=1, size=32, samples=1)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").touch()
    with pytest.raises(UserError, match="holds other files"):
        list(dataset.make(str(tmp_path / "b"), 1, dataset.Settings()))


@given(st.integers(1, 400), st.integers(0, 5))
def test_splits_and_types(count: int, seed: int) -> None:
    splits = dataset.splits(count, seed)
    assert sorted(i for part in splits.values() for i in part) == list(range(count))
    if count >= 3:
        assert all(splits.values())
    if count >= 5:
        assert {dataset.change_type(i, seed) for i in range(5)} == set(scenes.CHANGE_TYPES)


def test_scenes_that_change_their_split_are_counted(tmp_path: Path) -> None:
    """Keeps away: a captioner that is tested on what it learned from, and nobody who says so."""
    assert dataset.redealt(str(tmp_path), 200, 0) == 0, "nothing is there"
    before = dataset.splits(200, 0)
    (tmp_path / "splits.json").write_text(json.dumps(before))
    assert dataset.redealt(str(tmp_path), 200, 0) == 0
    after = dataset.splits(400, 0)
    moved = sum(len(set(before[name]) - set(after[name])) for name in before)
    assert dataset.redealt(str(tmp_path), 400, 0) == moved > 20


def test_nothing_is_said_of_scenes_in_a_folder_that_is_refused(tmp_path: Path) -> None:
    """Keeps away: "55 scenes leave their split" of a folder that stays as it is."""
    (tmp_path / "splits.json").write_text(json.dumps(dataset.splits(200, 0)))
    settings_there = {"version": dataset.VERSION, **asdict(dataset.Settings(size=112))}
    (tmp_path / "synth.json").write_text(json.dumps(settings_there))
    done = commands.cc_prep("synth", tmp_path, "--scenes", 400)
    assert done.returncode == 2
    assert "made with other settings (size)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_renderer_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: "a renderer was killed" where the extra was not installed."""
    monkeypatch.setattr(dataset.importlib.util, "find_spec", lambda name: None)
    root = tmp_path / "scenes"
    with pytest.raises(UserError, match=r"Mitsuba 3.*is not installed"):
        list(dataset.make(str(root), 2, dataset.Settings(), workers=1))
    assert not root.exists()


def several(seed: int, jitter: float = 1.0) -> scenes.Scene:
    """A scene with two to four changes."""
    options = dataset.Settings(seed=seed, jitter=jitter, min_changes=2, max_changes=4)
    further = dataset.further_types(0, options)
    for attempt in range(300):
        rng = np.random.default_rng([seed, attempt])
        scene = scenes.sample(rng, 0, dataset.change_type(0, seed), jitter, further)
        if scene is not None:
            return scene
    raise AssertionError("no scene in 300 tries")


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_several_changes_are_of_different_objects_and_no_others(seed: int) -> None:
    """Keeps away: a change that is said twice, one that nothing says, and two that are one move."""
    scene = several(seed)
    changes = {one.changed: one.change for one in scene.each()}
    assert 2 <= len(changes) == len(scene.each()) <= 4
    for there in (scene.before, scene.after):
        assert 3 <= sum(solid is not None for solid in there) <= 7
    for number, (one, other) in enumerate(zip(scene.before, scene.after, strict=True)):
        assert (one == other) == (number not in changes)
    like = [
        [replace(solid, x=0, y=0, turn=0) for n in changes if (solid := side[n]) is not None]
        for side in (scene.before, scene.after)
    ]
    both = sum(scene.before[n] is not None and scene.after[n] is not None for n in changes)
    moved = sum(kind == "move" for kind in changes.values())
    assert sum(one in like[1] for one in like[0]) <= min(both, moved)
    assert scene.reversed().reversed() == scene
    assert scenes.from_json(json.loads(json.dumps(scene.to_json()))) == scene


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_several_movers_do_not_collide(seed: int) -> None:
    """Keeps away: two objects that move through each other in the true frames."""
    before, after, _ = several(seed).moments
    for t in np.linspace(0, 1, 33):
        looks = [look for look in scenes.between(before, after, float(t)).looks if look]
        for i, a in enumerate(looks):
            for b in looks[:i]:
                assert np.hypot(a.x - b.x, a.y - b.y) > a.radius + b.radius + scenes.GAP - 0.2


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_texts_say_each_change_once(seed: int) -> None:
    scene = several(seed)
    for one in (scene, scene.reversed()):
        plain = grammar.plain_captions(one)
        rich = grammar.change_captions(one, np.random.default_rng(seed))
        for text in (*plain, *rich):
            claims = [parsing.parse(part) for _, part in parsing.statements(text)]
            assert all(claim.grammatical for claim in claims)
            assert sorted(str(claim.type) for claim in claims) == sorted(
                alone.change for alone in one.each()
            )


@given(SEEDS, CHANGES)
@settings(max_examples=40)
def test_a_camera_that_moves_far_keeps_its_distance(seed: int, change: str) -> None:
    """Keeps away: a camera below the floor, or so near that objects are beside the image."""
    scene, _ = sampled(seed, change, 5.0)
    for moment in scene.moments:
        assert moment.camera[2] >= scenes.LOWEST_CAMERA
        assert 8 < np.linalg.norm(np.subtract(moment.camera, scenes.TARGET)) < 13
    reached = {moment.lights for moment in scene.moments}
    assert all(light[2] > 4 for lights in reached for light in lights)


def test_a_folder_of_several_changes(tmp_path: Path) -> None:
    """Keeps away: masks, facts and captions of one of the changes alone."""
    root = tmp_path / "synth"
    options = dataset.Settings(
        seed=2, size=48, samples=1, wording="plain", min_changes=2, max_changes=3
    )
    commands.render(root, 3, options)
    facts = json.loads((root / "facts.json").read_text())["change"]
    texts = json.loads((root / "change_captions.json").read_text())
    assert len(json.loads((root / "type_mapping.json").read_text())["several"]) == 3
    for number, (name, value) in enumerate(facts.items()):
        known = Facts.from_json(value)
        assert 2 <= len(known.changes) <= 3
        assert fact_scores.judge(texts[name][0], known, ()).exact
        assert fact_scores.judge(known.reversed_captions[0], known.reversed(), ()).exact
        union, before, after = (
            np.asarray(Image.open(root / folder / f"{number:06d}.png")) > 0
            for folder in ("masks", "masks_before", "masks_after")
        )
        assert (union == (before | after)).all()
        for change in known.changes:
            for mask, one in ((before, change.before), (after, change.after)):
                if one is not None:
                    u, v = (int(48 * part) for part in one.location)
                    assert mask[max(0, v - 4) : v + 5, max(0, u - 4) : u + 5].any()
    with pytest.raises(UserError, match="max_changes"):
        list(dataset.make(str(root), 3, replace(options, max_changes=4)))


def test_changes_are_a_number_or_a_range(tmp_path: Path) -> None:
    for value in ("0", "5", "3..2", "1-2", "two"):
        result = commands.cc_prep("synth", str(tmp_path / "none"), "--changes", value)
        assert result.returncode == 2
        assert "1..4" in result.stderr


def test_one_change_has_the_scenes_that_it_had() -> None:
    """Keeps away: other scenes for the same seed, since more than one change can be asked for."""
    listed = [sampled(seed, kind)[0].to_json() for seed in (1, 2) for kind in scenes.CHANGE_TYPES]
    rounded = json.dumps(listed, default=str)
    rounded = re.sub(r"(\.\d{6})\d+", r"\1", rounded)
    assert hashlib.sha256(rounded.encode()).hexdigest()[:16] == "9744fb76552483d0"
