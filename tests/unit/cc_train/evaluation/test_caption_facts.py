"""A caption of a rendered pair is right or wrong, fact by fact, and so are the counts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.datasets.layouts import clevr_change
from cc_prep.errors import UserError
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth import facts as scene_facts
from cc_prep.synth import grammar, scenes
from cc_prep.synth.facts import attributes as solid
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco
from cc_train.evaluation.evaluation_files import FactScores, Share, checked, wilson
from cc_train.evaluation.rendered import change_scores, fact_scores
from cc_train.evaluation.rendered.change_scores import Matched
from cc_train.evaluation.rendered.fact_scores import judge, true_values

RED = solid("red", "cube", "metal", "small", (0.5, 0.5))
BLUE = solid("blue", "cube", "metal", "small", (0.5, 0.5))
PAINTED, MOVED = Facts("color", RED, BLUE), Facts("move", RED, RED)
ADDED, STILL = Facts("add", None, RED), Facts("none")
SHORT = ["the red cube turned blue", "the tiny block became blue"]


def outcomes(caption: str, facts: Facts) -> dict[str, str]:
    """By fact, those that are right left out."""
    listed = judge(caption, facts, ()).outcomes
    return {name: outcome for name, outcome in listed.items() if outcome != "right"}


def test_what_is_to_be_said() -> None:
    assert true_values(STILL) == {"type": "none"}
    assert true_values(ADDED) == {
        "type": "add", "color": "red", "shape": "cube", "material": "metal", "size": "small"
    }  # fmt: skip
    assert true_values(PAINTED)["color"] == "red"
    assert true_values(PAINTED)["new"] == "blue"
    assert true_values(Facts("material", RED, BLUE))["new"] == "metal"


@pytest.mark.parametrize(
    ("caption", "facts", "expected"),
    [
        ("the tiny red shiny block turned blue", PAINTED, {}),
        ("the tiny red shiny block turned red", PAINTED, {"new": "wrong"}),
        ("the tiny red shiny block turned metal", PAINTED, {"type": "wrong", "new": "wrong"}),
        ("the tiny red block behind the large blue rubber ball moved", MOVED,
         {"material": "not said"}),
        ("the big blue rubber ball appeared", ADDED,
         dict.fromkeys(("color", "shape", "material", "size"), "wrong")),
        ("nothing changed", MOVED, {"type": "wrong"} | dict.fromkeys(
            ("color", "shape", "material", "size"), "not said")),
        ("nothing changed", STILL, {}),
        ("the red cube moved", STILL, {"type": "wrong"}),
        ("what a day", STILL, {"type": "not said"}),
    ],
)  # fmt: skip
def test_each_fact_has_an_outcome(caption: str, facts: Facts, expected: dict[str, str]) -> None:
    assert outcomes(caption, facts) == expected


@pytest.mark.parametrize(
    ("caption", "references", "exact"),
    [
        ("the red cube turned blue", SHORT, True),
        ("the small cube turned blue", SHORT, True),
        ("the tiny red shiny block turned blue", SHORT, True),
        ("the shiny cube turned blue", SHORT, False),  # no reference singles it out so
        ("the red rubber cube turned blue", SHORT, False),
        ("the red cube changed", SHORT, False),
        ("the red cube moved", SHORT, False),
        ("the red cube turned blue", ["it went blue"], False),  # all attributes where none is ours
        ("the tiny red shiny block turned blue", ["it went blue"], True),
        ("the tiny red shiny block turned blue", [], True),
    ],
)
def test_exact_asks_for_what_a_reference_says(
    caption: str, references: list[str], exact: bool
) -> None:
    """Keeps away: a short true caption counted as wrong, or one that fits several objects as right.

    In rich wording references leave out what does not single the object out.
    """
    assert judge(caption, PAINTED, references).exact == exact


def test_looks_that_fit_one_object_are_enough() -> None:
    """Keeps away: a caption that singles its object out, in other words than the references."""
    others = (
        solid("red", "sphere", "rubber", "large", (0, 0)),
        solid("gray", "cube", "rubber", "small", (0, 0)),
    )
    scene = Facts("color", RED, BLUE, (RED, *others), (BLUE, *others))
    assert judge("the shiny cube turned blue", scene, SHORT).exact
    assert judge("the metal thing turned blue", scene, SHORT).exact
    assert not judge("the cube turned blue", scene, SHORT).exact, "there are two"
    assert not judge("it turned blue", scene, SHORT).exact
    assert not judge("the shiny cube turned", scene, SHORT).exact, "into what?"


def test_another_object_s_change_is_not_exact() -> None:
    """Keeps away: a captioner that names two objects, one of which will be the right one."""
    verdict = judge("the small red metal cube moved and the large blue ball moved", MOVED, ())
    assert not verdict.exact
    assert verdict.outcomes["color"] == "wrong"


def test_two_types_are_a_wrong_one() -> None:
    verdict = judge("the red cube moved and the red cube disappeared", MOVED, ())
    assert verdict.outcomes["type"] == "wrong"
    assert verdict.claimed == "several"


def test_two_types_say_that_something_changed() -> None:
    """Keeps away: a caption of an unchanged pair that claims two changes, counted as not said."""
    both = "the red cube moved and the red cube disappeared"
    cases = ((both, STILL), (both, MOVED), ("hm", STILL), ("nothing changed", STILL))
    scores = fact_scores.count(judge(caption, facts, ()) for caption, facts in cases)
    assert scores.unchanged_pairs == Share.of_right(1, 3, not_said=1)
    assert scores.changed_pairs == Share.of_right(1, 1)
    assert scores.shares["type"] == Share.of_right(0, 1)
    assert scores.confusion == {
        "none": {"several": 1, "not recognised": 1, "none": 1}, "move": {"several": 1}
    }  # fmt: skip
    columns = fact_scores.claimed_types(scores.confusion)
    assert columns == ["none", "move", "several", "not recognised"]
    assert "| none | 1 |  | 1 | 1 |" in fact_scores.table(scores, 4)


def test_figures_over_no_pairs_are_left_out() -> None:
    """Keeps away: 0 % exact of changed pairs, of which there were none."""
    scores = fact_scores.count([judge("nothing changed", STILL, ())])
    groups = fact_scores.by_group(scores)
    assert groups["total"] == {}
    assert groups["no change"] == {"told apart": 100}


def test_a_new_value_where_there_is_none_is_not_exact() -> None:
    assert judge("the tiny red metal cube was added", ADDED, ()).exact
    verdict = judge("a tiny red metal cube was added and turned blue", ADDED, ())
    assert verdict.outcomes["type"] == "right"
    assert not verdict.exact


@given(st.integers(0, 10**6), st.sampled_from(scenes.CHANGE_TYPES))
@settings(max_examples=200)
def test_every_reference_is_exact(seed: int, change: str) -> None:
    """Keeps away: a ceiling below 100 % for captions that are references of their pairs."""
    rng = np.random.default_rng(seed)
    scene = scenes.sample(rng, seed, change)
    references = grammar.change_captions(scene, rng) if scene else []
    if scene is None or not references:
        return
    facts = scene_facts.of_scene(scene)
    for reference in references:
        verdict = judge(reference, facts[CHANGE], references)
        assert verdict.exact, reference
        assert "wrong" not in verdict.outcomes.values()
        assert not judge(reference, facts[NO_CHANGE], references).exact
    plain = grammar.plain_caption(scene)
    assert set(judge(plain, facts[CHANGE], [plain]).outcomes.values()) == {"right"}


CASES = [
    ("the small red metal cube turned blue", PAINTED),
    ("the small red metal cube turned green", PAINTED),
    ("the small red cube moved", MOVED),
    ("nothing changed", MOVED),
    ("hm", ADDED),
    ("nothing changed", STILL),
    ("the red cube moved", STILL),
    ("nothing changed", STILL),
]
SCORES = fact_scores.count(judge(caption, facts, ()) for caption, facts in CASES)


def test_counts() -> None:
    share = Share.of_right
    assert SCORES.changed_pairs == share(3, 5, not_said=1)
    assert SCORES.unchanged_pairs == share(2, 3)
    assert SCORES.shares["type"] == share(3, 5, 1)
    assert SCORES.shares["material"] == share(2, 5, 3)
    assert SCORES.shares["new value"] == share(1, 2)
    assert SCORES.exact_by_type == {"color": share(1, 2), "add": share(0, 1), "move": share(0, 2)}
    assert SCORES.confusion == {
        "none": {"none": 2, "move": 1}, "color": {"color": 2}, "add": {"not recognised": 1},
        "move": {"move": 1, "none": 1},
    }  # fmt: skip


def test_told_apart_is_the_mean_recall() -> None:
    """Keeps away: “nothing changed” of all pairs that seems right about more than a half."""
    apart = SCORES.told_apart
    assert apart is not None
    assert apart.share == pytest.approx((3 / 5 + 2 / 3) / 2)
    assert 0 < apart.low < apart.share < apart.high < 1
    silent = [judge("nothing changed", facts, ()) for _, facts in CASES]
    assert fact_scores.count(silent).told_apart.share == 0.5  # type: ignore[union-attr]
    changed = [verdict for verdict in silent if verdict.type != "none"]
    assert fact_scores.count(changed).told_apart is None


def test_wilson_intervals() -> None:
    """Against published values (Newcombe 1998, Statistics in Medicine 17, table I, method 3)."""
    for right, pairs, expected in (
        (81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0000, 0.1611)), (1, 29, (0.0061, 0.1718)),
    ):  # fmt: skip
        assert wilson(right / pairs, pairs) == pytest.approx(expected, abs=5e-5)
    nothing = Share.of_right(0, 0)
    assert (nothing.share, nothing.low, nothing.high) == (0, 0, 1)


def test_groups_of_a_comparison() -> None:
    groups = fact_scores.by_group(checked(FactScores, json.loads(json.dumps(SCORES.to_json()))))
    assert groups["total"] == pytest.approx(
        {"told apart": 100 * (3 / 5 + 2 / 3) / 2, "type": 60, "exact": 20}
    )
    assert groups["no change"] == pytest.approx({"told apart": 200 / 3})
    assert groups["color"] == {"type": 100, "exact": 50}
    assert groups["move"] == {"type": 50, "exact": 0}


def test_the_table_leads_with_facts() -> None:
    table = fact_scores.table(SCORES, 10)
    lines = table.splitlines()
    assert lines[2].startswith("| told apart | 63.3 |")
    assert "| new value | 50.0 | 9.5 … 90.5 |  | 1 | 1 | 0 | 2 |" in lines
    assert lines.index("") < next(n for n, line in enumerate(lines) if "| none | 2 |" in line)
    assert (
        next(line for line in lines if line.startswith("| material |")).split(" | ")[3] == "100.0"
    )
    assert "8 of 10 pairs have facts." in table
    columns = {line.count("|") for line in lines[: lines.index("")]}
    assert len(columns) == 1
    assert len({line.count("|") for line in lines[lines.index("") + 1 :] if "|" in line}) == 1


METAS = [
    {"key": f"k{number}", "image_id": f"{number:06d}.png{end}", "kind": kind, "facts": None,
     "change_type": "color" if kind == CHANGE else None, "captions": [caption]}
    for number in range(2)
    for kind, end, caption in (
        (CHANGE, "", "the red cube turned blue"), (NO_CHANGE, "_n", "nothing changed"))
]  # fmt: skip


def facts_file(folder: Path, change: Facts = PAINTED, count: int = 2) -> str:
    names = [f"CLEVR_default_{number:06d}.png" for number in range(count)]
    content = {kind: {name: facts.to_json() for name in names}
               for kind, facts in ((CHANGE, change), (NO_CHANGE, STILL))}  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(content))
    return str(folder / "facts.json")


def test_facts_stand_first_in_what_is_written(tmp_path: Path) -> None:
    items = coco.items([{**m, "key": m["image_id"]} for m in METAS])
    items = fact_scores.with_facts(items, facts_file(tmp_path))
    predictions = {item.id: "nothing changed" for item in items}
    scores = evaluation.evaluate(items, predictions, ["CIDEr"])
    evaluation.write(tmp_path / "out", scores, items, predictions)
    content = json.loads((tmp_path / "out/scores.json").read_text())
    assert next(iter(scores.to_json())) == "facts"
    assert content["facts"]["told apart"]["share"] == 0.5
    assert (tmp_path / "out/table.md").read_text().startswith("| facts ")
    rows = [json.loads(line) for line in (tmp_path / "out/items.jsonl").read_text().splitlines()]
    assert [row["exact"] for row in rows] == [False, True, False, True]
    assert Facts.from_json(rows[0]["facts"]) == PAINTED
    assert rows[1]["outcomes"] == {"type": "right"}


def test_pairs_without_facts_have_no_such_figures() -> None:
    items = coco.items([{**m, "key": m["image_id"]} for m in METAS])
    scores = evaluation.evaluate(items, {item.id: "x" for item in items}, ["CIDEr"])
    assert scores.rendered is None
    assert "facts" not in scores.to_json()
    assert evaluation.table(scores).split()[:4] == ["|", "|", "pairs", "|"]


@pytest.mark.parametrize(
    "ids",
    [["000001.png", "000001.png_n"], ["000001", "000001_n"],
     ["CLEVR_default_000001.png", "000001.pngnc"], ["000001c", "000001nc"]],
)  # fmt: skip
def test_facts_are_found_by_the_names_of_systems(tmp_path: Path, ids: list[str]) -> None:
    items = [coco.Item(id, ("x",)) for id in ids]
    with_facts = fact_scores.with_facts(items, facts_file(tmp_path))
    assert [item.facts for item in with_facts] == [PAINTED, STILL]


def test_facts_of_other_pairs_are_refused(tmp_path: Path) -> None:
    """Keeps away: captions judged by the scenes of another data set, whose ids are the same."""
    items = coco.items(METAS)
    with pytest.raises(UserError, match=r"no facts of 2 of 4 pairs .*'000001.png'"):
        fact_scores.with_facts(items, facts_file(tmp_path, count=1))
    with pytest.raises(UserError, match=r"000000.png is 'move' there and 'color' in the ref"):
        fact_scores.with_facts(items, facts_file(tmp_path, MOVED))
    with pytest.raises(UserError, match="'no change' there and 'semantic change' in the"):
        fact_scores.with_facts(
            [coco.Item("000000.png_n", ("x",), (coco.CHANGE,))], facts_file(tmp_path)
        )
    (tmp_path / "facts.json").write_text('{"change": {}, "no_change": {}}')
    with pytest.raises(UserError, match="no facts of 4 of 4"):
        fact_scores.with_facts(items, str(tmp_path / "facts.json"))
    with pytest.raises(UserError, match=r"nowhere\.json"):
        fact_scores.with_facts(items, str(tmp_path / "nowhere.json"))
    with pytest.raises(UserError, match="k0: 'x' is no type of change"):
        coco.items([{**METAS[0], "facts": {**STILL.to_json(), "type": "x"}}])


def test_types_and_facts_go_together(tmp_path: Path) -> None:
    items = fact_scores.with_facts(coco.items(METAS), facts_file(tmp_path))
    (tmp_path / "types.json").write_text(json.dumps({"color": ["000000.png", "000001.png"]}))
    assert [i.facts for i in coco.with_types(items, str(tmp_path / "types.json"))] == [
        PAINTED, STILL, PAINTED, STILL
    ]  # fmt: skip


def test_the_rendered_file(synth_root: Path) -> None:
    facts = clevr_change.facts_by_image_id(str(synth_root / "facts.json"))
    assert list(facts)[:1] == ["000000.png"]
    assert facts["000003.png_n"].type == STILL.type
    types = json.loads((synth_root / "type_mapping.json").read_text())
    assert all(facts[name].type == kind for kind, names in types.items() for name in names)


TWO = Facts.of_changes([*MOVED.changes, *ADDED.changes], MOVED.objects_before, ADDED.objects_after)


@pytest.mark.parametrize(
    ("caption", "claimed", "right"),
    [
        ("the small red metal cube moved. the small red metal cube appeared", 2, 2),
        ("The small red metal cube was added, and the tiny red metal cube moved.", 2, 2),
        ("the small red metal cube moved", 1, 1),
        ("the small red metal cube moved. the small red metal cube moved", 2, 1),
        ("the large red metal cube moved. the small red metal cube appeared. hm", 3, 1),
        ("nothing changed", 0, 0),
        ("", 0, 0),
    ],
)
def test_changes_are_matched_with_sentences(caption: str, claimed: int, right: int) -> None:
    """Keeps away: two sentences that are right of one change, and one counted for both."""
    verdict = judge(caption, TWO, ())
    assert verdict.changes == Matched(2, claimed, right)
    assert verdict.exact == (claimed == right == 2)


def test_precision_and_recall_of_changes() -> None:
    """Keeps away: false alarms on unchanged pairs that cost no precision."""
    cases = ((TWO, "the small red metal cube moved"), (STILL, "the small red metal cube moved"))
    scores = fact_scores.count(judge(caption, facts, ()) for facts, caption in cases).to_json()
    changes = scores["changes"]
    assert (changes["precision"], changes["recall"], changes["F1"]) == (0.5, 0.5, 0.5)
    assert changes["by number"]["0"]["claimed"] == 1
    assert changes["by number"]["2"]["recall"] == 0.5
    assert "changes" not in SCORES.to_json()


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=4))
def test_the_matching_is_as_large_as_any(fits: list[list[bool]]) -> None:
    found = change_scores.match(fits)
    assert all(fits[row][column] for column, row in found.items())
    assert len(set(found.values())) == len(found)
    columns = [*range(3), *[None] * len(fits)]
    best = max(
        sum(c is not None and fits[r][c] for r, c in enumerate(chosen))
        for chosen in itertools.permutations(columns, len(fits))
    )
    assert len(found) == best
