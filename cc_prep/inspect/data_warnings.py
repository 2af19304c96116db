"""What is odd in captions and images without being wrong: the notes of `cc-prep inspect`."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cc_prep import unspaced
from cc_prep.datasets.exclusions import Exclusion
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, ImagePair
from cc_prep.steps.base import Size, size_text
from cc_prep.words import counted

FEW = 3  # pairs that a line names with what is wrong
ENLARGED = 1.5  # times: less is not noted
SHOWN = 5  # characters, or pairs, that a line names

# Where layouts say in which pairs nothing changed.
MARKS = {"table": "the column kind", "folders": "unchanged.txt", "levir_cc": "changeflag"}
MISSING = {"nan", "none", "null", "n/a", "na", "<na>", "nat", "undefined"}
MARKUP = re.compile(r"</?[a-z][^<>]*>|&(?:[a-z]+|#\d+|#x[0-9a-f]+);", re.IGNORECASE)
ODD_CAPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "no sentence but what programs write for a missing one": (
        lambda caption: caption.strip().lower() in MISSING,
        "Leave them empty",
    ),
    "without a letter or digit": (
        lambda caption: bool(caption.strip()) and not any(map(str.isalnum, caption)),
        "Leave them empty, or write a sentence",
    ),
    "with marks of HTML, which are read as words": (
        lambda caption: bool(MARKUP.search(caption)),
        "Take the marks out",
    ),
}


def of_captions(split: str, pairs: Iterable[ImagePair]) -> Iterable[str]:
    """Captions that occur twice or hold no words, and text that tokenisers may not split."""
    image_pairs = list(pairs)
    repeated = sum(len(pair.captions) - len(set(pair.captions)) for pair in image_pairs)
    if repeated:
        yield (
            f"{split}: {repeated} captions are repeated within their pair, and count as often. "
            "Leave one of each"
        )
    captions = [caption for pair in image_pairs for caption in pair.captions]
    for trait, (is_odd, remedy) in ODD_CAPTIONS.items():
        odd_captions = [caption.strip() for caption in captions if is_odd(caption)]
        if odd_captions:
            listed = _first([*dict.fromkeys(map(repr, odd_captions))])
            has = "caption is" if len(odd_captions) == 1 else "captions are"
            yield f"{split}: {len(odd_captions):,} {has} {trait}: {listed}. {remedy}"
    for trait, odd, remedy in (
        (
            "characters beyond ASCII",
            lambda c: not c.isascii() and not _invisible(c),
            "Quotes and dashes among them become plain by captions.normalise: [ascii_quotes]",
        ),
        ("control or invisible characters", _invisible, "Take them out"),
    ):
        odd_characters = [{c for c in caption if odd(c)} for caption in captions]
        counts = Counter(c for chars in odd_characters for c in chars)
        if counts:
            examples = ", ".join(f"{_shown(c)} {n}" for c, n in counts.most_common(SHOWN))
            number = sum(map(bool, odd_characters))
            yield f"{split}: {number} captions have {trait} ({examples}). {remedy}"
    parted = sum(not unicodedata.is_normalized("NFC", caption) for caption in captions)
    if parted:
        yield (
            f"{split}: {parted} captions have letters apart from their marks, so that words which "
            "look alike differ. Set captions.normalise: [nfc]"
        )
    note = unspaced.note(captions)
    if note:
        yield f"{split}: {note}"


def of_images(
    pairs: Iterable[ImagePair], digests: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Notes and faults of images that are the same pixel by pixel.

    Args:
        digests: Of each image that could be read, by its reference.
    """
    notes, splits_of = [], defaultdict[str, dict[str, str]](dict)
    ends: dict[tuple[str, str], list[str]] = defaultdict(list)
    still = []
    for pair in pairs:
        before, after = digests.get(pair.before), digests.get(pair.after)
        if before is None or after is None:
            continue
        ends[before, after].append(pair.name)
        if before == after and pair.kind == CHANGE:
            still.append(pair.name)
        for digest in (before, after):
            splits_of[digest].setdefault(pair.split, pair.name)
    several = [keys for keys in ends.values() if len(keys) > 1]
    if several:
        notes.append(
            f"{sum(map(len, several))} pairs show what another shows: {_named(several)}. Make one "
            "pair of them, with all captions"
        )
    if still:
        examples = ", ".join(still[:SHOWN])
        notes.append(
            f"{len(still)} changed pairs have the same image twice: {examples}. If they show no "
            "change, mark them so"
        )
    leaks = [sorted(splits.values()) for splits in splits_of.values() if len(splits) > 1]
    faults = (
        [
            f"{len(leaks)} images are in several splits: {_named(leaks)}. Keep all pairs of an "
            "image in one split"
        ]
        if leaks
        else []
    )
    return notes, faults


