"""Captions that say that nothing changed: a closed list of English sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_SCENE = (
    r"(?:everything|all(?: objects)?"
    r"|(?:the |both |these )*(?:two )?(?:scene|image|picture|photo|object|area|view)s?)"
)
# What may follow without saying more: where, between what, in whose eyes. A closed list, because
# "the scene is the same as before and a house was built" says more.
_REST = (
    r"(?: (?:in|on|of|to|at) the(?: (?!(?:and|with|where|then)\b)\w+){1,2})?"
    r"(?: (?:in|between|of|to|at|from|for|since|with|as|like|about|it|was|all|any|either|here|now"
    r"|before|and|after|first|second|1st|2nd|last|left|right|top|bottom|other|previous|earlier|later"
    r"|original|current|whole|entire|the|a|an|this|that|these|those|both|two|2|one|each|pair|set"
    r"|i|we|you|can|could|see|find|notice|spot|tell"
    r"|(?:scene|image|picture|photo|photograph|pic|frame|shot|screenshot|video|object|area|region"
    r"|place|time|view|side|version)s?))*"
)
_NOT = r"(?:has|have|had|is|are|was|were|did|does|do)(?:n t| not)"
_UNCHANGED = re.compile(
    r"(?:there (?:is|are|was|were|(?:has|have) been|(?:seems?|appears?) to be) "
    r"|(?:i|we) (?:can )?(?:see|find) )?"
    r"(?:almost )?no (?:\w+ )?(?:change|difference)s?"
    r"(?: (?:has|have|was|were|is|are|can be))?(?: been)?"
    r"(?: (?:occurred|made|happened|found|seen|spotted|noted|visible|detected|observed))?"
    rf"{_REST}"
    r"|(?:there is )?(?:almost )?nothing (?:(?:has|was|is|(?:seems|appears) to have) )?(?:been )?"
    rf"(?:changed|modified|altered|happened|moved|different){_REST}"
    rf"|{_SCENE} (?:is|are|remains?|remained|stays?|stayed|seems?|looks?|appears?)"
    r"(?: to be)?(?: exactly| almost)?"
    rf" (?:the same|same|equal|identical|unchanged|where it was|as it was|as they were|as before)"
    rf"{_REST}"
    rf"|{_SCENE} {_NOT}(?: been)? (?:change|changed|differ|different|modified|altered){_REST}"
    rf"|{_SCENE} shows? (?:exactly )?the same (?:scene|image|picture|place|area|thing)s?"
    r"|(?:it|they) (?:is|are|remains?|stays?|looks?) (?:exactly )?(?:the same|identical|unchanged)"
    r"(?: as before| as it was| as they were| in both(?: images| pictures| photos)?)?"
    rf"|(?:it|they) {_NOT}(?: been)? changed?"
    r"|(?:exactly )?(?:the )?(?:same|identical)(?: (?:scene|image|picture|photo)s?)?|unchanged"
)
# Sentences that may say so in another way: "the houses stayed the same", "I can't see any change".
# "No longer" and "no more" are none.
_BETWEEN = (
    r"(?: (?:any|anything|see|find|notice|spot|locate|observe|detect|tell|that|noticeable|visible"
    r"|obvious|apparent|significant|real|much|been|be|have|has|had|appears?|seems?|to|a|the|is|are"
    r"|was|were))*"
)
_MAYBE = re.compile(
    r"\b(?:unchanged|unaltered"
    r"|(?:is|are|was|were|remains?|remained|stays?|stayed|looks?|looked|seems?|appears?|be)"
    r"(?: all| exactly| almost)? (?:the same|identical|as before|as it was|as they were)"
    rf"|(?:no|not|n t|never|without|nothing(?! else)){_BETWEEN}"
    r" (?:chang|differ|alter|modif|move)\w*)\b"
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
    words = _words(caption)
    return bool(_UNCHANGED.fullmatch(words)) and not _EXCEPTION.search(words)


def may_say_so(caption: str) -> bool:
    """Whether a sentence has words of one that says so, as "the houses stayed the same" has."""
    words = _words(caption)
    is_doubtful = bool(_MAYBE.search(words)) and not _EXCEPTION.search(words)
    return is_doubtful or says_nothing_changed(caption)


def _words(caption: str) -> str:
    return " ".join(re.sub(r"[^\w ]", " ", caption.lower()).split())


def all_say_so(captions: Collection[str]) -> bool:
    """Whether there are captions, and all of them say that nothing changed."""
    return bool(captions) and all(map(says_nothing_changed, captions))
