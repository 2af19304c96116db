"""What a caption of a composed pair claims: the sentences of `sentences.py`, read back.

A sentence of the grammar gives exactly what it states. In any other text, words of change, of place
and of color are recognised, and the classes of the objects that the pair shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from cc_prep.composites import sentences
from cc_prep.composites.sentences import CLASS, COLOR, COLORS, PLACES
from cc_prep.records import Facts
from cc_prep.synth.parsing import NEW, TYPE, UNCHANGED, Claims, Mark

PLACE = "place"
ATTRIBUTES = (CLASS, COLOR)
FACTS = (TYPE, *ATTRIBUTES, PLACE, NEW)
UNNAMED = ("something", "something else")  # an object without a class
EQUAL = "the two images are equal"  # as `cc-train caption photos-mini` says it
SOME_CHANGE = re.compile(r"(?:something|something else|an? .+) changed (?:in|on|at) the .+", re.I)
SENTENCE_END = re.compile(r"[.;!](?:\s+|$)")
_COLOR = "|".join(COLORS)
_PLACE = "|".join(sorted(PLACES, key=len, reverse=True))
_THING = rf"(?:(?:an?|the|another) (?:(?P<color>{_COLOR}) )?(?P<class>\S.*?)|{'|'.join(UNNAMED)})"
_GROUPS = {
    "a": _THING,
    "the": _THING,
    "where": rf"(?:in|on|at) (?P<place>{_PLACE})",
    "place": rf"(?P<place>{_PLACE})",
}
# In text of others, in this order: the first that is found names the type.
CUES = {
    "black_and_white": r"black and white|black-and-white|gr[ae]y ?scale|monochrome|desaturated",
    "brighter": r"brighter|brightened|lighter|lightened",
    "darker": r"darker|darkened|dimmed|dimmer",
    "blurred": r"blurred|blurry|blurrier|out of focus",
    "sharper": r"sharper|sharpened|deblurred",
    "colored": r"colored|colorized|colourised|in color",
    "uncropped": r"uncropped|zoomed out|wider view",
    "cropped": r"cropped|zoomed in|cut off",
    "text_added": r"(?:text|words|writing|caption|watermark)\b.*\b(?:added|appear\w*|new)|"
    r"(?:added|new)\b.*\b(?:text|words|writing|caption|watermark)",
    "text_removed": r"(?:text|words|writing|caption|watermark)\b.*\b(?:removed|gone|disappear\w*)|"
    r"removed\b.*\b(?:text|words|writing|caption|watermark)",
    "replace": r"replace[ds]?|swapped|turned into|changed into",
    "move": r"move[ds]?|moving|shifted|relocated",
    "drop": r"disappear\w*|removed|gone|missing|no longer|vanished",
    "add": r"appear\w*|added|new|now (?:an?|one)|has come",
    "color": rf"(?:became|turned|is now|painted|to) (?:{_COLOR})|recolou?red|"
    r"(?:changed?|new|another) (?:its |of )?colou?r",
}
_CUES = {kind: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for kind, pattern in CUES.items()}
DENIALS = re.compile(
    r"\b(?:nothing (?:has )?changed|no (?:visible |apparent )?(?:changes?|differences?)|identical|"
    r"unchanged|(?:are|is|show) (?:the same|equal)|nothing is different)\b",
    re.IGNORECASE,
)
_AT = re.compile(
    r"\b(?:(?P<row>top|upper|bottom|lower)(?:[- ](?P<column>left|right))?|(?P<side>left|right)|"
    r"(?P<middle>middle|cent(?:er|re)))\b",
    re.IGNORECASE,
)
_ROWS = {"top": 0, "upper": 0, "bottom": 2, "lower": 2}
_COLUMNS = {"left": 0, "right": 2}


def true_values(facts: Facts) -> dict[str, str]:
    """The true facts of a pair, by the names of FACTS; for an unchanged pair the type alone."""
    values = {TYPE: facts.type}
    one = facts.before or facts.after
    if one is not None and facts.type != UNCHANGED:
        values |= {name: one[name] for name in ATTRIBUTES if one[name] != sentences.TEXT}
        values[PLACE] = sentences.place(one.location)
        values[NEW] = sentences.new_value(facts)
    return {name: value for name, value in values.items() if value}


def parse(caption: str, facts: Facts) -> Claims:
    """What a caption of a pair claims. Any text has claims, if only empty ones.

    Args:
        facts: Of the pair, whose classes are looked for in text that is not of the grammar.
    """
    listed = (facts.before, facts.after, *facts.objects_before, *facts.objects_after)
    classes = {one[CLASS] for one in listed if one is not None and one[CLASS]}
    return _parse(caption, tuple(sorted(classes)))


@lru_cache(maxsize=2**14)
def _parse(caption: str, classes: tuple[str, ...]) -> Claims:
    types: set[str] = set()
    marks: list[Mark] = []
    grammatical, several = True, False
    for start, sentence in _sentences(caption):
        reading = _of_grammar(sentence)
        if reading is None and SOME_CHANGE.fullmatch(sentence):
            several = True  # that something changed, but not how
            continue
        grammatical = grammatical and reading is not None
        kind, found = reading or _recognised(sentence, classes)
        types |= {kind} if kind else set()
        marks += [Mark(start + m.start, start + m.end, m.fact, m.value) for m in found]
    if len(types) > 1:
        types.discard(UNCHANGED)
    several = several or len(types) > 1
    marks = [mark for mark in marks if not (several and mark.fact == TYPE)]
    kind = None if several else next(iter(types), None)
    marks.sort(key=lambda mark: mark.start)
    return Claims(kind, tuple(marks), bool(types) and grammatical, several)


def _sentences(caption: str) -> Iterator[tuple[int, str]]:
    """Sentences and where they start."""
    start = 0
    for match in SENTENCE_END.finditer(caption):
        yield start, caption[start : match.start()]
        start = match.end()
    if caption[start:].strip():
        yield start, caption[start:].rstrip()


Reading = tuple[str | None, list[Mark]]


def _of_grammar(sentence: str) -> Reading | None:
    for kind, pattern in _patterns():
        match = pattern.fullmatch(sentence)
        if match is None:
            continue
        marks = [
            Mark(*match.span(name), name, value.lower())
            for name, value in match.groupdict().items()
            if name not in (NEW, TYPE) and value
        ]
        if match.groupdict().get(NEW):
            new = re.sub(r"^an? ", "", match[NEW].lower())
            marks.append(Mark(*match.span(NEW), NEW, new))
        if match.groupdict().get(TYPE):
            marks.append(Mark(*match.span(TYPE), TYPE, kind))
        return kind, [mark for mark in marks if mark.value not in UNNAMED]
    return None


def _pattern(template: str, kind: str) -> re.Pattern[str]:
    """The pattern of a template; its longest own words are the group of the type."""
    own = re.split(r"\{\w+\}", template)
    longest = max(own, key=lambda part: len(part.strip())).strip()
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    escaped = escaped.replace(re.escape(longest), f"(?P<{TYPE}>{re.escape(longest)})", 1)
    new = {"move": _PLACE, "color": _COLOR}.get(kind, r"an? \S.*?|something(?: else)?")
    groups = {**_GROUPS, "new": rf"(?P<{NEW}>{new})"}
    return re.compile(re.sub(r"\{(\w+)\}", lambda m: groups[m[1]], escaped), re.IGNORECASE)


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Those with more words of their own first, since an object may be named by any words."""
    recolored = (sentences.RECOLORED, *sentences.RICH_RECOLORED)
    templates = [
        (template, kind)
        for kind in sentences.TYPES
        for template in (sentences.PLAIN[kind], *sentences.RICH[kind])
    ]
    templates += [(EQUAL, UNCHANGED), *((template, "color") for template in recolored)]
    templates.sort(key=lambda one: -len(re.sub(r"\{\w+\}", "", one[0])))
    return [(kind, _pattern(template, kind)) for template, kind in templates]


