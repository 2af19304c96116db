"""Training shards → samples to train on, samples to validate on, and the vocabulary."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import Field
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.data import order, shard_index
from cc_train.data.mirroring import exchange_sides
from cc_train.data.shard_index import Entry
from cc_train.distributed import ALONE, Ranks
from cc_train.text import TextCodec, Vocabulary

VALID_DIGEST = "valid_sha256"
NO_CAPTIONS = ("the shards hold no captions", "Give shards of a captioned data set")


class ValidationSplit(Section):
    """What is held out for validation. A digest chooses."""

    share: float = Field(0.05, gt=0, lt=1)
    """The share of the scenes that is held out without --valid, always whole scenes."""
    scenes: int = Field(5, ge=1)
    """The smallest number of scenes to hold out; it never raises the share above a fifth."""
    pairs: int = Field(500, ge=1)
    """The largest number of pairs to validate on, also with --valid."""


@dataclass(frozen=True)
class Split:
    """Samples to train on and to validate on, and the JSON of the first one."""

    train: list[Entry]
    valid: list[Entry]
    first: dict[str, Any]

    def about(self) -> dict[str, Any]:
        """The split as a run's settings hold it: numbers of samples, and a digest of the keys of
        the validation samples, whatever their order. The stream has the digest of the others."""
        return {
            "train": len(self.train),
            "valid": len(self.valid),
            VALID_DIGEST: _digest(self.valid),
        }

    @property
    def size(self) -> list[int]:
        """Height and width of the images in px."""
        return [self.first["height"], self.first["width"]]


class DecoderSettings(Protocol):
    """What `captioned` reads of a decoder's settings: the number of a caption's words and marks."""

    @property
    def length(self) -> int: ...


class CaptionSettings(Protocol):
    """The settings of a captioner that `captioned` reads; see `vocabulary` for their meaning."""

    @property
    def validation_split(self) -> ValidationSplit: ...

    @property
    def vocabulary(self) -> str | None: ...

    @property
    def min_word_count(self) -> int: ...

    @property
    def mirror(self) -> float: ...

    @property
    def pairs_per_scene(self) -> int | None: ...

    @property
    def decoder(self) -> DecoderSettings: ...


def captioned(
    shards: Sequence[str],
    valid: Sequence[str],
    settings: CaptionSettings,
    console: Console,
    codec: type[Vocabulary] = Vocabulary,
    *,
    ranks: Ranks = ALONE,
    begun_with: Callable[[type[Vocabulary]], Vocabulary | None] = lambda codec: None,
) -> tuple[Split, Vocabulary]:
    """The samples that a captioner is trained and validated on, and its words. Raises UserError.

    Where the settings say how many ordered pairs are drawn from a scene (`pairs_per_scene`), the
    captions of reversed pairs count too. The first rank reads them, for all, when a run begins; a
    run that goes on has their words in its vocabulary.

    Args:
        codec: The kind of vocabulary.
        begun_with: The vocabulary of this kind of the run to resume, if it took a step;
            `TrainingRequest.begun_with` is such a function, which all ranks call together.
    """
    data = with_captions(read(shards, valid, settings.validation_split, console), console)
    backwards: list[str] = []
    begun = None
    if settings.pairs_per_scene is not None:
        begun = begun_with(codec)
        if begun is None:
            backwards = ranks.broadcast_from_rank0(
                lambda: shard_index.reversed_captions(data.train)
            )
    words = vocabulary(
        data.train,
        settings.vocabulary,
        settings.min_word_count,
        console,
        mirrored=settings.mirror > 0,
        codec=codec,
        backwards=backwards,
        begun=begun,
    )
    forwards = [caption for entry in data.train for caption in entry.captions]
    note_cut_captions([*forwards, *backwards], words, settings.decoder.length, console)
    return data, words


def is_validated_on(settings: Mapping[str, Any], entries: Sequence[Entry]) -> bool:
    """Whether a run chose its checkpoint on these samples, or on those that `validation_split`
    draws of them. The run's settings hold one digest: only exactly the same set is noticed.
    """
    samples, limits = settings.get("samples"), settings.get("validation_split")
    if not isinstance(samples, Mapping) or not isinstance(limits, Mapping):
        return False
    count = limits.get("pairs")
    drawn = order.sample(entries, [entry.key for entry in entries], count) if count else entries
    return bool(samples.get(VALID_DIGEST) == _digest(drawn))


def _digest(entries: Sequence[Entry]) -> str:
    """SHA-256 of the keys of samples, whatever their order."""
    keys = "\n".join(sorted(entry.key for entry in entries))
    return hashlib.sha256(keys.encode()).hexdigest()


def with_captions(data: Split, console: Console) -> Split:
    """The split without training pairs that have no caption, from which nothing can be learned.

    Raises:
        UserError: If no pair has one.
    """
    train = [entry for entry in data.train if entry.captions]
    if not train:
        raise UserError(*NO_CAPTIONS)
    if len(train) == len(data.train):
        return data
    left_out = len(data.train) - len(train)
    console.print(f"{left_out:,} pairs without a caption are left out")
    return replace(data, train=train, first=train[0].meta())


def read(
    shards: Sequence[str], valid: Sequence[str], settings: ValidationSplit, console: Console
) -> Split:
    """The samples to train on and to validate on.

    Args:
        shards, valid: Patterns of training shards; without `valid` a share of the scenes in
            `shards` is held out.

    Raises:
        UserError: For shards that cannot be read, for a pair in both, and if there are fewer than
            two scenes to divide.
    """
    entries = shard_index.read(shards)
    if valid:
        train, held_out = entries, shard_index.read(valid)
        shared = {entry.key for entry in train} & {entry.key for entry in held_out}
        if shared:
            raise UserError(
                f"{len(shared)} samples are in --shards and in --valid, such as {min(shared)}",
                f"Validate on what is not trained on. {shard_index.NAMES}",
            )
    else:
        scenes = [entry.scene for entry in entries]
        train, held_out = order.hold_out(entries, scenes, settings.share, settings.scenes)
    if not train or not held_out:
        raise UserError("fewer than two scenes", "Give more shards, or --valid")
    held_out = order.sample(held_out, [entry.key for entry in held_out], settings.pairs)
    console.print(f"{len(train):,} pairs, {len(held_out):,} to validate on")
    return Split(train, held_out, train[0].meta())


def vocabulary(
    entries: Sequence[Entry],
    file: str | None,
    min_count: int,
    console: Console,
    mirrored: bool = False,
    codec: type[Vocabulary] = Vocabulary,
    *,
    backwards: Sequence[str] = (),
    begun: Vocabulary | None = None,
) -> Vocabulary:
    """The vocabulary of the training captions, or that of a file.

    Args:
        min_count: How often a word has to occur.
        mirrored: Whether samples may be mirrored; words that occur only in the captions of mirrored
            samples come after the others.
        codec: The kind of vocabulary.
        backwards: The captions of reversed pairs; words that occur only in them come last.
        begun: The vocabulary of the run to resume. It is taken where it begins with the words of
            `entries`, and may have more, of reversed pairs: which of these can be read may differ
            from one start to the next.

    Raises:
        UserError: If there are no captions, or the file is no vocabulary.
    """
    if file is not None:
        return codec.read(file)
    captions = [caption for entry in entries for caption in entry.captions]
    if not captions:
        raise UserError(*NO_CAPTIONS)
    forwards = codec.of(captions, min_count)
    if mirrored:
        forwards = _lengthened(forwards, map(exchange_sides, captions), min_count)
    words, both = forwards, [*captions, *backwards]
    if backwards:
        words = _lengthened(words, both, min_count)
    if backwards and mirrored:
        words = _lengthened(words, map(exchange_sides, both), min_count)
    if begun is not None and begun.words[: len(forwards)] == forwards.words:
        words = begun
    of_reversed = f" and {len(backwards):,} of reversed pairs" if backwards else ""
    console.print(f"{len(captions):,} captions{of_reversed}, {len(words)} words")
    return words


def _lengthened(words: Vocabulary, captions: Iterable[str], min_count: int) -> Vocabulary:
    """The words, and behind them those that occur only in these other captions, in their order."""
    others = type(words).of(captions, min_count).words
    return type(words)([*words.words, *(word for word in others if word not in words.ids)])


def note_cut_captions(
    captions: Iterable[str], codec: TextCodec, length: int, console: Console
) -> None:
    """Says how many training captions are too long for a decoder, which learns their first part.

    Args:
        length: `decoder.length`, which counts the begin and the end mark too.
    """
    lengths = Counter[int]()
    for caption, times in Counter(captions).items():
        # No caption has more tokens than bytes, so here nothing is cut.
        ids, _ = codec.encode(caption, len(caption.encode()) + 2)
        lengths[int((ids != codec.marks.pad).sum())] += times
    cut = sum(times for needed, times in lengths.items() if needed > length)
    if cut:
        console.print(
            f"{cut:,} of {lengths.total():,} captions are cut to {length - 2} words in training: "
            f"decoder.length is {length}. With decoder.length={max(lengths)} none of these is"
        )
