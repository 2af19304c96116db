"""Captions are read back as what the scenes' facts say, and strangers' captions do no harm."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep import caption_normalization
from cc_prep.records import CHANGE, NO_CHANGE
from cc_prep.synth import facts, grammar, parsing, scenes

SEEDS = st.integers(0, 10**6)
CHANGES = st.sampled_from(scenes.CHANGE_TYPES)
ATTRIBUTES = grammar.FEATURES


def sampled(seed: int, change: str) -> tuple[scenes.Scene, np.random.Generator]:
    """A scene whose change can be said, and the generator for its captions."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        scene = scenes.sample(rng, seed, change)
        if scene is not None:
            there = scene.after if change == "add" else scene.before
            if grammar.referring_expressions(there, scene.changed):
                return scene, rng
    raise AssertionError("no scene in 100 tries")


def variants(caption: str) -> set[str]:
    """The caption as it may come through normalisation and a word vocabulary."""
    steps = list(caption_normalization.STEPS)
    [normal] = caption_normalization.normalize([f"{caption}. "], steps)
    return {caption, normal, caption.capitalize() + ".", caption.replace(",", " ,"), f" {caption}!"}


def values(claims: parsing.Claims) -> dict[str, str]:
    names = ("type", *ATTRIBUTES, "new")
    return {name: value for name in names if (value := claims.value(name)) is not None}


@given(SEEDS, CHANGES)
@settings(max_examples=500)
def test_every_caption_of_a_scene_claims_its_facts(seed: int, change: str) -> None:
    """Keeps away: a sentence of the grammar, in either wording, that is judged wrong."""
    scene, rng = sampled(seed, change)
    true = facts.of_scene(scene)[CHANGE]
    attributes = true.after if change == "add" else true.before
    expected = {"type": change} | {name: attributes[name] for name in ATTRIBUTES}
    if change in parsing.NEW_FEATURES:
        expected["new"] = true.after[change]
    plain = grammar.plain_caption(scene)
    for sentence in (*grammar.change_captions(scene, rng), plain):
        for variant in variants(sentence):
            claims = parsing.parse(variant)
            claimed = values(claims)
            assert claims.grammatical, variant
            assert claimed.items() <= expected.items(), variant
            assert {"type", "shape"} <= claimed.keys()
            assert ("new" in claimed) == ("new" in expected)
    assert values(parsing.parse(plain)) == expected


def test_sentences_about_no_change() -> None:
    """Keeps away: an unchanged pair whose own reference is judged wrong."""
    sentences = [*grammar.no_change_captions(np.random.default_rng(0), 10)]
    assert set(sentences) == set(grammar.NO_CHANGE_SENTENCES)
    assert facts.of_scene(sampled(0, "add")[0])[NO_CHANGE].type == parsing.UNCHANGED
    for sentence in (*sentences, grammar.PLAIN_NO_CHANGE):
        for variant in variants(sentence):
            assert values(parsing.parse(variant)) == {"type": "none"}
            assert parsing.parse(variant).grammatical


FEATURE_WORDS = {
    feature: [None, *(word for word, (of, _) in parsing.ATTRIBUTE_WORDS.items() if of == feature)]
    for feature in ATTRIBUTES
}


@given(
    st.sampled_from(parsing.TEMPLATES),
    *(st.sampled_from(FEATURE_WORDS[feature]) for feature in ATTRIBUTES[:-1]),
    st.sampled_from(FEATURE_WORDS["shape"][1:]),
    st.sampled_from([None, *grammar.RELATIONS]),
    st.sampled_from(list(scenes.COLORS)),
    st.sampled_from(scenes.MATERIALS),
)
@settings(max_examples=1000)
def test_exactly_what_is_said_is_claimed(
    template: tuple[str, str],
    size: str | None,
    color: str | None,
    material: str | None,
    noun: str,
    relation: str | None,
    new_color: str,
    new_material: str,
) -> None:
    """Keeps away: a feature that is invented, lost, or taken from the landmark."""
    kind, words = template
    attributes = [word for word in (size, color, material, noun) if word is not None]
    landmark = f" {relation} the large cyan metal sphere" if relation else ""
    new = new_material if kind == "material" else new_color
    caption = words.format(it=" ".join(attributes) + landmark, new=new)
    expected = {"type": kind}
    if kind != "none":
        expected.update(parsing.ATTRIBUTE_WORDS[word] for word in attributes)
    if kind in parsing.NEW_FEATURES:
        expected["new"] = new
    assert values(parsing.parse(caption)) == expected
    marks = parsing.parse(caption).marks
    assert any(mark.fact == "type" for mark in marks) or "new" in expected
    for mark in marks:
        word = caption[mark.start : mark.end]
        assert mark.fact == "type" or parsing.ATTRIBUTE_WORDS[word][1] == mark.value


