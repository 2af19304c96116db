"""METEOR 1.5 of captions: the scores of `meteor-1.5.jar - - -stdio -l en -norm`.

Words match if they are the same, or have the same stem, a common meaning in WordNet or a paraphrase
in METEOR's table. The score is a harmonic mean of precision and recall, in which function words
count less, times a penalty for matches in many chunks.
Source: Denkowski and Lavie, "Meteor Universal", WMT 2014, and the program itself.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cc_train.evaluation.captions.meteor import tables
from cc_train.evaluation.captions.meteor.aligning import Match, Sentence, Vocabulary, align
from cc_train.evaluation.captions.meteor.words import words_of

# Of English, as they were tuned to ranks by people.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # of the modules


@dataclass
class Counts:
    """What the score of a caption, or of several, is computed from.

    Pairs are of the candidate and of the reference.

    Attributes:
        length: Words.
        function_words: How many of them are function words.
        content: Matched content words by module.
        function: Matched function words by module.
        chunks: Matches without a gap between them count once.
    """

    length: list[int] = field(default_factory=lambda: [0, 0])
    function_words: list[int] = field(default_factory=lambda: [0, 0])
    content: list[list[int]] = field(default_factory=lambda: [[0] * 4, [0] * 4])
    function: list[list[int]] = field(default_factory=lambda: [[0] * 4, [0] * 4])
    chunks: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all words match in one chunk, so that nothing is fragmented."""
        return self.chunks == 1 and self.matched == self.length

    @property
    def matched(self) -> list[int]:
        """Matched words."""
        return [sum(self.content[side]) + sum(self.function[side]) for side in (0, 1)]

    def add(self, other: Counts) -> None:
        """Adds those of another caption; a whole one has no chunks."""
        for side in (0, 1):
            self.length[side] += other.length[side]
            self.function_words[side] += other.function_words[side]
            for module in range(4):
                self.content[side][module] += other.content[side][module]
                self.function[side][module] += other.function[side][module]
        self.chunks += 0 if other.is_whole else other.chunks

    def score(self) -> float:
        """The score, 0 to 1."""
        matched = self.matched
        if not all(matched):
            return 0.0
        precision, recall = (self._share(side) for side in (0, 1))
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragments = 0.0 if self.is_whole else self.chunks / (sum(matched) / 2)
        return mean * (1 - GAMMA * fragments**BETA)

    def _share(self, side: int) -> float:
        """The weighted share of the words that match."""
        function = self.function_words[side]
        length = DELTA * (self.length[side] - function) + (1 - DELTA) * function
        matches = 0.0
        for count, weight in zip(self.content[side], WEIGHTS, strict=True):
            matches += count * weight * DELTA
        for count, weight in zip(self.function[side], WEIGHTS, strict=True):
            matches += count * weight * (1 - DELTA)
        return matches / length


class BrokenTable(Exception):
    """A table of METEOR's is no such table."""


def meteor(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    """Corpus score of each group of ids, and the score of each item, of tokenised captions.

    Scores are from 0 to 1. The best reference counts.

    Raises:
        OSError: A table in pycocoevalcap is missing.
        BrokenTable: One that is there cannot be read.
    """
    try:
        known = tables.read()
        words = {
            text: words_of(_clean(text), known.prefixes)
            for id, caption in candidates.items()
            for text in (caption, *references[id])
        }
        vocabulary = Vocabulary(dict.fromkeys(words.values()), known)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BrokenTable(f"a table of METEOR is broken: {error}") from None
    of_texts = {text: vocabulary.sentences[caption] for text, caption in words.items()}
    counts: dict[tuple[str, ...], Counts] = {}
    best = {}
    for id, caption in candidates.items():
        texts = (caption, *references[id])
        if texts not in counts:
            ours, *theirs = (of_texts[text] for text in texts)
            counts[texts] = _best(ours, theirs, vocabulary)
        best[id] = counts[texts]
    totals = []
    for group in groups:
        total = Counts()
        for id in candidates:
            if id in group:
                total.add(best[id])
        totals.append(total.score())
    return totals, {id: counted.score() for id, counted in best.items()}


def _best(ours: Sentence, theirs: Sequence[Sentence], vocabulary: Vocabulary) -> Counts:
    """The counts against the first of the best references."""
    options = [_counts(ours, reference, vocabulary) for reference in theirs]
    return max(options, key=Counts.score)


def _counts(ours: Sentence, theirs: Sentence, vocabulary: Vocabulary) -> Counts:
    matches = align(ours, theirs, vocabulary)
    counts = Counts(
        [len(ours.words), len(theirs.words)],
        [sum(ours.function), sum(theirs.function)],
        chunks=_chunks(matches),
    )
    for match in matches:
        spans = ((ours, match.other, match.other_length), (theirs, match.start, match.length))
        for side, (sentence, start, length) in enumerate(spans):
            function = sum(sentence.function[start : start + length])
            counts.function[side][match.module] += function
            counts.content[side][match.module] += length - function
    return counts


def _chunks(matches: Sequence[Match]) -> int:
    """Runs of matches that follow each other in both captions."""
    count, end, other_end = 0, -1, -1
    for match in matches:
        count += match.start != end or match.other != other_end
        end, other_end = match.start + match.length, match.other + match.other_length
    return count


def _clean(text: str) -> str:
    """A text as a line of the program's input holds it, without its separator and line breaks."""
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair, which JSON may hold
    return " ".join(text.replace("|||", " ").split())