def _recognised(sentence: str, classes: tuple[str, ...]) -> Reading:
    denial = DENIALS.search(sentence)
    if denial is not None:
        return UNCHANGED, [Mark(*denial.span(), TYPE, UNCHANGED)]
    found = ((kind, pattern.search(sentence)) for kind, pattern in _CUES.items())
    kind, cue = next(((kind, match) for kind, match in found if match), (None, None))
    if kind is None or cue is None:
        return None, []
    marks = [Mark(*cue.span(), TYPE, kind)]
    for name in classes:
        match = re.search(rf"\b{re.escape(name)}s?\b", sentence, re.IGNORECASE)
        if match is not None:
            marks.append(Mark(*match.span(), CLASS, name))
    marks.sort(key=lambda mark: mark.start)
    named = [mark for mark in marks if mark.fact == CLASS]
    if kind == "replace" and len(named) == 2:  # "the car was replaced by a chair"
        marks = [m if m is not named[1] else Mark(m.start, m.end, NEW, m.value) for m in marks]
    if kind == "color":
        color = re.search(rf"\b(?:{_COLOR})\b", sentence[cue.start() :], re.IGNORECASE)
        if color is not None:
            start = cue.start() + color.start()
            marks.append(Mark(start, start + len(color[0]), NEW, color[0].lower()))
    places = [Mark(*match.span(), PLACE, _place(match)) for match in _AT.finditer(sentence)]
    if kind == "move" and len(places) == 2:
        places[1] = Mark(places[1].start, places[1].end, NEW, places[1].value)
    marks += [one for one in places if one.start >= cue.end() or one.end <= cue.start()]
    return kind, marks


def _place(match: re.Match[str]) -> str:
    row, column = match["row"], match["column"] or match["side"]
    r = _ROWS[row.lower()] if row else 1
    c = _COLUMNS[column.lower()] if column else 1
    return PLACES[3 * r + c]
