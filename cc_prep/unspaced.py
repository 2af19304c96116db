"""Scripts that are written without blanks between words: Chinese, Japanese, Thai, Lao, Khmer, …

Where blanks do not divide words, each character is a token of its own, as SacreBLEU's tokenizer
`zh` has it (sacrebleu/tokenizers/tokenizer_zh.py); everything else is split as other captions are.
Here kana and the scripts of South-East Asia (class SA of Unicode's UAX #14) are such characters
too, each with its combining marks; U+2600 to U+27BF, which are symbols, are none. Korean, which has
blanks, is left to its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

# How captions are split into words, by trainings and for scores: as English is, or so that each
# character of these scripts is a word.
Words = Literal["treebank", "characters"]
_BLOCKS = (
    ("\u0e00", "\u0eff"),  # Thai, Lao
    ("\u1000", "\u109f"),  # Myanmar
    ("\u1780", "\u17ff"),  # Khmer
    ("\u1950", "\u19ff"),  # Tai Le, New Tai Lue, Khmer symbols
    ("\u1a20", "\u1aaf"),  # Tai Tham
    ("\u2e80", "\u312f"),  # radicals, punctuation, kana, Bopomofo
    ("\u3190", "\u9fff"),  # strokes, enclosed and squared forms, ideographs
    ("\ua9e0", "\ua9ff"),  # Myanmar
    ("\uaa60", "\uaadf"),  # Myanmar, Tai Viet
    ("\uf900", "\ufaff"),  # compatibility ideographs
    ("\ufe10", "\ufe1f"),  # vertical punctuation
    ("\ufe30", "\ufe4f"),
    ("\uff00", "\uff9f"),  # full-width ASCII, half-width kana
    ("\uffe0", "\uffe6"),  # full-width signs
    ("\U0001aff0", "\U0001b16f"),  # kana
    ("\U00020000", "\U0003ffff"),  # ideographs
)
_RANGES = "".join(f"{first}-{last}" for first, last in _BLOCKS)
# Combining marks, and the vowels AM, which are drawn over what stands before them. The large blocks
# are of ideographs, which have none but the selectors of variants.
_MARKS = "".join(
    character
    for first, last in _BLOCKS
    if ord(last) - ord(first) < 1000
    for character in map(chr, range(ord(first), ord(last) + 1))
    if unicodedata.category(character).startswith("M") or character in "\u0e33\u0eb3"
)
_EXTENDING = f"[{_MARKS}\u0300-\u036f\ufe00-\ufe0f\U000e0100-\U000e01ef\u200d]"
_CHARACTER = re.compile(rf"(?!\s)[{_RANGES}]{_EXTENDING}*")
MAX_WORD = 5  # letters a word on average, in captions whose words have blanks between them


def tokens_of(text: str, words_of: Callable[[str], Iterable[str]]) -> list[str]:
    """The tokens of a text: each character of these scripts, and the words of what is between.

    Args:
        text: A caption, which is composed first (Unicode's NFC).
        words_of: Splits a text without such characters.

    Returns:
        The tokens in their order; the characters are lower-cased, as full-width letters can be.
    """
    text = unicodedata.normalize("NFC", text)
    tokens, end = list[str](), 0
    for match in _CHARACTER.finditer(text):
        tokens += words_of(text[end : match.start()])
        tokens.append(match[0].lower())
        end = match.end()
    return [*tokens, *words_of(text[end:])]


def is_character(token: str) -> bool:
    """Whether a token is a character of these scripts, punctuation included."""
    return _CHARACTER.fullmatch(token) is not None


def is_punctuation(token: str) -> bool:
    """Whether a token is a punctuation mark of these scripts, such as 。 or ！."""
    return is_character(token) and unicodedata.category(token[0]).startswith("P")


def joined(tokens: Sequence[str]) -> str:
    """The text of tokens: with a blank between two words, and none beside such a character."""
    blanks = [
        "" if is_character(left) or is_character(right) else " " for left, right in pairwise(tokens)
    ]
    return "".join(part for pair in zip(tokens, [*blanks, ""], strict=False) for part in pair)


def note(captions: Iterable[str]) -> str:
    """What to do about captions of these scripts without blanks between their words.

    Args:
        captions: Those of a split, or the references of an evaluation.

    Returns:
        How many they are and a remedy; an empty text where there are none, or blanks divide them.
    """
    lengths = [_letters(caption) for caption in captions]
    pieces = [count for of_caption in lengths for count in of_caption]
    if sum(pieces) <= MAX_WORD * len(pieces):
        return ""
    return (
        f"{sum(map(bool, lengths)):,} captions have no blanks between their words, so that a whole "
        "sentence is one word. Set words=characters for a training (--set words=characters) and "
        "for its scores (--words characters)"
    )


def _letters(caption: str) -> list[int]:
    """How many letters of these scripts each part between two blanks has, if it has any."""
    if caption.isascii():
        return []
    counts = [
        sum(unicodedata.category(one[0]).startswith("L") for one in _CHARACTER.findall(part))
        for part in caption.split()
    ]
    return [count for count in counts if count]
