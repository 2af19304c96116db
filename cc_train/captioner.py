"""The interface of a captioner: it takes two images and returns a sentence.

`evaluate`, `caption`, `report`, `compare`, `export` and the validation during training use only
this interface. `cc_train.loading` loads the captioner of a run, or of an exported folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from cc_train.calibration import Calibration
from cc_train.data.collate import FeatureSource, Reads
from cc_train.decoding.next_word import NextWord, Recomputing
from cc_train.decoding.search import beam, scored_greedy
from cc_train.text import TextCodec


@dataclass(frozen=True)
class Attention:
    """A captioner's attention for each word of a caption.

    Attributes:
        maps: float32 [words, h, w] on a grid that covers both images; each map sums to 1.
    """

    words: tuple[str, ...]
    maps: np.ndarray


@dataclass(frozen=True)
class Change:
    """A change of an object, as a captioner that finds objects names it.

    Boxes are left, top, right and bottom edge, as shares of the image's width and height.

    Attributes:
        kind: Such as "appeared", "disappeared" or "moved".
        label: What changed; "" where it is not known.
        before: Where it is in the image before; None where it is not there.
        after: The same in the image after.
        new: What it was replaced by; "" for other kinds.
        score: How sure the captioner is of the label, 0 to 1; 0 without one.
    """

    kind: str
    label: str
    before: tuple[float, float, float, float] | None
    after: tuple[float, float, float, float] | None
    new: str = ""
    score: float = 0.0


@dataclass(frozen=True)
class Caption:
    """A sentence about a pair.

    Attributes:
        beams: (sentence, sum of log-probabilities) of beam search, best first; empty for greedy.
        mask: Where something changed, class ids uint8 [H, W]; None for systems that do not say
            where.
        score: The sum of log-probabilities of the sentence; None for systems that do not say it.
        ood_score: How unlike the training data the pair is, about 1 for what is like it; None for
            systems that do not say it.
        confidence: The chance that the sentence is right, 0 to 1; None where the captioner is not
            calibrated (`cc_train.calibration`), and for beam search, since the calibration is of
            greedy sentences.
        attention: Where it looked for each word; None for systems that do not say it, and for beam
            search.
        changes: Of the objects that the sentence names; None for systems that find none.
        raw: The captioner's sentence, where `text` says in its place that it is not sure, or that
            the images are equal (`cc_train.doubt`); else None.
        compared: The share of the image before that the registered image after shows; None for
            images that are not registered.
    """

    text: str
    beams: tuple[tuple[str, float], ...] = ()
    mask: np.ndarray | None = None
    score: float | None = None
    ood_score: float | None = None
    confidence: float | None = None
    attention: Attention | None = None
    changes: tuple[Change, ...] | None = None
    raw: str | None = None
    compared: float | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Inputs:
    """What a captioner reads of a sample.

    Attributes:
        size: Height and width of the images in px.
        reads: What it takes of a training shard's sample; images are taken as well, and turned into
            these.
        mask_classes: Names of the classes 1 … K of its masks; empty where it says none, or does not
            know them.
        tokenizer: SHA-256 of the VQGAN whose tokens it reads; None where it reads no tokens.
        backbone: Whose features it reads; None where it reads none, or those of any backbone.
        takes_images: False where it has no weights of its backbone, and so takes stored features
            only.
        entities: How many names of things that were found in a pair it reads at most; 0 for those
            that read none (see `ReadsEntities`).
    """

    size: tuple[int, int]
    reads: Reads = "pixels"
    mask_classes: tuple[str, ...] = ()
    tokenizer: str | None = None
    backbone: FeatureSource | None = None
    takes_images: bool = True
    entities: int = 0


class CaptionModel(Protocol):
    """A trained captioner in evaluation, which takes tensors.

    `cc_train.Captioner` puts one into the hands of a user, who has images.
    """

    @property
    def inputs(self) -> Inputs: ...

    @property
    def device(self) -> torch.device: ...

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs.

        Args:
            before_after: Images uint8 [B, 2, H, W, 3] RGB, or what `inputs.reads` names: tokens
                int64 [B, 2, n], features float16 or float32 [B, 2, C, h, w].
            beams: 1 is greedy.
        """
        ...


class ReadsEntities(CaptionModel, Protocol):
    """A captioner that also reads the names of things that were found in a pair."""

    def caption(
        self, before_after: Tensor, beams: int = 1, entities: Sequence[Sequence[str]] | None = None
    ) -> list[Caption]:
        """Captions of pairs, as `CaptionModel.caption` returns them.

        Args:
            entities: Names for each pair, best first; None where none are known.
        """
        ...


@runtime_checkable
class LooksAgain(Protocol):
    """A captioner whose scores and attention cost a pass.

    Attributes:
        text_only: Whether it is left out.
    """

    text_only: bool


@contextmanager
def text_only(captioner: object) -> Iterator[None]:
    """Captions without scores and attention in this block, where these cost a pass."""
    if not isinstance(captioner, LooksAgain):
        yield
        return
    captioner.text_only = True
    try:
        yield
    finally:
        captioner.text_only = False


@dataclass(frozen=True)
class Encoded:
    """What an encoder makes of B pairs.

    Attributes:
        memory: What the decoder attends to, [B, …].
        masks: Where something changed, class ids uint8 [B, H, W]; None for systems that do not say
            where.
    """

    memory: Tensor
    masks: Tensor | None = None


