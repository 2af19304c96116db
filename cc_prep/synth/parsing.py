"""What a caption claims: the grammar of `captions.py`, read backwards from its own tables.

A caption of the grammar gives exactly what it states. Of any other text as much is recognised as
the grammar's words allow: the looks of the object that the sentence is about, its new colour or
material, and the type of change by the words that the grammar uses for one type only. The looks of
a landmark ("behind the large red metal cube") are nobody's claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cc_prep.records import FACT_TYPES
from cc_prep.synth.captions import (
    ADJECTIVES,
    FEATURES,
    NO_CHANGE_SENTENCES,
    NOUNS,
    PLAIN,
    PLAIN_NO_CHANGE,
    RELATIONS,
    SENTENCES,
)
from cc_prep.synth.scenes import COLORS, SIZES

TYPE, NEW = "type", "new"
UNCHANGED = FACT_TYPES[0]
SEVERAL = "several"  # the value of a fact for which a caption gives more than one
NEW_FEATURES = ("color", "material")  # the types of change that have a new value

# Word → (feature, value).
LOOK_WORDS: dict[str, tuple[str, str]] = {
    **{word: ("shape", shape) for shape, words in NOUNS.items() for word in words},
    **{
        word: ("size" if value in SIZES else "material", value)
        for value, words in ADJECTIVES.items()
        for word in words
    },
    **{color: ("color", color) for color in COLORS},
}
# (type of change, sentence without punctuation)
TEMPLATES: tuple[tuple[str, str], ...] = tuple(
    (kind, re.sub(r"[^\w{} ]", "", template))
    for kind, templates in (
        *SENTENCES.items(),
        *((kind, (template,)) for kind, template in PLAIN.items()),
        (UNCHANGED, (*NO_CHANGE_SENTENCES, PLAIN_NO_CHANGE)),
    )
    for template in templates
)
# Words that say nothing of the type of change by themselves, or that others use in another sense
# ("the object moved", "a different colour").
FILLERS = frozenset((
    "a", "an", "the", "this", "that", "it", "its", "is", "are", "was", "were", "be", "been", "has",
    "have", "had", "of", "to", "from", "in", "by", "as", "there", "where", "before", "someone",
    "one", "more", "two", "object", "objects", "scene", "scenes", "different",
))  # fmt: skip
ARTICLES = frozenset(("a", "an", "the"))
# Cue words of one type that plain English uses of others as well.
AMBIGUOUS = frozenset(("place", "put", "original", "location", "replaced"))
NEGATIONS = frozenset((
    "not", "never", "without", "no", "nothing", "none", "cannot",
    # What "hasn't" and the like are cut to.
    "hasn", "haven", "hadn", "isn", "aren", "wasn", "weren", "doesn", "don", "didn",
))  # fmt: skip
# After "no" and "nothing": something ended, or all the rest stayed, which denies no change.
NO_DENIAL = ("longer", "more", "else", "other")
# Further ways in which captions of others name a landmark.
OTHER_RELATIONS = (
    "right of", "left of", "next to", "near", "beside", "between", "close to", "closer to", "above",
    "below", "under", "on top of", "toward", "towards", "away from",
)  # fmt: skip
SPELLINGS = {"grey": "gray", "colour": "color"}
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Mark:
    """A word of a caption that claims a fact.

    start, end: its characters in the caption. fact: `type`, a feature of the object (`size`,
    `color`, `material`, `shape`) or `new`. value: as the facts name it, such as `metal` for
    `shiny`.
    """

    start: int
    end: int
    fact: str
    value: str


@dataclass(frozen=True)
class Claims:
    """What a caption claims of a change.

    type: one of FACT_TYPES; None where it is not recognised, or `several` are claimed. grammatical:
    whether the caption is a sentence of the grammar.
    """

    type: str | None = None
    marks: tuple[Mark, ...] = ()
    grammatical: bool = False
    several: bool = False

    def value(self, fact: str) -> str | None:
        """What is claimed of a fact: None where it is not said, SEVERAL for a contradiction."""
        if fact == TYPE:
            return SEVERAL if self.several else self.type
        values = {mark.value for mark in self.marks if mark.fact == fact}
        return next(iter(values), None) if len(values) < 2 else SEVERAL


@lru_cache(maxsize=2**16)
def parse(caption: str) -> Claims:
    """What a caption claims. Any text has claims, if only empty ones; none raises an error."""
    spans = [match.span() for match in _WORD.finditer(caption)]
    words = [caption[start:end].lower() for start, end in spans]
    words = [SPELLINGS.get(word, word) for word in words]
    sentence = _of_grammar(words)
    kind, facts = sentence or _recognised(words)
    marks = []
    for number, (start, end) in enumerate(spans):
        if number in facts:
            value = kind if facts[number] == TYPE else LOOK_WORDS[words[number]][1]
            assert value is not None
            marks.append(Mark(start, end, facts[number], value))
    several = kind == SEVERAL
    return Claims(None if several else kind, tuple(marks), sentence is not None, several)


Reading = tuple[str | None, dict[int, str]]  # the type, and the fact that each claiming word claims


def _any_of(words: Sequence[str], name: str = "") -> str:
    return f"(?{f'P<{name}>' if name else ':'}{'|'.join(words)})"


def _expression(named: bool) -> str:
    """The pattern of an object's looks, each feature a group of its name where `named`."""
    patterns = [
        _any_of([w for w, (of, _) in LOOK_WORDS.items() if of == feature], feature if named else "")
        for feature in FEATURES
    ]
    return "".join(f"(?:{adjective} )?" for adjective in patterns[:-1]) + patterns[-1]


