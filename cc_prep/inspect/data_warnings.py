"""What is odd in captions and images without being wrong: the notes of `cc-prep inspect`."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cc_prep import unspaced
from cc_prep.datasets.exclusions import Exclusion
from cc_prep.records import CHANGE, ImagePair
from cc_prep.words import counted

FEW = 3  # pairs that a line names with what is wrong
SHOWN = 5  # characters, or pairs, that a line names


def of_captions(split: str, pairs: Iterable[ImagePair]) -> Iterable[str]:
    """Captions that occur twice in a pair, and text that tokenisers may not split into words."""
    image_pairs = list(pairs)
    repeated = sum(len(pair.captions) - len(set(pair.captions)) for pair in image_pairs)
    if repeated:
        yield f"{split}: {repeated} captions are repeated within their pair"
    captions = [caption for pair in image_pairs for caption in pair.captions]
    for trait, odd in (
        ("characters beyond ASCII", lambda c: not c.isascii() and not _invisible(c)),
        ("control or invisible characters", _invisible),
    ):
        odd_characters = [{c for c in caption if odd(c)} for caption in captions]
        counts = Counter(c for chars in odd_characters for c in chars)
        if counts:
            examples = ", ".join(f"{_shown(c)} {n}" for c, n in counts.most_common(SHOWN))
            yield f"{split}: {sum(map(bool, odd_characters))} captions have {trait} ({examples})"
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

    digests: of each image that could be read, by its reference.
    """
    notes, splits_of = [], defaultdict[str, dict[str, str]](dict)
    ends: dict[tuple[str, str], list[str]] = defaultdict(list)
    still = []
    for pair in pairs:
        before, after = digests.get(pair.before), digests.get(pair.after)
        if before is None or after is None:
            continue
        ends[before, after].append(pair.key)
        if before == after and pair.kind == CHANGE:
            still.append(pair.key)
        for digest in (before, after):
            splits_of[digest].setdefault(pair.split, pair.key)
    several = [keys for keys in ends.values() if len(keys) > 1]
    if several:
        notes.append(f"{sum(map(len, several))} pairs show what another shows: {_named(several)}")
    if still:
        examples = ", ".join(still[:SHOWN])
        notes.append(f"{len(still)} changed pairs have the same image twice: {examples}")
    leaks = [sorted(splits.values()) for splits in splits_of.values() if len(splits) > 1]
    faults = [f"{len(leaks)} images are in several splits: {_named(leaks)}"] if leaks else []
    return notes, faults


def of_dark(references: Sequence[str]) -> Iterator[str]:
    """Images that are as good as black, as those of 12 bits in a file of 16 are."""
    if references:
        yield (
            f"{counted(len(references), 'image')} {'is' if len(references) == 1 else 'are'} nearly "
            f"black: {', '.join(references[:FEW])}"
            f"{' …' if len(references) > FEW else ''}. Scale images of 10 to 12 bits in a file "
            "of 16 first"
        )


def of_sizes(pairs: Iterable[ImagePair], sizes: Mapping[str, str]) -> Iterator[str]:
    """Faults of pairs whose two images differ in size, of each that could be read."""
    for key, differ in _of_two_sizes(pairs, sizes):
        yield f"{key}: sizes differ ({differ}). Set image_size to resize both"


def of_resized(pairs: Iterable[ImagePair], sizes: Mapping[str, str]) -> Iterator[str]:
    """A note of such pairs where each image is made a square, whatever size it had."""
    listed = [f"{key} ({differ})" for key, differ in _of_two_sizes(pairs, sizes)]
    if listed:
        have = f"{len(listed)} pairs have" if len(listed) > 1 else "1 pair has"
        rest = f" and {len(listed) - FEW} more" if len(listed) > FEW else ""
        yield (
            f"{have} images of two sizes: {', '.join(listed[:FEW])}{rest}. Each image is resized "
            "to image_size by itself; cc-train caption refuses such pairs, so resize yours first"
        )


def _of_two_sizes(
    pairs: Iterable[ImagePair], sizes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Each pair whose images differ in size, by its key, and both sizes."""
    for pair in pairs:
        before, after = sizes.get(pair.before), sizes.get(pair.after)
        if before and after and before != after:
            yield pair.key, f"{before} and {after}"


def of_split_file(split: str, pairs: Iterable[ImagePair], ids: Iterable[str]) -> Iterator[str]:
    """Ids that a split file has in a split and that no pair has."""
    strays = sorted({*ids} - {pair.id for pair in pairs})
    if strays:
        rest = f" and {len(strays) - FEW} more" if len(strays) > FEW else ""
        yield f"{split}: no pair has these ids of the split file: {', '.join(strays[:FEW])}{rest}"


def of_audit(findings: Iterable[Exclusion]) -> Iterator[str]:
    """A line for each reason and split: how many pairs, and some of them with what is wrong."""
    details: dict[tuple[str, str], dict[tuple[str, str, str], str]] = defaultdict(dict)
    for one in findings:
        details[one.split, one.reason].setdefault(one.pair, f"{one.id} ({one.detail})")
    for (split, reason), of_pairs in details.items():
        listed = [*of_pairs.values()]
        rest = f", and {len(listed) - FEW} more" if len(listed) > FEW else ""
        noun = "pair" if len(listed) == 1 else "pairs"
        yield f"{split}: {len(listed)} {noun} with a {reason}: {', '.join(listed[:FEW])}{rest}"


def _named(groups: list[list[str]]) -> str:
    rest = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    return "; ".join(" = ".join(keys[:SHOWN]) for keys in groups[:SHOWN]) + rest


def _invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn") or character == "\ufffd"
    )


def _shown(character: str) -> str:
    return f"U+{ord(character):04X}" if _invisible(character) else character
