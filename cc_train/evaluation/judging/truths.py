"""Captions whose truth is known: of what truly changed, and of changes that did not happen.

They are made of the facts of rendered or composed pairs. A judge reads no images, so scenes are
drawn and not rendered. The list of differences has the plain wording of a data set and the captions
the rich one, so that a judge has to understand that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cc_prep.composites import sentences
from cc_prep.records import CHANGE, NO_CHANGE, Facts, ObjectAttributes
from cc_prep.synth import facts as scene_facts
from cc_prep.synth import grammar, scenes
from cc_prep.synth.parsing import NEW_FEATURES, UNCHANGED

RIGHT = "right"
WORD, OBJECT, TYPE = "one word wrong", "another object", "another change"
NOTHING, ORDER, MORE = "nothing changed", "order swapped", "one change too many"
QUIET, ALARM = "unchanged, said so", "unchanged, a change said"
REVERSED, SAME = "reversed", "not reversed"  # what the caption of the swapped pair is
KINDS = (RIGHT, WORD, OBJECT, TYPE, NOTHING, ORDER, MORE, QUIET, ALARM)
VALUES: Mapping[str, Sequence[str]] = {
    "color": tuple(scenes.COLORS),
    "shape": scenes.SHAPES,
    "material": scenes.MATERIALS,
    "size": tuple(scenes.SIZES),
}
OTHER_TYPES = ("add", "drop")  # which need nothing new of an object
REFERENCES = 3  # sentences that are shown as the truth


@dataclass(frozen=True)
class Known:
    """A caption of a pair with facts.

    Attributes:
        kind: One of KINDS.
        references: True sentences about the pair, in other words than the caption's.
        swapped: A caption of (after, before), by REVERSED and SAME; empty where it would say the
            same as the caption.
    """

    pair: str
    kind: str
    caption: str
    facts: Facts
    references: tuple[str, ...]
    swapped: Mapping[str, str]


def differences(facts: Facts) -> tuple[str, ...]:
    """All that differs by the facts of a pair, each as a plain sentence."""
    return tuple(
        _plain(replace(facts, type=one.type, before=one.before, after=one.after, several=()))
        for one in facts.changes
    )


def drawn(count: int, seed: int) -> list[Facts]:
    """The facts of rendered scenes that nobody rendered: one unchanged pair a changed one."""
    listed: list[Facts] = []
    attempt = 0
    while len(listed) < count:
        rng = np.random.default_rng([seed, 7, attempt])
        index = len(listed) // 2
        scene = scenes.sample(rng, index, scenes.CHANGE_TYPES[index % len(scenes.CHANGE_TYPES)])
        attempt += 1
        if scene is None or not grammar.change_captions(scene, rng):
            continue
        by_kind = scene_facts.of_scene(scene)
        listed += [by_kind[CHANGE], by_kind[NO_CHANGE]]
    return listed[:count]


def known(pairs: Mapping[str, Facts], seed: int) -> list[Known]:
    """Captions of each kind about pairs, as far as a pair allows the kind.

    Args:
        pairs: Facts by the names of the pairs.
    """
    listed = []
    for number, (name, facts) in enumerate(sorted(pairs.items())):
        rng = np.random.default_rng([seed, 8, number])
        true = _rich(facts, rng, REFERENCES + 1)
        for kind, caption in _captions(facts, true[-1], rng):
            swapped = _swapped(facts, caption, rng) if kind == RIGHT else {}
            listed.append(Known(name, kind, caption, facts, tuple(true[:-1]), swapped))
    return listed


def _captions(facts: Facts, true: str, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Kinds and captions of a pair.

    Args:
        true: A right one.
    """
    if facts.type == UNCHANGED:
        yield QUIET, true
        alarm = _alarm(facts, rng)
        if alarm is not None:
            yield ALARM, _rich(alarm, rng)[0]
        return
    yield RIGHT, true
    for kind, wrong in (
        (WORD, _one_word(facts, rng)),
        (OBJECT, _another_object(facts, rng)),
        (TYPE, _another_type(facts, rng)),
        (ORDER, _order(facts)),
    ):
        if wrong is not None:
            yield kind, _rich(wrong, rng)[0]
    nothing = Facts(UNCHANGED, grammar=facts.grammar)
    yield NOTHING, _rich(nothing, rng)[0]
    more = _alarm(facts, rng)
    if more is not None:
        yield MORE, f"{true}, and {_rich(more, rng)[0]}"


def _swapped(facts: Facts, caption: str, rng: np.random.Generator) -> dict[str, str]:
    """Captions of (after, before) that say the reverse of a caption, and that do not."""
    order = _order(facts)
    return {} if order is None else {REVERSED: _rich(order, rng)[0], SAME: caption}


def _one_word(facts: Facts, rng: np.random.Generator) -> Facts | None:
    """The facts with one attribute of the object, or its new value, replaced by a wrong one."""
    ends = [end for end in (facts.before, facts.after) if end is not None]
    wrong = {}
    for name in ends[0].values if ends else ():
        there = [end[name] for end in ends]
        # Where it is not known what an object turned into, no value is sure to be wrong.
        values = [value for value in _others(facts, name, there[-1]) if value not in there]
        if there[-1] and values:
            wrong[name] = values
    if not wrong:
        return None
    name = [*wrong][int(rng.integers(len(wrong)))]
    value = {name: wrong[name][int(rng.integers(len(wrong[name])))]}
    is_new = len({end[name] for end in ends}) == 2  # then the object is right
    before = facts.before if is_new else _with(facts.before, value)
    return replace(facts, before=before, after=_with(facts.after, value))


