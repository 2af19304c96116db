"""Captions that say that nothing changed: a closed list of English sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_SCENE = (
    r"(?:everything|all(?: objects)?"
    r"|(?:the |both |these )*(?:two )?(?:scene|image|picture|photo|object)s?)"
)
# What may follow without saying more: where, between what, in whose eyes. A closed list, because
# "the scene is the same as before and a house was built" says more.
_REST = (
    r"(?: (?:in|on|of|to|at) the(?: (?!(?:and|with|where|then)\b)\w+){1,2})?"
    r"(?: (?:in|between|of|to|at|from|for|with|as|like|about|it|was|all|any|either|here|now|before"
    r"|and|after|first|second|1st|2nd|last|left|right|top|bottom|other|previous|earlier|later"
    r"|original|current|whole|entire|the|a|an|this|that|these|those|both|two|2|one|each|pair|set"
    r"|i|we|you|can|could|see|find|notice|spot|tell"
    r"|(?:scene|image|picture|photo|photograph|pic|frame|shot|screenshot|video|object|area|region"
    r"|place|time|view|side|version)s?))*"
)
_UNCHANGED = re.compile(
    r"(?:there (?:is|are|was|were|(?:seems?|appears?) to be) |(?:i|we) (?:can )?(?:see|find) )?"
    r"(?:almost )?no (?:\w+ )?(?:change|difference)s?"
    r"(?: (?:has|have|was|were|is|are|can be))?(?: been)?"
    r"(?: (?:occurred|made|happened|found|seen|spotted|noted|visible|detected|observed))?"
    rf"{_REST}"
    r"|(?:there is )?(?:almost )?nothing (?:(?:has|was|is|(?:seems|appears) to have) )?(?:been )?"
    rf"(?:changed|modified|altered|happened|moved|different){_REST}"
    rf"|{_SCENE} (?:is|are|remains?|remained|stays?|stayed|seems?|looks?|appears?)"
    r"(?: to be)?(?: exactly| almost)?"
    rf" (?:the same|same|equal|identical|unchanged|where it was){_REST}"
)
_EXCEPTION = re.compile(r"\b(?:but|except|however|although|apart|other than|while|only)\b")


# Most English captions have one of these words; those of other languages in our letters have none.
_ENGLISH = re.compile(
    r"\b(?:the|there|nothing|were|with|this|that|appeared|disappeared|moved|changed|became|turned"
    r"|added|removed|replaced|built)\b"
)
_SHARE = 0.1  # of captions, which may be as short as "car gone"


def is_english(captions: Iterable[str]) -> bool:
    """Whether captions are of the language whose sentences are read here."""
    found = [_ENGLISH.search(caption.lower()) is not None for caption in captions]
    return bool(found) and sum(found) >= _SHARE * len(found)


def says_nothing_changed(caption: str) -> bool:
    """Whether a sentence says that nothing changed, and no more than that."""
    words = " ".join(re.sub(r"[^\w ]", " ", caption.lower()).split())
    return bool(_UNCHANGED.fullmatch(words)) and not _EXCEPTION.search(words)


def all_say_so(captions: Collection[str]) -> bool:
    """Whether there are captions, and all of them say that nothing changed."""
    return bool(captions) and all(map(says_nothing_changed, captions))