class EncoderDecoder(nn.Module):
    """A captioner made of an encoder of pairs and a decoder of words.

    A system implements `memory` and `logits`; one that has a faster way to decode overrides
    `next_word`.

    Args:
        length: Positions of a sentence, its begin and end marks included.
    """

    def __init__(self, inputs: Inputs, codec: TextCodec, length: int) -> None:
        super().__init__()
        self.inputs, self.codec, self.length = inputs, codec, length
        self.calibration: Calibration | None = None
        self._next_word: NextWord | None = None

    def ood_score(self, before_after: Tensor) -> list[float | None]:
        """How unlike the training data each pair is; None where a system does not say it."""
        return [None] * len(before_after)

    def prepare(self, before_after: Tensor) -> Tensor:
        """What `memory` and `ood_score` both need of pairs, computed once; the pairs themselves
        where a system does not override it.
        """
        return before_after

    def memory(self, before_after: Tensor) -> Tensor:
        """What the decoder attends to, [B, …].

        Args:
            before_after: As `CaptionModel.caption` takes it.
        """
        raise NotImplementedError

    def encode(self, before_after: Tensor) -> Encoded:
        """What `caption` needs of pairs; a system that says where something changed overrides it.

        Args:
            before_after: What `prepare` gave.
        """
        return Encoded(self.memory(before_after))

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Logits [B, L, len(codec)] of the next word at each position of ids int64 [B, L].

        Args:
            memory: What `memory` gave, [B, …].
        """
        raise NotImplementedError

    def next_word(self) -> NextWord:
        """The decoder with its present weights, one word at a time."""
        return Recomputing(self.logits, self.length)

    def imagine(self, before_after: Tensor) -> Tensor | None:
        """The frames that the captioner imagines between two images, uint8 [B, T, H, W, 3] RGB.

        Args:
            before_after: Images as `CaptionModel.caption` takes them. The first and the last frame
                are before and after. None for systems that imagine none.
        """
        return None

    def attention(self, state: Any) -> Tensor | None:
        """Attention maps, float32 [B, length, h, w], each with sum 1; None if a system has none.

        The map at position i belongs to word i + 1 of the ids.

        Args:
            state: The result of `next_word().start`, once all words are decoded.
        """
        return None

    def forward(self, before_after: Tensor, ids: Tensor) -> Tensor:
        """Logits [B, L, len(codec)] of pairs and word ids int64 [B, L]."""
        return self.logits(ids, self.memory(before_after))

    @property
    def device(self) -> torch.device:
        """The device that holds the parameters."""
        return next(self.parameters()).device

    @torch.inference_mode()
    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs; see `CaptionModel.caption`. The network must be in eval mode."""
        assert not self.training, "eval() first: dropout would change the words"
        before_after = self.prepare(before_after)
        encoded = self.encode(before_after)
        captions = self.decoded(encoded.memory, beams)
        if encoded.masks is not None:
            masks = encoded.masks.cpu().numpy()
            captions = [
                replace(caption, mask=mask) for caption, mask in zip(captions, masks, strict=True)
            ]
        ood_score = self.ood_score(before_after)
        return [
            self._judged(caption, ood_score, beams)
            for caption, ood_score in zip(captions, ood_score, strict=True)
        ]

    def decoded(self, memory: Tensor, beams: int = 1) -> list[Caption]:
        """The sentences about what the decoder attends to, memory [B, …]; in eval mode."""
        if self._next_word is None:
            self._next_word = self.next_word()
        if beams == 1:
            return self._greedy(self._next_word, memory)
        captions = []
        for hypotheses in beam(self._next_word, memory, beams, marks=self.codec.marks):
            ranked = tuple((self.codec.decode(one.ids), one.score) for one in hypotheses)
            captions.append(Caption(ranked[0][0], ranked, score=ranked[0][1]))
        return captions

    def _greedy(self, next_word: NextWord, memory: Tensor) -> list[Caption]:
        state = next_word.start(memory)
        ids, sums = scored_greedy(next_word, memory, self.codec.marks, state=state)
        maps = self.attention(state)
        rows = ids[:, 1:].tolist()
        return [
            Caption(
                self.codec.decode(row),
                score=score,
                attention=None if maps is None else self._of_words(row, maps[number]),
            )
            for number, (row, score) in enumerate(zip(rows, sums.tolist(), strict=True))
        ]

    def _of_words(self, ids: list[int], maps: Tensor) -> Attention:
        """The maps of the words of a caption, of ids without the begin mark."""
        words = [(place, self.codec.decode([number])) for place, number in enumerate(ids)]
        # What ends a sentence is the codec's to say: for some it is padding too.
        sentence = self.codec.decode(ids)
        end = next(
            place for place in range(len(ids) + 1) if self.codec.decode(ids[:place]) == sentence
        )
        shown = [(place, word) for place, word in words[:end] if word]
        chosen = maps[[place for place, _ in shown]].cpu().numpy()
        return Attention(tuple(word for _, word in shown), chosen)

    def _judged(self, caption: Caption, ood_score: float | None, beams: int) -> Caption:
        """The caption with its ood_score, and its confidence where that was calibrated."""
        confidence = None
        if self.calibration is not None and caption.score is not None and beams == 1:
            confidence = self.calibration.confidence(caption.score, ood_score)
        return replace(caption, ood_score=ood_score, confidence=confidence)

    def train(self, mode: bool = True) -> Any:
        """Sets the mode; the next caption is decoded with the weights of that time."""
        self._next_word = None
        return super().train(mode)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads weights; the next caption is decoded with them."""
        self._next_word = None
        return super().load_state_dict(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._next_word = None
        return super()._apply(fn, recurse)