def of_dark(references: Sequence[str]) -> Iterator[str]:
    """Images that are as good as black, as those of 12 bits in a file of 16 are."""
    if references:
        yield (
            f"{counted(len(references), 'image')} {'is' if len(references) == 1 else 'are'} nearly "
            f"black: {_first(references)}. Where the values are to span less, set image.scale"
        )


def of_transparent(references: Sequence[str]) -> Iterator[str]:
    """Images with pixels that a viewer does not show, and whose colours are read all the same."""
    if references:
        yield (
            f"{_have(references, 'image')} transparent pixels, whose hidden colours are read: "
            f"{_first(references)}. Lay them over one colour first"
        )


def of_grey_masks(references: Sequence[str]) -> Iterator[str]:
    """Masks of two levels that were blurred, as a JPEG and a smooth resize do."""
    if references:
        yield (
            f"{_have(references, 'mask')} greys between black and white, and all but black counts "
            f"as changed: {_first(references)}. If they were JPEGs or were resized smoothly, save "
            "them in black and white; if the values are classes, name these in masks.classes"
        )


def of_resized(pairs: Iterable[ImagePair], sizes: Mapping[str, str]) -> Iterator[str]:
    """A note of pairs of two sizes where each image is made a square, whatever size it had."""
    listed = []
    for pair in pairs:
        before, after = sizes.get(pair.before), sizes.get(pair.after)
        if before and after and before != after:
            listed.append(f"{pair.name} ({before} and {after})")
    if listed:
        yield (
            f"{_have(listed, 'pair')} images of two sizes: {_first(listed)}. Each image is resized "
            "to image_size by itself; cc-train caption takes such pairs with --resize alone"
        )


def of_enlarged(sizes: Iterable[Size], side: int) -> Iterator[str]:
    """A note of images that are much smaller than the squares of `side` px made of them."""
    small = Counter(size_text(size) for size in sizes if ENLARGED * max(size) <= side)
    if small:
        [(most, _)] = small.most_common(1)
        are = "image is" if small.total() == 1 else "images are"
        yield (
            f"{small.total():,} {are} enlarged {ENLARGED} times or more to image_size={side}, such "
            f"as {most}: that adds no detail. Take larger originals if there are any"
        )


def of_split_file(split: str, pairs: Iterable[ImagePair], ids: Iterable[str]) -> Iterator[str]:
    """Ids that a split file has in a split and that no pair has."""
    strays = sorted({*ids} - {pair.id for pair in pairs})
    if strays:
        yield (
            f"{split}: no pair has these ids of the split file: {_first(strays)}. Correct them "
            "there, or take them out"
        )


def of_audit(manifest: Manifest, findings: Iterable[Exclusion]) -> Iterator[str]:
    """A line for each reason and split: how many pairs, some of them, and what to do."""
    details: dict[tuple[str, str], dict[tuple[str, str, str], str]] = defaultdict(dict)
    for one in findings:
        details[one.split, one.reason].setdefault(one.pair, f"{one.id} ({one.detail})")
    for (split, reason), of_pairs in details.items():
        listed = [*of_pairs.values()]
        yield (
            f"{split}: {counted(len(listed), 'pair')} with a {reason}: {_first(listed)}. "
            f"{_remedy(manifest, reason)}"
        )


def _remedy(manifest: Manifest, reason: str) -> str:
    """What to do about the labels of some pairs."""
    leave_out = f"leave them out: --write-exclusions FILE --reason '{reason}'"
    if reason == "near duplicate" and manifest.layout in ("table", "folders"):
        return f"Divide the pairs anew by cc-prep split, or {leave_out}"
    if reason == "contradiction" and manifest.layout in MARKS:
        is_marked = manifest.captions.mark_unchanged or manifest.layout == "levir_cc"
        marked = "" if is_marked else "set captions.mark_unchanged: true, "
        return f"Correct {MARKS[manifest.layout]}, {marked}or {leave_out}"
    return f"L{leave_out[1:]}"


def _first(names: Sequence[str]) -> str:
    """The first few of some names, and how many there are beside them."""
    rest = f" and {len(names) - FEW:,} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + rest


def _have(things: Sequence[str], noun: str) -> str:
    return f"{counted(len(things), noun)} {'has' if len(things) == 1 else 'have'}"


def _named(groups: list[list[str]]) -> str:
    rest = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    return "; ".join(" = ".join(keys[:SHOWN]) for keys in groups[:SHOWN]) + rest


def _invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn") or character == "\ufffd"
    )


def _shown(character: str) -> str:
    return f"U+{ord(character):04X}" if _invisible(character) else character
