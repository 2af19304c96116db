"""What a caption claims: the sentences of `grammar.py`, read backwards from its own tables.

A caption of the grammar gives exactly what it states. Of any other text as much is recognised as
the grammar's words allow: the attributes of the object that the sentence is about, its new colour
or material, and the type of change by the words that the grammar uses for one type only. The
attributes of a landmark ("behind the large red metal cube") are nobody's claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from cc_prep.records import FACT_TYPES, SEVERAL
from cc_prep.synth.grammar import (
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
NEW_FEATURES = ("color", "material")  # the types of change that have a new value

# Word → (feature, value).
ATTRIBUTE_WORDS: dict[str, tuple[str, str]] = {
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
AMBIGUOUS = frozenset(("place", "placed", "put", "original", "location", "replaced", "away"))
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
    "below", "under", "on top of", "toward", "towards", "away from", "side of", "adjacent to",
    "opposite", "around", "alongside", "against", "far from", "further from", "farther from",
    "closest to", "nearest", "by the",
)  # fmt: skip
# Words between a relation and a landmark's looks and noun.
OF_LANDMARKS = ARTICLES | frozenset((
    "other", "another", "that", "this", "these", "those", "two", "same", "color", "colored", "tall",
))  # fmt: skip
SPELLINGS = {"grey": "gray", "colour": "color"}
_WORD = re.compile(r"[^\W_]+")
_BETWEEN_SENTENCES = re.compile(r"[.;!?\n]+")
_BETWEEN_CLAUSES = re.compile(r", and\b|,|\band\b")


def _any_of(words: Sequence[str], name: str = "") -> str:
    return f"(?{f'P<{name}>' if name else ':'}{'|'.join(words)})"


_NOUN = _any_of([word for word, (feature, _) in ATTRIBUTE_WORDS.items() if feature == FEATURES[-1]])
_ADJECTIVE = _any_of(
    [word for word, (feature, _) in ATTRIBUTE_WORDS.items() if feature != FEATURES[-1]]
)
# The contexts in which some cue words, here in < >, name a type. "A new color" adds nothing, what
# is "no longer red" is still there, and "a cube of red color" only looks so.
CONTEXTS = {
    "new": rf"\b(?:is|are|was|were) <new>|<new> (?:{_ADJECTIVE} )*(?:{_NOUN}|objects?)\b",
    "longer": r"no <longer> (?:there|here|visible|present|"
    r"(?:in|on) the (?:\w+ )?(?:scene|image|picture|table))\b",
    "color": rf"^(?!.*\b{_ADJECTIVE} <)",
    "material": rf"^(?!.*\b{_ADJECTIVE} <)",
}


@dataclass(frozen=True)
class Mark:
    """A word of a caption that claims a fact.

    Attributes:
        start, end: Its characters in the caption.
        fact: `type`, a feature of the object (`size`, `color`, `material`, `shape`) or `new`.
        value: As the facts name it, such as `metal` for `shiny`.
    """

    start: int
    end: int
    fact: str
    value: str


@dataclass(frozen=True)
class Claims:
    """What a caption claims of a change.

    Attributes:
        type: One of FACT_TYPES; None where it is not recognised, or `several` are claimed.
        grammatical: Whether the caption is a sentence of the grammar.
    """

    type: str | None = None
    marks: tuple[Mark, ...] = ()
    grammatical: bool = False
    several: bool = False

    def value(self, fact: str) -> str | None:
        """What is claimed of a fact: None where it is not said, SEVERAL for more than one value."""
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
            value = kind if facts[number] == TYPE else ATTRIBUTE_WORDS[words[number]][1]
            assert value is not None
            marks.append(Mark(start, end, facts[number], value))
    several = kind == SEVERAL
    return Claims(None if several else kind, tuple(marks), sentence is not None, several)


def statements(text: str) -> list[tuple[int, str]]:
    """The parts of a text that may each claim a change, and where they begin.

    These are its sentences. One that joins clauses by commas and "and" is divided where each
    clause by itself names an object and a type of change.
    """
    parts: list[tuple[int, str]] = []
    for start, sentence in _divided(text, _BETWEEN_SENTENCES):
        clauses = _divided(sentence, _BETWEEN_CLAUSES)
        whole = len(clauses) < 2 or not all(_names_a_change(clause) for _, clause in clauses)
        parts += [(start, sentence)] if whole else [(start + at, one) for at, one in clauses]
    return parts


def _divided(text: str, between: re.Pattern[str]) -> list[tuple[int, str]]:
    """The parts of a text that have a word, and where each begins."""
    ends = [(match.start(), match.end()) for match in between.finditer(text)]
    starts = [0, *(end for _, end in ends)]
    stops = [*(start for start, _ in ends), len(text)]
    parts = [(start, text[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    return [(start, part) for start, part in parts if _WORD.search(part)]


def _names_a_change(clause: str) -> bool:
    claims = parse(clause)
    return claims.type not in (None, UNCHANGED) and claims.value(FEATURES[-1]) is not None


Reading = tuple[str | None, dict[int, str]]  # the type, and the fact that each claiming word claims


def _expression(named: bool) -> str:
    """The pattern of an object's looks, each feature a group of its name where `named`."""
    patterns = [
        _any_of(
            [w for w, (of, _) in ATTRIBUTE_WORDS.items() if of == feature], feature if named else ""
        )
        for feature in FEATURES
    ]
    return "".join(f"(?:{adjective} )?" for adjective in patterns[:-1]) + patterns[-1]


def _pattern(kind: str, template: str) -> re.Pattern[str]:
    new = _any_of([w for w, (of, _) in ATTRIBUTE_WORDS.items() if of == kind], NEW)
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


