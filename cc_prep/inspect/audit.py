"""Labels that cannot all be right: what `cc-prep inspect` finds in flags, captions and masks.

contradiction    the flag (`kind`), the captions or the mask say that something changed, and another
                 of them that nothing did
near duplicate   both images are nearly those of a pair of another split
shared caption   two pairs with different changes share a caption word for word
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from cc_prep.datasets.exclusions import Exclusion
from cc_prep.datasets.no_change_sentences import is_english, may_say_so, says_nothing_changed
from cc_prep.records import CHANGE_CLASS, NO_CHANGE, Facts, ImagePair

CONTRADICTION, DUPLICATE, SHARED = REASONS = ("contradiction", "near duplicate", "shared caption")
DISTANCE = 4  # bits of 64 in which the hashes of nearly the same image differ at most
AT_ONCE = 2**22  # comparisons of hashes in one go: 64 MB, however many pairs there are


def contradictions(
    pairs: Iterable[ImagePair], mask_classes: Mapping[str, frozenset[int]]
) -> Iterator[Exclusion]:
    """Pairs whose flag, captions and mask do not agree.

    Args:
        mask_classes: The classes in the mask of each pair whose mask could be read, by key; none of
            them where it is zero everywhere. A mask of named classes, such as buildings, shows
            changes of these alone: where it is empty, something else may have changed.
    """
    pairs = list(pairs)
    can_read = is_english(caption for pair in pairs for caption in pair.captions)
    for pair in pairs:
        unchanged = sum(map(says_nothing_changed, pair.captions))
        # A caption that may say either is no witness.
        changed = len(pair.captions) - sum(map(may_say_so, pair.captions))
        sayings = {f"kind {pair.kind}": pair.kind != NO_CHANGE}
        if unchanged and changed:
            detail = f"{unchanged} of {len(pair.captions)} captions say that nothing changed"
            yield _exclusion(pair, CONTRADICTION, detail)
        elif unchanged or (can_read and changed):
            what = "nothing changed" if unchanged else "something changed"
            sayings[f"the captions say that {what}"] = not unchanged
        if mask_classes.get(pair.key) or (pair.key in mask_classes and _shows_all(pair)):
            is_changed = bool(mask_classes[pair.key])
            sayings["the mask shows a change" if is_changed else "the mask is empty"] = is_changed
        if len({*sayings.values()}) > 1:
            yield _exclusion(pair, CONTRADICTION, "; ".join(sayings))


def _shows_all(pair: ImagePair) -> bool:
    """Whether the pair's mask shows every change, and not those of some classes alone."""
    return tuple(pair.mask_classes) == CHANGE_CLASS or pair.land_cover


def near_duplicates(
    pairs: Sequence[ImagePair], hashes: Mapping[str, int], distance: int = DISTANCE
) -> Iterator[Exclusion]:
    """Pairs both of whose images are nearly those of a pair of another split.

    Args:
        hashes: 64 bits of each image that could be read, by its reference. So that a test split
            stays whole, a pair of `test` is never named, one of `val` only for one of `test`, and
            of other splits that of the larger one.
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
                yield _exclusion(known[row], DUPLICATE, f"looks like {known[end + column].name}")


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
            {_changed_attributes(pair.facts) for pair in together},
        )
        classes = {mask_classes[pair.key] for pair in together if mask_classes.get(pair.key)}
        disjoint = any(not one & other for one in classes for other in classes)
        if disjoint or any(len(known - {None}) > 1 for known in labels):
            for pair in together:
                yield _exclusion(pair, SHARED, caption)


def _changed_attributes(facts: Facts | None) -> tuple[object, ...] | None:
    """What changed of an object, other than its position."""
    if facts is None:
        return None
    return (
        facts.type,
        *(
            (
                change.type,
                *(side and tuple(side.values.items()) for side in (change.before, change.after)),
            )
            for change in facts.changes
        ),
    )


def _exclusion(pair: ImagePair, reason: str, detail: str) -> Exclusion:
    return Exclusion(pair.split, pair.id, pair.kind, reason, detail)
