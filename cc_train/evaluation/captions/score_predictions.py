"""Scores of predictions in a program: the measures of `cc-train evaluate` in one call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from cc_prep.errors import UserError
from cc_prep.unspaced import Words
from cc_train.evaluation import signature
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.captions.metrics import Scores

File: TypeAlias = "str | os.PathLike[str]"


def score(
    predictions: Mapping[str, str] | Sequence[str] | File,
    references: Mapping[str, Sequence[str]] | Sequence[Sequence[str]] | File,
    *,
    measures: Sequence[str] = metrics.ORDER,
    words: Words = "treebank",
    learned: Sequence[str] = (),
) -> Scores:
    """BLEU-1 to 4, METEOR, ROUGE-L, CIDEr, their mean S*m, and SPICE of predictions.

    `Scores.corpus` has each measure × 100, `Scores.items` those of each id (of lists `0`, `1`, …),
    `Scores.left_out` says why a measure is missing, and `Scores.signature` is what a paper cites
    beside them (docs/evaluation.md, Scores).

    Args:
        predictions: Captions by id, a list in the order of the references, or a file of any format
            that `cc-train evaluate --predictions` reads.
        references: Lists of captions by the same ids, a list of lists, or a file in COCO's format
            or {id: [captions]}, for which predictions need ids.
        measures: Those that are wanted; SPICE needs Java.
        words: How captions are split into words; `characters` makes a word of each character of a
            script without blanks.
        learned: Measures by networks that compare texts: `Similarity`, `Similarity=FOLDER` or
            `BERTScore=FOLDER`, a folder of transformers (docs/evaluation.md).

    Raises:
        UserError: Where predictions and references do not fit, and for an unknown measure or way to
            split.
    """
    if words not in get_args(Words):
        raise UserError(f"words={words!r}", f"Known: {', '.join(get_args(Words))}")
    unknown = [name for name in measures if name not in metrics.ORDER]
    if unknown:
        raise UserError(f"no measure is named {unknown[0]}", f"Known: {', '.join(metrics.ORDER)}")
    captions, known = _predictions(predictions), _references(references)
    names = {id: id for id in known}
    if isinstance(references, str | os.PathLike):
        path = os.fspath(references)
        if not isinstance(predictions, str | os.PathLike | Mapping):
            raise UserError(f"a list of predictions for {path}", "Give {id: caption}")
        captions, items = coco.matched(
            captions, coco.read_references(path), uncaptioned=coco.read_uncaptioned(path)
        )
        known = {item.id: item.references for item in items}
        names = {item.id: item.name for item in items}
    tokens = metrics.tokenised(known, captions, words)
    scores = metrics.score_tokens(tokens, measures, words)
    variants: dict[str, str] = {}
    if learned:
        from cc_train.evaluation.captions.learned import named

        for measure in named(learned):
            for name, values in measure.score(known, captions).items():
                metrics.add([scores], name, values)
            variants |= measure.variants
    scores.signature = signature.of(
        tokens[0], names, list(scores.corpus), learned=variants, words=words
    ).line
    return scores


def _predictions(predictions: Mapping[str, str] | Sequence[str] | File) -> dict[str, str]:
    if isinstance(predictions, str | os.PathLike):
        return coco.read_predictions([os.fspath(predictions)])
    named = _named(predictions)
    wrong = [id for id, caption in named.items() if not isinstance(caption, str)]
    if wrong:
        raise UserError(
            f"the prediction of {wrong[0]} is no text but {named[wrong[0]]!r:.40}",
            "Give a caption, which may be empty",
        )
    return named


def _references(
    references: Mapping[str, Sequence[str]] | Sequence[Sequence[str]] | File,
) -> dict[str, tuple[str, ...]]:
    if isinstance(references, str | os.PathLike):
        return {}
    named = _named(references)
    texts = [id for id, captions in named.items() if isinstance(captions, str)]
    if texts:
        raise UserError(f"the references of {texts[0]} are one text", "Give a list of captions")
    listed = {
        id: tuple(captions) if isinstance(captions, Iterable) else (captions,)
        for id, captions in named.items()
    }
    for id, captions in listed.items():
        if not all(isinstance(caption, str) for caption in captions):
            raise UserError(f"the references of {id} are no texts", "Give a list of captions")
    return listed


def _named(values: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Values by their ids as text, or by their numbers. Raises UserError for two of one id."""
    pairs = list(values.items() if isinstance(values, Mapping) else enumerate(values))
    named = {str(id): value for id, value in pairs}
    if len(named) < len(pairs):
        counts = Counter(str(id) for id, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise UserError(f"two ids are called {twice}", "Give ids that differ as text")
    return named