def test_the_tables_are_whole() -> None:
    """Keeps away: a word or a sentence that is added to the grammar and not read back."""
    assert {value for _, value in parsing.ATTRIBUTE_WORDS.values()} == {
        *scenes.SHAPES, *scenes.SIZES, *scenes.COLORS, *scenes.MATERIALS
    }  # fmt: skip
    assert {kind for kind, _ in parsing.TEMPLATES} == {"none", *scenes.CHANGE_TYPES}
    assert set(parsing.CUES.values()) == {"none", *scenes.CHANGE_TYPES}
    one_word = [word for words in (*grammar.NOUNS.values(), *grammar.ADJECTIVES.values())
                for word in words]  # fmt: skip
    assert len(one_word) == len(set(one_word)), "a word with two meanings"


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A red cube has been removed from the scene.", "type=drop color=red shape=cube"),
        ("the cube between the red ball and the blue block moved", "type=move shape=cube"),
        ("next to the red ball, a tiny grey cylinder was added",
         "type=add size=small color=gray shape=cylinder"),
        ("the small ball turned into shiny", "type=material size=small shape=sphere new=metal"),
        ("between the red ball and the blue block, a cube appeared", "type=add shape=cube"),
        ("red, moved to", "type=move color=red"),
        ("they painted the tiny cube blue", "type=color size=small shape=cube new=blue"),
        ("the red block changed from red to blue", "type=color color=red shape=cube new=blue"),
        ("the red blue cube moved", "type=move color=several shape=cube"),
        ("the ball became red blue", "type=color shape=sphere new=several"),
        ("the cube was moved and the ball removed", "type=several shape=several"),
        ("the small red cube moved and the large blue ball moved",
         "type=move size=several color=several shape=several"),
        ("the red cube moved and the red cube behind the ball", "type=move color=red shape=cube"),
        ("nothing moved", "type=none"),
        ("the red cube moved, nothing else changed", "type=move color=red shape=cube"),
        ("the red cube moved and no other object did", "type=move color=red shape=cube"),
        ("the red cube moved closer to the blue ball", "type=move color=red shape=cube"),
        ("the red cube moved away from the blue ball", "type=move color=red shape=cube"),
        ("the red cube appeared beside the blue ball and the green cylinder",
         "type=add color=red shape=cube"),
        ("no object has moved", "type=none"),
        ("nothing was added", "type=none"),
        ("the scene has not changed", "type=none"),
        ("the red cube hasn't moved", "color=red shape=cube"),
        ("the red cube is no longer on the table", "type=drop color=red shape=cube"),
        ("the red cube has a new color", "type=color color=red shape=cube"),
        ("the red cube moved to a new place", "type=move color=red shape=cube"),
        ("the small red cube moved to a new position", "type=move size=small color=red shape=cube"),
        ("the red cube moved to a new spot", "type=move color=red shape=cube"),
        ("the red cube is in a new position", "color=red shape=cube"),
        ("the red cube is missing in the new image", "type=drop color=red shape=cube"),
        ("a new red cube is in the scene", "type=add color=red shape=cube"),
        ("a new cube is in the scene", "type=add shape=cube"),
        ("a new small red cube is in the scene", "type=add size=small color=red shape=cube"),
        ("new red is in the scene", "color=red"),
        ("it turned into a red one", "color=red"),
        ("the red cube in the second image is new", "type=add color=red shape=cube"),
        ("the red cube moved away", "type=move color=red shape=cube"),
        ("the red cube moved further away", "type=move color=red shape=cube"),
        ("the red cube has been taken away from it", "type=drop color=red shape=cube"),
        ("the red cube has been placed in a different location", "color=red shape=cube"),
        ("the red cube was placed elsewhere", "type=move color=red shape=cube"),
        ("the red cube is no longer in its original place", "color=red shape=cube"),
        ("the red cube is no longer behind the ball", "color=red shape=cube"),
        ("the cube is no longer red", "shape=cube"),
        ("the red cube is no longer visible", "type=drop color=red shape=cube"),
        ("the cube of red color moved", "type=move shape=cube"),
        ("the red cube changed color", "type=color color=red shape=cube"),
        ("the blue ball moved to the right side of the red cube",
         "type=move color=blue shape=sphere"),
        ("the blue ball adjacent to the red cube moved", "type=move color=blue shape=sphere"),
        ("the blue ball by the red cube moved", "type=move color=blue shape=sphere"),
        ("the blue ball to the left of the other red cube moved",
         "type=move color=blue shape=sphere"),
        ("the ball behind that small red cube moved", "type=move shape=sphere"),
        ("the ball in front of the gray-colored cube moved", "type=move shape=sphere"),
        ("the red cube turned into a blue cube", "type=color color=red shape=cube new=blue"),
        ("the small red cube was replaced by a small blue cube",
         "type=color size=small color=red shape=cube new=blue"),
        ("the red cube is now a blue metal block", "type=color color=red shape=cube new=blue"),
        ("the small cube became a metal cube", "type=material size=small shape=cube new=metal"),
        ("the cube became a blue metal cube", "shape=cube"),
        ("the red rubber cube became a blue metal cube",
         "type=several color=red material=rubber shape=cube new=several"),
        ("the small red cube became a large blue cube",
         "type=color size=several color=red shape=cube new=blue"),
        ("the red cube was replaced by a blue ball", "color=several shape=several"),
        ("the red cube was replaced by the blue ball", "color=several shape=several"),
        ("the red cube moved to the blue cube", "type=move color=several shape=cube"),
        ("there is now a red cube", "color=red shape=cube"),
        ("the red cube was replaced by a blue one", "type=color color=red shape=cube new=blue"),
        ("the cube made of metal moved", "type=move shape=cube"),
        ("the cube made of metal turned blue", "type=color shape=cube new=blue"),
        ("the red cube did not move", "color=red shape=cube"),
        ("the only change is the red cube", "color=red shape=cube"),
        ("i see no difference at all", "type=none"),
        ("the red thing disappeared", "type=drop color=red"),
        ("the object is behind the red ball now", ""),
        ("", ""),
        ("🟥 → 🟦 \x00 {it} (?P<", ""),
    ],
)  # fmt: skip
def test_captions_of_others(caption: str, expected: str) -> None:
    """Keeps away: a landmark's looks, or a guess, taken for what the caption claims."""
    claims = parsing.parse(caption)
    assert values(claims) == dict(part.split("=") for part in expected.split())
    assert not claims.grammatical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cube moved. The ball turned red!", ["the cube moved", " The ball turned red"]),
        ("the cube moved and the ball disappeared", ["the cube moved ", " the ball disappeared"]),
        ("the cube moved, and it is red", ["the cube moved, and it is red"]),
        ("the red cube and the ball moved", ["the red cube and the ball moved"]),
        (" . ", []),
    ],
)
def test_sentences_and_clauses_that_claim_a_change_each(text: str, expected: list[str]) -> None:
    """Keeps away: a caption of two changes that is judged as one of several types."""
    parts = parsing.statements(text)
    assert [part for _, part in parts] == expected
    assert all(text[start:].startswith(part) for start, part in parts)


VOCABULARY = sorted(
    {*parsing.ATTRIBUTE_WORDS, *parsing.CUES, *parsing.FILLERS, *parsing.NEGATIONS,
     *itertools.chain.from_iterable(r.split() for r in parsing.OTHER_RELATIONS), ",", "."}
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.sampled_from(VOCABULARY), max_size=25).map(" ".join)))
@settings(max_examples=500)
def test_no_text_is_an_error(caption: str) -> None:
    """Keeps away: an evaluation that ends at a captioner's gibberish."""
    claims = parsing.parse(caption)
    ends = [0, *itertools.chain.from_iterable((mark.start, mark.end) for mark in claims.marks)]
    assert ends == sorted(ends), "marks overlap"
    assert all(claims.value(name) != "" for name in ("type", *ATTRIBUTES, "new"))


def test_a_long_caption_takes_no_time() -> None:
    """Keeps away: patterns that backtrack through ten thousand characters."""
    assert parsing.parse("the small red " * 1000).type is None
