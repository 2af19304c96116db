"""CIDEr: the agreement of a caption with its references, by tf-idf weighted n-grams.

This computes what the official scorer (coco-caption, pycocoevalcap) calls CIDEr. It is the variant
that Vedantam et al. (CVPR 2015) call CIDEr-D: n-grams of 1 to 4 words, each count clipped to that
of the reference, a Gaussian penalty on the difference in length (σ = 6), and a factor of 10. Words
are not stemmed. Document frequencies come from the references of the evaluated items and from no
other corpus, so a score depends on which items are evaluated together.

The official loops over n-grams are sparse matrices here, where every row is a caption.
Source: Vedantam et al., CVPR 2015; coco-caption's `cider_scorer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LONGEST = 4  # n-gram
SIGMA = 6.0  # of the length penalty; a length is counted in bigrams, as the official scorer does
SCALE = 10.0


def cider(
    references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]
) -> tuple[float, dict[str, float]]:
    """The mean score of tokenised captions, 0 to 10, and the score of each id.

    Both have the same ids; document frequencies are counted in `references`.
    """
    ids = list(references)
    owner = np.repeat(np.arange(len(ids)), [len(references[id]) for id in ids])
    captions = [candidates[id] for id in ids] + [
        caption for id in ids for caption in references[id]
    ]
    words = [caption.split() for caption in captions]
    bigrams = np.array([max(0, len(caption) - 1) for caption in words])
    longer = bigrams[owner] - bigrams[len(ids) :]
    alike = sum(_cosines(_counts(words, n), owner) for n in range(1, LONGEST + 1)) / LONGEST
    alike = alike * np.exp(-(longer**2) / (2 * SIGMA**2))
    scores = SCALE * np.bincount(owner, alike) / np.bincount(owner)
    return float(scores.mean()), dict(zip(ids, scores.tolist(), strict=True))


def agreement(captions: Sequence[Sequence[str]]) -> np.ndarray:
    """CIDEr of each tokenised caption with each other one as its only reference, 0 to 10, [C, C].

    Without a corpus every n-gram weighs the same.
    """
    bigrams = np.array([max(0, len(words) - 1) for words in captions])
    alike = np.zeros((len(captions), len(captions)))
    for n in range(1, LONGEST + 1):
        counts = _counts(captions, n).toarray()
        norms = np.sqrt((counts**2).sum(1))
        shared = (np.minimum(counts[:, None], counts) * counts).sum(2)
        sizes = norms[:, None] * norms
        alike += np.divide(shared, sizes, out=np.zeros_like(alike), where=sizes > 0) / LONGEST
    return SCALE * alike * np.exp(-((bigrams[:, None] - bigrams) ** 2) / (2 * SIGMA**2))


def _counts(captions: Sequence[Sequence[str]], n: int) -> csr_array:
    """How often each caption has each n-gram, [captions, n-grams]."""
    from scipy.sparse import csr_array  # here, since it is a fifth of a training's imports

    numbers: dict[tuple[str, ...], int] = {}
    columns, starts = list[int](), [0]
    for words in captions:
        for gram in zip(*(words[skip:] for skip in range(n)), strict=False):
            columns.append(numbers.setdefault(gram, len(numbers)))
        starts.append(len(columns))
    shape = (len(captions), max(1, len(numbers)))
    counts = csr_array((np.ones(len(columns)), columns, starts), shape=shape)
    counts.sum_duplicates()
    return counts


def _cosines(counts: csr_array, owner: np.ndarray) -> np.ndarray:
    """Cosine of each reference with its candidate, [references].

    Args:
        counts: Rows of the candidates, then of the references.
        owner: The number of each reference's candidate, ascending.
    """
    from scipy.sparse import csr_array

    items = counts.shape[0] - len(owner)
    of_references = counts[items:]
    belongs = csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    documents = (belongs @ of_references).astype(bool).sum(0)  # that have an n-gram
    weighed = counts.multiply(np.log(items) - np.log(np.maximum(documents, 1))).tocsr()
    norms = np.sqrt(weighed.power(2).sum(1))
    references, candidates = weighed[items:], weighed[owner]
    shared = candidates.minimum(references).multiply(references).sum(1)
    sizes = norms[items:] * norms[owner]
    return np.divide(shared, sizes, out=np.zeros(len(owner)), where=sizes > 0)
