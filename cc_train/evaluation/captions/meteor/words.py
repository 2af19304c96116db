"""A caption as the words that METEOR 1.5 compares, and the stem of each.

Words: its option -norm for English, in lower case. Classes of characters are Java's, which are
those of ASCII where Python's are Unicode's. The text DOTMULTI, by which the program remembers dots,
is read as it does where a caption holds it.

Stems: Snowball's algorithm of 2011 ("Porter2"). Later releases of Snowball stem some words
otherwise, so no library stands in for it.
Source: https://snowballstem.org/algorithms/english/stemmer.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BLANKS = "".join(map(chr, range(33)))  # what Java trims
_ALPHA = (
    "A-Za-z\u0160\u017d\u0161\u017e\u0178\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u04ff"
    "\u0500-\u0527\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_PLAIN = re.compile("[0-9a-z ]*")  # nothing of it changes
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("([^0-9])[,]([^0-9])", r"\1 , \2"),
        ("([0-9])[,]([^0-9])", r"\1 , \2"),
        ("([^0-9])[,]([0-9])", r"\1 , \2"),
        ("[`\u2018\u2019]", "'"),
        ("[\u201c\u201d]|''", ' " '),
        ("\u2013|--", "-"),
        (rf"([0-9{_ALPHA}.])-([0-9{_ALPHA}])", r"\1 \2"),
        (rf"([^{_ALPHA}])'([^{_ALPHA}])", r"\1 ' \2"),
        (rf"([^{_ALPHA}0-9])'([{_ALPHA}])", r"\1 ' \2"),
        (rf"([{_ALPHA}])'([^{_ALPHA}])", r"\1 ' \2"),
        (rf"([{_ALPHA}])'([{_ALPHA}])", r"\1 '\2"),
        ("([0-9])'(s)", r"\1 '\2"),
    )
]
_OTHER = re.compile(rf"([^0-9{_ALPHA} \t\n\v\f\r.'`,\-\u2018\u2019])")
_DOTS = re.compile(r"\.(\.+)")
_LAST_DOT = re.compile(r"DOTMULTI\.([^.])")
_LETTER = re.compile(f"[{_ALPHA}]")
_BETWEEN = re.compile("[ \t\n\r\f]+")  # of words
_SPACES = re.compile("[ \u2000-\u200a\u202f\u205f\u3000\u00a0]+")
ANYWHERE, BEFORE_DIGITS = 1, 2  # where a prefix such as "mr" keeps its dot


def words_of(text: str, prefixes: Mapping[str, int]) -> tuple[str, ...]:
    """The words of a caption.

    Args:
        prefixes: Words whose dot stays with them, and where.
    """
    if _PLAIN.fullmatch(text):
        return tuple(text.split())
    text = _OTHER.sub(r" \1 ", f" {text.strip(BLANKS)} ")
    text = _DOTS.sub(r" DOTMULTI\1", text)
    while "DOTMULTI." in text:
        text = _LAST_DOT.sub(r"DOTDOTMULTI \1", text).replace("DOTMULTI.", "DOTDOTMULTI")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _with_dots_apart(_words(text), prefixes)
    while "DOTDOTMULTI" in text:
        text = text.replace("DOTDOTMULTI", "DOTMULTI.")
    text = _SPACES.sub(" ", text.replace("DOTMULTI", ".")).strip(BLANKS)
    return tuple(_words(text.lower()))


def _words(text: str) -> list[str]:
    return [word for word in _BETWEEN.split(text) if word]


def _with_dots_apart(words: list[str], prefixes: Mapping[str, int]) -> str:
    """The words with a blank after each, and before a dot that ends a sentence."""
    text = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        base = word[:-1]
        if len(word) > 1 and word.endswith("."):
            if "." in base and _LETTER.search(base):
                word = word.replace(".", "")
            elif not (
                prefixes.get(base) == ANYWHERE
                or re.match("[a-z]", following)
                or (prefixes.get(base) == BEFORE_DIGITS and re.match("[0-9]", following))
            ):
                word = f"{base} ."
        text += f"{word} "
    return text


VOWELS = "aeiouy"
AT_LEAST = 3  # letters of a word that has a stem

_WHOLE = {  # words with a stem of their own
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl",
    "gently": "gentl", "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
    **{w: w for w in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}  # fmt: skip
_FINISHED = frozenset(
    ("inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed")
)
_REGION = re.compile(f"[^{VOWELS}]*[{VOWELS}]+[^{VOWELS}]", re.DOTALL)
_LONG_START = re.compile("gener|commun|arsen")
_SHORT_END = re.compile(f"[^{VOWELS}][{VOWELS}][^{VOWELS}wxY]$|^[{VOWELS}][^{VOWELS}]$", re.DOTALL)
_DOUBLE = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_PLAIN_LI = "cdeghkmnrt"  # letters before a "li" that is cut off
_STEP_2: Mapping[str, str] = {
    "ational": "ate", "fulness": "ful", "iveness": "ive", "ization": "ize", "ousness": "ous",
    "biliti": "ble", "lessli": "less", "tional": "tion", "alism": "al", "aliti": "al",
    "ation": "ate", "entli": "ent", "fulli": "ful", "iviti": "ive", "ousli": "ous",
    "abli": "able", "alli": "al", "anci": "ance", "ator": "ate", "enci": "ence", "izer": "ize",
    "bli": "ble", "ogi": "og", "li": "",
}  # fmt: skip
_STEP_3: Mapping[str, str] = {
    "ational": "ate", "tional": "tion", "alize": "al", "ative": "", "icate": "ic", "iciti": "ic",
    "ical": "ic", "ness": "", "ful": "",
}  # fmt: skip
_STEP_4: Mapping[str, str] = dict.fromkeys(
    ("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous",
     "ive", "ize", "ion", "al", "er", "ic"), "",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if word in _WHOLE:
        return _WHOLE[word]
    if len(word) < AT_LEAST:
        return word
    word = _marked(word.removeprefix("'"))
    first, second = _regions(word)
    word = _without_s(_without_possessive(word))
    if word not in _FINISHED:
        word = _without_ed(word, first)
        if len(word) > 2 and word[-1] in "yY" and word[-2] not in VOWELS:
            word = word[:-1] + "i"
        for endings in (_STEP_2, _STEP_3, _STEP_4):
            word = _replaced(word, endings, first, second)
        word = _without_e(word, first, second)
    return word.replace("Y", "y")


def _marked(word: str) -> str:
    """The word with a capital Y for each y that is a consonant: the first letter, or after a vowel.

    An y after such a Y is a vowel.
    """
    letters = list(word)
    for place, letter in enumerate(letters):
        if letter == "y" and (place == 0 or letters[place - 1] in VOWELS):
            letters[place] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """Where R1 and R2 begin: each after a consonant that follows a vowel."""
    start = _LONG_START.match(word) or _REGION.match(word)
    if not start:
        return len(word), len(word)
    second = _REGION.match(word, start.end())
    return start.end(), second.end() if second else len(word)


def _without_possessive(word: str) -> str:
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            return word.removesuffix(ending)
    return word


def _without_s(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    plural = word.endswith("s") and not word.endswith(("us", "ss"))
    return word[:-1] if plural and _has_vowel(word[:-2]) else word


def _without_ed(word: str, first: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            base = word.removesuffix(ending)
            return base + "ee" if len(base) >= first else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            break
    else:
        return word
    base = word.removesuffix(ending)
    if not _has_vowel(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base.endswith(_DOUBLE):
        return base[:-1]
    return base + "e" if len(base) == first and _SHORT_END.search(base) else base


def _replaced(word: str, endings: Mapping[str, str], first: int, second: int) -> str:
    """The word with another ending, if the longest one that fits lies in its region."""
    for size in range(min(7, len(word)), 1, -1):
        ending = word[-size:]
        if ending in endings:
            break
    else:
        return word
    base = word[:-size]
    region = second if endings is _STEP_4 or ending == "ative" else first
    if len(base) < region:
        return word
    before = {"ogi": "l", "li": _PLAIN_LI, "ion": "st"}.get(ending)
    if before is not None and (not base or base[-1] not in before):
        return word
    return base + endings[ending]


def _without_e(word: str, first: int, second: int) -> str:
    base = word[:-1]
    if word.endswith("e"):
        in_first = len(base) >= first and not _SHORT_END.search(base)
        return base if len(base) >= second or in_first else word
    return base if word.endswith("ll") and len(base) >= second else word


def _has_vowel(text: str) -> bool:
    return any(letter in VOWELS for letter in text)
