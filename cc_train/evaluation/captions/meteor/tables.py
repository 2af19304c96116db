"""METEOR's own tables, read from its jar: function words, prefixes, and WordNet's synonyms."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

JAR = "meteor-1.5.jar"
PARAPHRASES = "data/paraphrase-en.gz"
NUMERIC = "#NUMERIC_ONLY#"
# Endings and what stands in their place, in WordNet's order.
_ENDINGS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
    ("men", "man"), ("ies", "y"), ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"),
    ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"), ("est", "e"),
)  # fmt: skip


def file(name: str) -> Path:
    """One of the files that METEOR has in pycocoevalcap."""
    return Path(str(resources.files("pycocoevalcap") / "meteor" / name))


@dataclass(frozen=True)
class Tables:
    """What METEOR knows of English words.

    Attributes:
        function_words: Words that count less.
        prefixes: Words whose dot stays with them, and where (`words`).
        synsets: The numbers of the meanings of a word, as text.
        bases: The base forms of an irregular form.
    """

    function_words: frozenset[str]
    prefixes: Mapping[str, int]
    synsets: Mapping[str, str]
    bases: Mapping[str, list[str]]

    def meanings(self, word: str) -> frozenset[int]:
        """The numbers of the synsets of a word and of its base forms."""
        found = self._listed(word)
        for base in self.bases.get(word) or [self._base(word)]:
            found |= self._listed(base)
        return found

    def _listed(self, word: str) -> frozenset[int]:
        return frozenset(map(int, self.synsets.get(word, "").split()))

    def _base(self, word: str) -> str:
        """The word without the ending of an inflected form, as far as it is a word."""
        if word.endswith("ss") or len(word) <= 2:
            return word
        for ending, instead in _ENDINGS:
            base = word.removesuffix(ending) + instead
            if word.endswith(ending) and base in self.synsets:
                return base
        return ""


@functools.cache
def read() -> Tables:
    """The tables of the jar.

    Raises:
        OSError: Where it is missing.
        zipfile.BadZipFile: Where it is broken.
    """
    with zipfile.ZipFile(file(JAR)) as jar:

        def lines(name: str) -> list[str]:
            return jar.read(name).decode().splitlines()

        synsets = lines("synonym/english.synsets")
        exceptions = lines("synonym/english.exceptions")
        listed = [line.split() for line in lines("nonbreaking/english.prefixes")]
        function_words = frozenset(lines("function/english.words"))
    bases: dict[str, list[str]] = {}
    for base, forms in zip(exceptions[::2], exceptions[1::2], strict=True):
        for form in forms.split():
            bases.setdefault(form, []).append(base)
    prefixes = {
        first: 2 if rest[:1] == [NUMERIC] else 1
        for first, *rest in filter(None, listed)
        if not first.startswith("#")
    }
    return Tables(
        function_words, prefixes, dict(zip(synsets[::2], synsets[1::2], strict=True)), bases
    )
