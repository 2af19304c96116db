"""The Penn-Treebank tokenizer of Stanford CoreNLP as the official caption scores use it.

Tokens are lower-cased, without punctuation. This one needs no Java; tests/parity/test_ptb.py
measures how far the two agree. Its rules are of English; words of other languages end at blanks.
"""

from __future__ import annotations

import re
import unicodedata

# What pycocoevalcap drops. Brackets are not: it looks for "-LRB-" where "-lrb-" stands.
DROPPED = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
ABBREVIATIONS = (
    "mr|mrs|ms|dr|prof|rev|gen|sen|rep|gov|capt|sgt|col|lt|maj|st|jr|sr|vs|etc|inc|ltd|co|corp|"
    "bros|dept|fig|vol|approx|est|ave|blvd|rd|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|"
    "mon|tue|tues|wed|thu|thurs|fri|sat"
)
# Contractions of two words that are written as one.
JOINED = {
    "cannot": "can not",
    "gonna": "gon na",
    "gotta": "got ta",
    "wanna": "wan na",
    "gimme": "gim me",
    "lemme": "lem me",
    "whadya": "wha d ya",
    "'tis": "'t is",
    "'twas": "'t was",
}
_NORMAL = str.maketrans(
    {
        "“": "''",
        "”": "''",
        "„": "''",
        '"': "''",
        "’": "'",
        "‘": "'",
        "…": "...",
        "–": "--",
        "—": "--",
    }
)
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")  # emoji and the like, which Java's drops
# Vowels and accents that are characters of their own, of Latin to Burmese: part of their word.
_MARKS = "".join(
    mark for mark in map(chr, range(0x300, 0x1100)) if unicodedata.category(mark).startswith("M")
)
_WORD = rf"[^\W_][\w{_MARKS}]*"
_TOKEN = re.compile(
    rf"""
    (?P<url>https?://[^\s"']+|www\.[^\s"']+)
  | (?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)
  | (?P<tag>[\#@]{_WORD}|<\w+>)
  | (?P<joined>(?:{"|".join(JOINED)})(?!\w))
  | (?P<acronym>(?:[a-z]\.){{2,}}(?!\w))
  | (?P<bracket>-[lr][rcs]b-)
  | (?P<abbreviation>(?:{ABBREVIATIONS})\.(?!\w)|no\.(?=\s*\d))
  | (?P<initial>(?<!\w)[b-hj-z]\.(?=\s+\w|$))
  | (?P<number>[+-]?(?:\d+(?:[.,:/]\d+)+|\.\d+)(?!\w))
  | (?P<negated>{_WORD}(?=n't(?!\w)))
  | (?P<not>n't(?!\w))
  | (?P<clitic>'(?:s|m|d|ll|re|ve)(?!\w))
  | (?P<word>{_WORD}(?:(?:[-/_&]|(?<=\w)\.(?=\w))(?=[^\W_])[\w{_MARKS}]+(?<!n't))*)
  | (?P<dots>\.\s*\.(?:\s*\.)*)
  | (?P<dashes>-{{2,}})
  | (?P<quotes>''|``)
  | (?P<marks>[?!]{{2,}})
  | (?P<other>\S)
    """,
    re.VERBOSE,
)


def tokenize(caption: str) -> str:
    """The caption's tokens, joined by blanks."""
    text = _ASTRAL.sub("", caption.lower().translate(_NORMAL))
    tokens = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match.lastgroup == "joined":
            tokens.append(JOINED[token])
        elif match.lastgroup not in ("dots", "dashes", "quotes") and token not in DROPPED:
            tokens.append(BRACKETS.get(token, token))
    return " ".join(tokens)
