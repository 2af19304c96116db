"""Labels that cannot all be right: what `cc-prep inspect` finds in flags, captions and masks.

contradiction    the flag (`kind`), the captions or the mask say that something changed, and another
                 of them that nothing did
near duplicate   both images are nearly those of a pair of another split
shared caption   two pairs with different changes share a caption word for word
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from cc_prep.datasets.exclusions import Exclusion
from cc_prep.records import NO_CHANGE, Facts, ImagePair

CONTRADICTION, DUPLICATE, SHARED = REASONS = ("contradiction", "near duplicate", "shared caption")
DISTANCE = 4  # bits of 64 in which the hashes of nearly the same image differ at most
AT_ONCE = 2**22  # comparisons of hashes in one go: 64 MB, however many pairs there are
_SCENE = (
    r"(?:everything|all(?: objects)?"
    r"|(?:the |both |these )*(?:two )?(?:scene|image|picture|photo|object)s?)"
)
# What may follow without saying more: where, between what, in whose eyes. A closed list, because
# "the scene is the same as before and a house was built" says more.
_REST = (
    r"(?: (?:in|on|of|to|at) the(?: (?!(?:and|with|where|then)\b)\w+){1,2})?"
    r"(?: (?:in|between|of|to|at|from|for|with|as|like|about|it|was|all|any|either|here|now|before"
    r"|and|after|first|second|1st|2nd|last|left|right|top|bottom|other|previous|earlier|later"
    r"|original|current|whole|entire|the|a|an|this|that|these|those|both|two|2|one|each|pair|set"
    r"|i|we|you|can|could|see|find|notice|spot|tell"
    r"|(?:scene|image|picture|photo|photograph|pic|frame|shot|screenshot|video|object|area|region"
    r"|place|time|view|side|version)s?))*"
)
_UNCHANGED = re.compile(
    r"(?:there (?:is|are|was|were|(?:seems?|appears?) to be) |(?:i|we) (?:can )?(?:see|find) )?"
    r"(?:almost )?no (?:\w+ )?(?:change|difference)s?"
    r"(?: (?:has|have|was|were|is|are|can be))?(?: been)?"
    r"(?: (?:occurred|made|happened|found|seen|spotted|noted|visible|detected|observed))?"
    rf"{_REST}"
    r"|(?:there is )?(?:almost )?nothing (?:(?:has|was|is|(?:seems|appears) to have) )?(?:been )?"
    rf"(?:changed|modified|altered|happened|moved|different){_REST}"
    rf"|{_SCENE} (?:is|are|remains?|remained|stays?|stayed|seems?|looks?|appears?)"
    rf"(?: to be)?(?: exactly| almost)? (?:the same|same|identical|unchanged|where it was){_REST}"
)
_EXCEPTION = re.compile(r"\b(?:but|except|however|although|apart|other than|while|only)\b")


def says_nothing_changed(caption: str) -> bool:
    """Whether a sentence says that nothing changed, and no more than that."""
    words = " ".join(re.sub(r"[^\w ]", " ", caption.lower()).split())
    return bool(_UNCHANGED.fullmatch(words)) and not _EXCEPTION.search(words)


def contradictions(
    pairs: Iterable[ImagePair], mask_classes: Mapping[str, frozenset[int]]
) -> Iterator[Exclusion]:
    """Pairs whose flag, captions and mask do not agree.

    mask_classes: the classes in the mask of each pair whose mask could be read, by key; none of
        them where it is zero everywhere.
    """
    for pair in pairs:
        unchanged = sum(map(says_nothing_changed, pair.captions))
        sayings = {f"kind {pair.kind}": pair.kind != NO_CHANGE}
        if 0 < unchanged < len(pair.captions):
            detail = f"{unchanged} of {len(pair.captions)} captions say that nothing changed"
            yield _exclusion(pair, CONTRADICTION, detail)
        elif pair.captions:
            what = "nothing changed" if unchanged else "something changed"
            sayings[f"the captions say that {what}"] = not unchanged
        if pair.key in mask_classes:
            is_changed = bool(mask_classes[pair.key])
            sayings["the mask shows a change" if is_changed else "the mask is empty"] = is_changed
        if len({*sayings.values()}) > 1:
            yield _exclusion(pair, CONTRADICTION, "; ".join(sayings))


def near_duplicates(
    pairs: Sequence[ImagePair], hashes: Mapping[str, int], distance: int = DISTANCE
) -> Iterator[Exclusion]:
    """Pairs both of whose images are nearly those of a pair of another split.

    hashes: 64 bits of each image that could be read, by its reference. So that a test split stays
    whole, a pair of `test` is never named, one of `val` only for one of `test`, and of other splits
    that of the larger one.
    """
    counts = Counter(pair.split for pair in pairs)
    # Of two splits, the one whose pair is named comes first here.
    names = sorted(counts, key=lambda name: (name == "test", name == "val", -counts[name], name))
    known = [pair for pair in pairs if pair.before in hashes and pair.after in hashes]
    known.sort(key=lambda pair: names.index(pair.split))
    sides = [
        np.array([hashes[reference] for reference in references], np.uint64)
        for references in ([p.before for p in known], [p.after for p in known])
    ]
    sizes = Counter(pair.split for pair in known)
    end = 0
    for name in names:
        begin, end = end, end + sizes[name]
        others = len(known) - end  # the pairs of the splits after this one
        step = max(1, AT_ONCE // max(1, others))
        for start in range(begin, end if others else begin, step):
            rows = np.arange(start, min(start + step, end))
            close = np.ones((len(rows), others), bool)
            for values in sides:
                close &= np.bitwise_count(values[rows, None] ^ values[end:]) <= distance
                has_any = close.any(1)
                rows, close = rows[has_any], close[has_any]
            # One counterpart each: all images of a fixed camera may look alike.
            for row, column in zip(rows, close.argmax(1), strict=True):
                yield _exclusion(known[row], DUPLICATE, f"looks like {known[end + column].key}")


def shared_captions(
    pairs: Iterable[ImagePair], mask_classes: Mapping[str, frozenset[int]]
) -> Iterator[Exclusion]:
    """Pairs that share a caption with a pair whose change is another one.

    Changes differ where flag, type of change or facts do, and where the classes in the masks have
    none in common. Of pairs without such labels nothing is known. Sentences of no change, and pairs
    whose own labels contradict each other, are left out: one wrong label would condemn every pair
    with such a sentence.
    """
    pairs = list(pairs)
    contradictory = {one.pair for one in contradictions(pairs, mask_classes)}
    sharing: dict[str, list[ImagePair]] = defaultdict(list)
    for pair in pairs:
        if (pair.split, pair.id, pair.kind) in contradictory:
            continue
        words = (" ".join(caption.lower().split()) for caption in pair.captions)
        for caption in dict.fromkeys(words):
            if not says_nothing_changed(caption):
                sharing[caption].append(pair)
    for caption, together in sharing.items():
        labels = (
            {pair.kind for pair in together},
            {pair.change_type for pair in together},
            {_changed_looks(pair.facts) for pair in together},
        )
        classes = {mask_classes[pair.key] for pair in together if mask_classes.get(pair.key)}
        disjoint = any(not one & other for one in classes for other in classes)
        if disjoint or any(len(known - {None}) > 1 for known in labels):
            for pair in together:
                yield _exclusion(pair, SHARED, caption)


def _changed_looks(facts: Facts | None) -> tuple[object, ...] | None:
    """What changed of an object, other than its position."""
    if facts is None:
        return None
    sides = (facts.before, facts.after)
    looks = [side and (side.color, side.shape, side.material, side.size) for side in sides]
    return (facts.type, *looks)


def _exclusion(pair: ImagePair, reason: str, detail: str) -> Exclusion:
    return Exclusion(pair.split, pair.id, pair.kind, reason, detail)