def _pattern(kind: str, template: str) -> re.Pattern[str]:
    new = _any_of([w for w, (of, _) in LOOK_WORDS.items() if of == kind], NEW)
    landmark = f"(?: {_any_of(list(RELATIONS))} the {_expression(named=False)})?"
    return re.compile(template.format(it=f"(?P<it>{_expression(named=True)}{landmark})", new=new))


def _literals(template: str) -> list[str]:
    return [word for word in template.split() if not word.startswith("{")]


def _cues() -> dict[str, str]:
    """Word → the one type of change whose sentences use it."""
    types: dict[str, set[str]] = {}
    for kind, template in TEMPLATES:
        for word in _literals(template):
            types.setdefault(word, set()).add(kind)
    unclear = FILLERS | AMBIGUOUS
    return {w: next(iter(of)) for w, of in types.items() if len(of) == 1 and w not in unclear}


_PATTERNS = tuple((kind, _pattern(kind, template)) for kind, template in TEMPLATES)
CUES = _cues()
# What stands before a new colour or material: "to", "became", …
_BEFORE_NEW = {"into", *re.findall(r"([a-z]+) \{new\}", " ".join(t for _, t in TEMPLATES))}
_RELATIONS = tuple(
    sorted((tuple(r.split()) for r in (*RELATIONS, *OTHER_RELATIONS)), key=len, reverse=True)
)


def _of_grammar(words: Sequence[str]) -> Reading | None:
    text = " ".join(words)
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        groups = match.groupdict()
        facts_at = {match.start(f): f for f in (*FEATURES, NEW) if groups.get(f)}
        of_object = range(*match.span("it")) if "it" in groups else range(0)
        facts, start = {}, 0
        for number, word in enumerate(words):
            if start in facts_at:
                facts[number] = facts_at[start]
            elif start not in of_object and word not in FILLERS:
                facts[number] = TYPE
            start += len(word) + 1
        return kind, facts
    return None