def _others(facts: Facts, name: str, value: str) -> list[str]:
    """Other values of an attribute: of the renderer, or of what a composed pair shows."""
    if facts.grammar == "composites":
        if name == sentences.COLOR:
            known: Sequence[str] = tuple(sentences.COLORS)
        else:
            objects = (*facts.objects_before, *facts.objects_after)
            known = sorted({one[name] for one in objects} - {"", sentences.TEXT})
        return [one for one in known if one != value] if value != sentences.TEXT else []
    return [one for one in VALUES[name] if one != value]


def _another_object(facts: Facts, rng: np.random.Generator) -> Facts | None:
    """The same change of another object that the pair shows."""
    one = facts.before or facts.after
    if one is None or one[sentences.CLASS] == sentences.TEXT:
        return None
    others = _bystanders(facts)
    if not others:
        return None
    other = others[int(rng.integers(len(others)))]
    before, after = (
        None if end is None else replace(end, values=dict(other.values), location=end.location)
        for end in (facts.before, facts.after)
    )
    if facts.type in NEW_FEATURES and facts.after is not None and after is not None:
        # It gets the true new value, which it must not have already.
        if other[facts.type] == facts.after[facts.type]:
            return None
        after = _with(after, {facts.type: facts.after[facts.type]})
    elif facts.type == "replace" and facts.after is not None:
        after = facts.after
    return replace(facts, before=before, after=after)


def _another_type(facts: Facts, rng: np.random.Generator) -> Facts | None:
    """Another change of the same object."""
    one = facts.before or facts.after
    if one is None or one[sentences.CLASS] == sentences.TEXT:
        return None
    types = [kind for kind in OTHER_TYPES if kind != facts.type]
    kind = types[int(rng.integers(len(types)))]
    before, after = (None, one) if kind == "add" else (one, None)
    return replace(facts, type=kind, before=before, after=after)


def _order(facts: Facts) -> Facts | None:
    """The reverse of the change; None where it is said in the same words, as of a moved solid, or
    might be true, as of a color that is not known.
    """
    ends = (facts.before, facts.after)
    if facts.type == sentences.COLOR and not all(end and end[sentences.COLOR] for end in ends):
        return None
    reverse = facts.reversed()
    return None if _plain(reverse) == _plain(facts) else reverse


def _alarm(facts: Facts, rng: np.random.Generator) -> Facts | None:
    """The disappearance of an object that is still there; None where none is known."""
    others = _bystanders(facts)
    if not others:
        return None
    other = others[int(rng.integers(len(others)))]
    return Facts("drop", before=other, grammar=facts.grammar)


def _bystanders(facts: Facts) -> list[ObjectAttributes]:
    """Objects of the pair that look otherwise than the one that changed."""
    changed = [dict(end.values) for end in (facts.before, facts.after) if end is not None]
    objects = (*facts.objects_before, *facts.objects_after)
    there: list[ObjectAttributes] = []
    for one in objects:
        named = one.values.get(sentences.CLASS, "?") not in ("", sentences.TEXT)
        if named and dict(one.values) not in changed:
            there.append(one)
    return there


def _with(one: ObjectAttributes | None, values: Mapping[str, str]) -> ObjectAttributes | None:
    return None if one is None else replace(one, values={**one.values, **values})


def _plain(facts: Facts) -> str:
    """The plain sentence of a data set's wording that says the facts."""
    if facts.grammar == "composites":
        return sentences.plain(facts)
    if facts.type == UNCHANGED:
        return grammar.PLAIN_NO_CHANGE
    return grammar.PLAIN[facts.type].format(**_words(facts, None))


def _rich(facts: Facts, rng: np.random.Generator, count: int = 1) -> list[str]:
    """Up to `count` different sentences of the rich wording that say the facts."""
    if facts.grammar == "composites":
        return sentences.rich(facts, rng, count)
    if facts.type == UNCHANGED:
        return grammar.no_change_captions(rng, count)
    templates = grammar.SENTENCES[facts.type]
    chosen = rng.permutation(len(templates))[:count]
    return [templates[number].format(**_words(facts, rng)) for number in chosen]


def _words(facts: Facts, rng: np.random.Generator | None) -> dict[str, str]:
    """The object with all its attributes, and the new value; without dice the first of synonyms."""
    one = facts.before or facts.after
    assert one is not None

    def pick(words: Sequence[str]) -> str:
        return words[0] if rng is None else words[int(rng.integers(len(words)))]

    adjectives = grammar.ADJECTIVES
    noun = pick(grammar.NOUNS[one["shape"]])
    looks = [pick(adjectives[one["size"]]), one["color"], pick(adjectives[one["material"]]), noun]
    new = facts.after[facts.type] if facts.after and facts.type in NEW_FEATURES else ""
    return {"it": " ".join(looks), "new": new}