def _before_new() -> set[str]:
    """The words before a new value; "of" says nothing without the two before it."""
    templates = " ".join(template for _, template in TEMPLATES)
    return set(re.findall(r"(\w+ \w+ of|\w+) \{new\}", templates))


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The type and the pattern of each template, compiled for the first caption."""
    return tuple((kind, _pattern(kind, template)) for kind, template in TEMPLATES)


CUES = _cues()
# What stands before a new colour or material: "to", "became", "now made of", …
_BEFORE_NEW = re.compile(
    rf"\b{_any_of(['into', 'replaced by', 'replaced with', *_before_new()])}(?P<article> an?)?$"
)
_RELATIONS = tuple(
    sorted((tuple(r.split()) for r in (*RELATIONS, *OTHER_RELATIONS)), key=len, reverse=True)
)


def _of_grammar(words: Sequence[str]) -> Reading | None:
    text = " ".join(words)
    for kind, pattern in _patterns():
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
    attributes = [
        n for n, word in enumerate(words) if word in ATTRIBUTE_WORDS and n not in landmarks
    ]
    runs: list[list[int]] = []
    for number in attributes:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    # What the sentence is about comes first; a noun makes sure that it is an object at all.
    first = next((run for run in runs if _has_noun(words, run)), [])
    facts: dict[int, str] = {}
    rest = []
    for run in runs:
        if _is_new_look(words, run, first):
            facts.update(_of_new_look(words, run, first))
            continue
        new = [*_new_values(words, run, first)]
        facts.update(dict.fromkeys(new, NEW))
        rest += [[number for number in run if number not in new]]
    rest = [run for run in rest if run]
    objects = [run for run in rest if _has_noun(words, run)]
    # Further objects are claimed to have changed too: their looks contradict those of the first.
    for run in objects or rest[:1]:
        for number in run:
            feature = ATTRIBUTE_WORDS[words[number]][0]
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
    """Whether a word names a type of change, by its CONTEXTS if it has any."""
    word = words[number]
    if word not in CONTEXTS:
        return word in CUES
    before, after = words[max(0, number - 3) : number], words[number + 1 : number + 6]
    return re.search(CONTEXTS[word], " ".join((*before, f"<{word}>", *after))) is not None


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
        changes = {ATTRIBUTE_WORDS[words[n]][0] for n, fact in facts.items() if fact == NEW}
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


def _new_values(words: Sequence[str], run: Sequence[int], first: Sequence[int]) -> Iterator[int]:
    """The numbers of the words in a run of look words that name a new colour or material.

    Such words follow "to", "became" and the like without a noun, or the object's noun, as in
    "painted the cube red". With an article ("by a blue one") they also follow the first object.
    """
    before = _before(words, run)
    after = before is not None and not _has_noun(words, run)
    if before is not None and before["article"]:
        after = after and bool(first) and first[0] < run[0]
    for number in run:
        feature = ATTRIBUTE_WORDS[words[number]][0]
        if after and feature in NEW_FEATURES:
            yield number
        after = after or feature == FEATURES[-1]


def _is_new_look(words: Sequence[str], run: Sequence[int], first: Sequence[int]) -> bool:
    """Whether a run is the new look of the first object: the same noun, after "into a"."""
    before = _before(words, run)
    if before is None or not before["article"] or not first or first[0] >= run[0]:
        return False
    shape = FEATURES[-1]
    return _attributes(words, run).get(shape) == _attributes(words, first)[shape]


def _of_new_look(
    words: Sequence[str], run: Sequence[int], first: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """What "a blue cube" claims after "the red cube turned into".

    A color or material is new if it differs from that of the first object, or is the only one that
    was not said of it. The rest repeats the attributes of the first object, or contradicts them.
    """
    stated = _attributes(words, first)
    attributes = {number: ATTRIBUTE_WORDS[words[number]] for number in run}
    values = {number: look for number, look in attributes.items() if look[0] in NEW_FEATURES}
    new = [number for number, (name, value) in values.items() if stated.get(name, value) != value]
    unsaid = [number for number, (name, _) in values.items() if name not in stated]
    new = new or (unsaid if len(unsaid) == 1 else [])
    yield from ((number, NEW) for number in new)
    yield from ((n, name) for n, (name, _) in attributes.items() if n not in new and name in stated)


def _before(words: Sequence[str], run: Sequence[int]) -> re.Match[str] | None:
    """The words before a run that make it a new value."""
    return _BEFORE_NEW.search(" ".join(words[max(0, run[0] - 4) : run[0]]))


def _attributes(words: Sequence[str], run: Sequence[int]) -> dict[str, str]:
    """The attributes of an object by feature, up to its noun."""
    attributes: dict[str, str] = {}
    for number in run:
        feature, value = ATTRIBUTE_WORDS[words[number]]
        attributes[feature] = value
        if feature == FEATURES[-1]:
            break
    return attributes


def _has_noun(words: Sequence[str], run: Sequence[int]) -> bool:
    return any(ATTRIBUTE_WORDS[words[number]][0] == FEATURES[-1] for number in run)


def _landmark_words(words: Sequence[str]) -> Iterator[int]:
    """The words that relate to a landmark, and those that name it."""
    number = 0
    while number < len(words):
        relation = next(
            (r for r in _RELATIONS if tuple(words[number : number + len(r)]) == r), None
        )
        # What an object is replaced by is no landmark.
        if relation == ("by", "the") and words[max(0, number - 1)] == "replaced":
            relation = None
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
    """The number of the first word after an object's OF_LANDMARKS, looks and noun."""
    for number in range(start, len(words)):
        feature = ATTRIBUTE_WORDS.get(words[number], ("",))[0]
        if feature == FEATURES[-1]:
            return number + 1
        if not feature and words[number] not in OF_LANDMARKS:
            return number
    return len(words)
