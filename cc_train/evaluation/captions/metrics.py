"""Captions against references: BLEU-1..4, METEOR, ROUGE-L, CIDEr and SPICE, as COCO's scorer; S*m.

Conventions: Penn-Treebank tokens, lower-cased, without punctuation; BLEU over the corpus with the
closest reference length; ROUGE-L with β = 1.2; everything × 100. CIDEr is what the official scorer
calls CIDEr, which is CIDEr-D: n-grams of 1 to 4 words, counts clipped to those of the reference, a
Gaussian penalty on the difference in length (σ = 6), a factor of 10, and document frequencies from
the references of the evaluated items. So CIDEr of identical captions may reach 1000. S*m is what
papers on remote sensing call the mean of BLEU-4, METEOR, ROUGE-L and CIDEr. An empty
prediction scores 0 everywhere, with one exception: ROUGE-L against a reference without words, such
as "…", is 100, as in the official scorer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cc_prep import unspaced
from cc_prep.errors import UserError
from cc_prep.redaction import without_folders
from cc_prep.unspaced import Words
from cc_train.evaluation.captions import ptb
from cc_train.evaluation.captions.cider import cider
from cc_train.evaluation.captions.spice import Unavailable, spice

BLEU = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4")
PLAIN = (*BLEU, "ROUGE-L", "CIDEr")
MEAN, MEAN_OF = "S*m", ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr")
ORDER = (*BLEU, "METEOR", "ROUGE-L", "CIDEr", MEAN, "SPICE")
SIMILARITY, BERT_SCORE = "Similarity", "BERTScore"
CLIP_SCORE, REF_CLIP_SCORE = "CLIPScore", "RefCLIPScore"
LEARNED = (SIMILARITY, BERT_SCORE, CLIP_SCORE, REF_CLIP_SCORE)  # by networks: `learned`
SHOWN = (*ORDER, *LEARNED)
TOKENS: Mapping[Words, str] = {
    "treebank": "PTB tokens without punctuation",
    "characters": "each character of a script without blanks a token, other text in PTB tokens, "
    "without punctuation",
}
CONVENTIONS = (
    "CIDEr as the official scorer computes it, which is CIDEr-D (clipped counts, length penalty "
    "with σ = 6), with document frequencies from the references of the evaluated items; × 100"
)
NO_SPICE = "it parses English sentences"  # why it has no other words


@dataclass
class Scores:
    """Scores by measure, × 100: CIDEr from 0 to 1000, S*m to 325, CLIPScore to 250, RefCLIPScore
    to 143, all others to 100.

    Attributes:
        corpus: Scores of all items together.
        items: Scores of each id.
        left_out: Why a measure is missing.
        signature: See `cc_train.evaluation.signature`; empty unless it was requested.
    """

    corpus: dict[str, float] = field(default_factory=dict)
    items: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    signature: str = ""


Tokens = tuple[dict[str, list[str]], dict[str, str]]


def conventions(words: Words) -> str:
    """How captions are scored, in words."""
    return f"{TOKENS[words]}; {CONVENTIONS}"


def tokenised(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    words: Words = "treebank",
) -> Tokens:
    """Tokenised references and predictions.

    Missing and surplus predictions are errors: dropping either would change the score in silence.

    Args:
        words: How captions are split into words.

    Raises:
        UserError: Where ids do not fit.
    """
    missing, surplus = references.keys() - predictions.keys(), predictions.keys() - references
    for ids, what in ((missing, "without a prediction"), (surplus, "without references")):
        if ids:
            raise UserError(
                f"{len(ids)} ids are {what}, such as {min(ids)}",
                "Predict for exactly the pairs that have references",
            )
    if not references:
        raise UserError("nothing to score", "Give pairs that have captions")
    cache: dict[str, str] = {}
    tokenize = ptb.tokenize if words == "treebank" else _characters

    def tokens_of(text: str) -> str:
        if text not in cache:
            cache[text] = tokenize(text)
        return cache[text]

    empty = [id for id, captions in references.items() if not captions]
    if empty:
        raise UserError(f"{empty[0]} has no reference", "Leave it out")
    order = sorted(references)
    return {id: [tokens_of(r) for r in references[id]] for id in order}, {
        id: tokens_of(predictions[id]) for id in order
    }


def _characters(caption: str) -> str:
    """The characters and words of a caption, joined by blanks, as `ptb.tokenize` does."""
    tokens = unspaced.tokens_of(caption, lambda text: ptb.tokenize(text).split())
    return " ".join(token for token in tokens if not unspaced.is_punctuation(token))


def score(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    measures: Sequence[str] = ORDER,
) -> Scores:
    """Scores of predictions.

    Raises:
        UserError: Where ids do not fit.
    """
    return score_tokens(tokenised(references, predictions), measures)


def score_tokens(
    tokens: Tokens, measures: Sequence[str] = ORDER, words: Words = "treebank"
) -> Scores:
    """Scores of tokens that `tokenised` returned.

    Args:
        words: As they were split.
    """
    return score_groups(tokens, {"total": set(tokens[1])}, measures, words)["total"]


def score_groups(
    tokens: Tokens,
    groups: Mapping[str, Collection[str]],
    measures: Sequence[str] = ORDER,
    words: Words = "treebank",
) -> dict[str, Scores]:
    """Scores of each group of ids by itself; METEOR and SPICE run once for all groups.

    A measure that is not available is in `left_out` of every group, with the reason.

    Args:
        words: As the tokens were split.
    """
    wanted, measures = measures, [*measures, *(MEAN_OF if MEAN in measures else ())]
    by_group = {}
    for name, ids in groups.items():
        references = {id: tokens[0][id] for id in tokens[0] if id in ids}
        candidates = {id: [tokens[1][id]] for id in references}
        by_group[name] = _plain(references, candidates, measures)
    outside = {"METEOR": _meteor, "SPICE": _spice}
    for name, measure in outside.items():
        if name in measures:
            try:
                totals, item_scores = measure(tokens, list(groups.values()), words)
            except Unavailable as error:
                for scores in by_group.values():
                    scores.left_out[name] = without_folders(str(error))
                continue
            for scores, total in zip(by_group.values(), totals, strict=True):
                _put(scores, name, total, {id: item_scores[id] for id in scores.items})
    for scores in by_group.values():
        if MEAN in wanted:
            _put_mean(scores)
        scores.corpus = _chosen(scores.corpus, wanted)
        scores.items = {id: _chosen(values, wanted) for id, values in scores.items.items()}
    return by_group


def _meteor(
    tokens: Tokens, groups: Sequence[Collection[str]], words: Words
) -> tuple[list[float], dict[str, float]]:
    """See there; it keeps its English settings for all words. Raises Unavailable."""
    from cc_train.evaluation.captions.meteor import BrokenTable, meteor

    try:
        return meteor(*tokens, groups)
    except (OSError, BrokenTable) as error:
        raise Unavailable(str(error)) from None


def _spice(
    tokens: Tokens, groups: Sequence[Collection[str]], words: Words
) -> tuple[list[float], dict[str, float]]:
    """See there. Raises Unavailable."""
    if words != "treebank":
        raise Unavailable(NO_SPICE)
    return spice(*tokens, groups)


def _plain(
    references: dict[str, list[str]], candidates: dict[str, list[str]], measures: Sequence[str]
) -> Scores:
    """The measures whose groups are scored one by one."""
    scores = Scores(items={id: {} for id in candidates})
    if set(measures) & set(BLEU):
        from pycocoevalcap.bleu.bleu import Bleu

        whole, per_item = Bleu(4).compute_score(references, candidates, verbose=0)
        for name, total, item_scores in zip(BLEU, whole, per_item, strict=True):
            if name in measures:
                _put(scores, name, total, dict(zip(candidates, item_scores, strict=True)))
    if "ROUGE-L" in measures:
        from pycocoevalcap.rouge.rouge import Rouge

        total, item_scores = Rouge().compute_score(references, candidates)
        _put(scores, "ROUGE-L", total, dict(zip(candidates, item_scores, strict=True)))
    if "CIDEr" in measures:
        total, item_scores = cider(
            references, {id: caption for id, [caption] in candidates.items()}
        )
        _put(scores, "CIDEr", total, item_scores)
    return scores


def corpus_cider(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    words: Words = "treebank",
) -> float:
    """CIDEr alone, × 100."""
    tokens = tokenised(references, predictions, words)
    return score_tokens(tokens, ["CIDEr"], words).corpus["CIDEr"]


def add(scores: Iterable[Scores], name: str, values: Mapping[str, float]) -> None:
    """Adds a measure to the scores of groups, whose score is the mean of their items.

    Args:
        values: Of each id, not yet × 100.
    """
    for one in scores:
        own = {id: values[id] for id in one.items}
        _put(one, name, sum(own.values()) / len(own), own)


def _put_mean(scores: Scores) -> None:
    """Adds S*m, of all items together and of each, or why it is missing."""
    missing = [name for name in MEAN_OF if name not in scores.corpus]
    if missing:
        scores.left_out[MEAN] = f"it needs {' and '.join(missing)}"
        return
    for values in (scores.corpus, *scores.items.values()):
        values[MEAN] = sum(values[name] for name in MEAN_OF) / len(MEAN_OF)


def _chosen(values: Mapping[str, float], wanted: Sequence[str]) -> dict[str, float]:
    return {name: values[name] for name in ORDER if name in values and name in wanted}


def _put(scores: Scores, name: str, total: float, item_scores: Mapping[str, float]) -> None:
    scores.corpus[name] = 100 * float(total)
    for id, value in item_scores.items():
        scores.items[id][name] = 100 * float(value)
