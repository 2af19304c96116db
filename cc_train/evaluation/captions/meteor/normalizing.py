"""A caption as the words that METEOR 1.5 compares: its option -norm for English, in lower case.

Classes of characters are Java's, which are those of ASCII where Python's are Unicode's. The text
DOTMULTI, by which the program remembers dots, is read as it does where a caption holds it.
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