def _recognised(words: Sequence[str]) -> Reading:
    landmarks = set(_landmark_words(words))
    looks = [n for n, word in enumerate(words) if word in LOOK_WORDS and n not in landmarks]
    runs: list[list[int]] = []
    for number in looks:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    facts = {number: NEW for run in runs for number in _new_values(words, run)}
    # What the sentence is about comes first; a noun makes sure that it is an object at all.
    rest = [[number for number in run if number not in facts] for run in runs]
    rest = [run for run in rest if run]
    objects = [run for run in rest if _has_noun(words, run)]
    # Further objects are claimed to have changed too: their looks contradict those of the first.
    for run in objects or rest[:1]:
        for number in run:
            feature = LOOK_WORDS[words[number]][0]
            facts[number] = feature
            if feature == FEATURES[-1]:
                break
    numbers = [n for n in range(len(words)) if n not in landmarks and _is_cue(words, n)]
    cues = {number: CUES[words[number]] for number in numbers}
    kind = _type(words, set(cues.values()), facts)
    changing = set(cues.values()) - {UNCHANGED} if kind == SEVERAL else {kind}
    facts.update({number: TYPE for number, of in cues.items() if of in changing})
    return kind, facts


def _is_cue(words: Sequence[str], number: int) -> bool:
    """Whether a word names a type of change; "new" does not in "a new color"."""
    following = words[number + 1 : number + 2]
    of_a_value = words[number] == "new" and following and following[0] in (*FEATURES, *AMBIGUOUS)
    return words[number] in CUES and not of_a_value


def _type(words: Sequence[str], types: set[str], facts: dict[int, str]) -> str | None:
    """The type that the cues name, or SEVERAL; else that of the new value; None if unclear.

    `none` is clear only of a sentence about no object ("the only change is the red cube"), also
    where a change is denied ("nothing moved").
    """
    if _negated(words):
        of_change = types or any(word.startswith(("chang", "differ")) for word in words)
        return UNCHANGED if of_change and not facts else None
    changes = types - {UNCHANGED}
    if not changes:
        changes = {LOOK_WORDS[words[n]][0] for n, fact in facts.items() if fact == NEW}
    if not changes and not facts:
        changes = types
    if len(changes) > 1:
        return SEVERAL
    return next(iter(changes), None)


def _negated(words: Sequence[str]) -> bool:
    following = (*words[1:], "")
    return any(
        word in NEGATIONS and following[number] not in NO_DENIAL
        for number, word in enumerate(words)
    )


def _new_values(words: Sequence[str], run: Sequence[int]) -> Iterator[int]:
    """The numbers of the words in a run of look words that name a new colour or material.

    Such words follow "to", "became" and the like without a noun, or the object's noun, as in
    "painted the cube red".
    """
    start = run[0]
    after = start > 0 and words[start - 1] in _BEFORE_NEW and not _has_noun(words, run)
    for number in run:
        feature = LOOK_WORDS[words[number]][0]
        if after and feature in NEW_FEATURES:
            yield number
        after = after or feature == FEATURES[-1]


def _has_noun(words: Sequence[str], run: Sequence[int]) -> bool:
    return any(LOOK_WORDS[words[number]][0] == FEATURES[-1] for number in run)


def _landmark_words(words: Sequence[str]) -> Iterator[int]:
    """The words that relate to a landmark, and those that name it."""
    number = 0
    while number < len(words):
        relation = next(
            (r for r in _RELATIONS if tuple(words[number : number + len(r)]) == r), None
        )
        if relation is None:
            number += 1
            continue
        end = _end_of_landmark(words, number + len(relation))
        if words[end : end + 1] == ["and"]:
            second = _end_of_landmark(words, end + 1)
            # "beside the ball and the cube moved" goes on with another object.
            if relation == ("between",) or second == len(words):
                end = second
        yield from range(number, end)
        number = end


def _end_of_landmark(words: Sequence[str], start: int) -> int:
    """The number of the first word after an object's articles, looks and noun."""
    for number in range(start, len(words)):
        feature = LOOK_WORDS.get(words[number], ("",))[0]
        if feature == FEATURES[-1]:
            return number + 1
        if not feature and words[number] not in ARTICLES:
            return number
    return len(words)
