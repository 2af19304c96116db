"""A multi-modal language model as a captioner: two images in, a sentence out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.captioner import Attention, Caption, Inputs
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.with_frozen import WithFrozen
from cc_train.systems.mllm import attention_loss, attention_tap, families, images, prompts
from cc_train.systems.mllm.attention_tap import Rows, Tap
from cc_train.systems.mllm.grid_features import SeeingLanguageModel
from cc_train.systems.mllm.images import Geometry
from cc_train.systems.mllm.loading import Base
from cc_train.systems.mllm.prompts import PromptTokenizer


class Generation(Section):
    """Settings of generation. The command decides the number of beams."""

    max_new_tokens: int = Field(50, ge=1)
    """The largest number of tokens of a caption."""
    min_new_tokens: int = Field(1, ge=0)
    """The smallest number of tokens of a caption."""
    repetition_penalty: float = Field(1.5, ge=1)
    """Penalty of tokens that the caption already has, the prompt not counted; 1 is none."""
    length_penalty: float = 1.0
    """Of beam search; above 0, longer captions are preferred."""


class MllmCaptioner(WithFrozen):
    """A frozen model with its adapters: a `CaptionModel` (`cc_train.captioner`).

    Its `state_dict` holds the trained tensors, and none of the published model.

    Args:
        backbone: The frozen network whose features it reads, where it reads any.
        layer: The layer whose attention is read, for control and for pictures.
    """

    backbone: FrozenBackbone | None

    def __init__(
        self,
        base: Base,
        model: nn.Module,
        shape: Geometry,
        *,
        prompt_tokenizer: PromptTokenizer,
        generation: Generation,
        inputs: Inputs,
        backbone: FrozenBackbone | None = None,
        layer: int = -1,
    ) -> None:
        super().__init__()
        self.base, self.shape, self.prompt_tokenizer = base, shape, prompt_tokenizer
        self.generation, self.inputs, self.model, self.layer = generation, inputs, model, layer
        self.use_frozen("backbone", backbone)
        self.text_only = False  # without score and attention, which cost a pass of their own
        names = {name for name, value in self.named_parameters() if value.requires_grad}
        if isinstance(model, SeeingLanguageModel):
            names |= {f"model.connector.{name}" for name in model.connector.state_dict()}
        self.stored = frozenset(names)

    @property
    def device(self) -> torch.device:
        """The device that holds the model."""
        return next(self.model.parameters()).device

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The trained tensors by name."""
        whole = super().state_dict(*args, **kwargs)
        return {name: value for name, value in whole.items() if name in self.stored}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads tensors of `state_dict`.

        Raises:
            RuntimeError: For other names or shapes.
        """
        different = self.stored ^ set(state_dict)
        if different:
            raise RuntimeError(f"other adapters: {min(different)}, {len(different)} in all")
        return super().load_state_dict(dict(state_dict), strict=False)

    def image_inputs(self, before_after: Tensor) -> dict[str, Tensor]:
        """The model's arguments for images uint8 [B, 2, H, W, 3], or for stored features."""
        if self.backbone is not None:
            return {"features": self.backbone(before_after)}
        if self.shape.pasted:
            before_after = images.side_by_side(before_after)
        if self.base.processor is not None:
            pairs = [list(pair) for pair in before_after.cpu().numpy()]
            inputs = self.base.processor.image_processor(images=pairs, return_tensors="pt")
            return {name: value.to(self.device) for name, value in inputs.items()}
        pixels = images.normalised(before_after, self.base.mean, self.base.std)
        frames = getattr(self.base.config.vision_config, "temporal_patch_size", 1)
        inputs = images.inputs(self.base.family, self.shape, pixels, int(frames))
        kind = next(self.model.parameters()).dtype
        return {n: t.to(kind) if t.is_floating_point() else t for n, t in inputs.items()}

    def extra_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """The model's further arguments for token ids."""
        if self.base.family.pixels not in ("patches", "processor"):
            return {}
        named = getattr(self.base.processor, "model_input_names", ("mm_token_type_ids",))
        marks = {"mm_token_type_ids": (ids == self.prompt_tokenizer.image).int()}
        return marks if "mm_token_type_ids" in named else {}

    def forward(self, batch: Mapping[str, Tensor], logits_to_keep: int) -> Any:
        """The model's output for a batch, with logits of the last `logits_to_keep` positions."""
        ids = batch["ids"]
        more = {name: value for name, value in batch.items() if name.startswith("qformer")}
        return self.model(
            input_ids=ids,
            attention_mask=batch["attention"],
            logits_to_keep=logits_to_keep,
            use_cache=False,
            **self.image_inputs(batch["before_after"]),
            **self.extra_inputs(ids),
            **more,
        )

    def places(self, ids: Tensor) -> Tensor:
        """Positions of image tokens in prompts int64 [B, L]: int64 [B, images, P].

        Tokens that have no place in an image are left out if others have one.
        """
        shape = self.shape
        count = shape.places if shape.tokens is None else shape.tokens[0] * shape.tokens[1]
        marked = (ids == self.prompt_tokenizer.image).nonzero()[:, 1]
        return marked.view(len(ids), shape.images, shape.places)[..., -count:]

    @torch.inference_mode()
    def caption(
        self, before_after: Tensor, beams: int = 1, entities: Sequence[Sequence[str]] | None = None
    ) -> list[Caption]:
        """Captions of B pairs; see `CaptionModel.caption`.

        Args:
            entities: Of each pair, best first.
        """
        assert not self.training, "eval() first: dropout would change the words"
        before_after = before_after.to(self.device)
        of_pairs = entities if entities is not None else [()] * len(before_after)
        questions = [self.prompt_tokenizer.question(names) for names in of_pairs]
        bridge = self.prompt_tokenizer.bridge(of_pairs, self.shape.images)
        bridge = {name: value.to(self.device) for name, value in bridge.items()}
        with attention_tap.only():
            generated = self._generate(before_after, questions, bridge, beams)
        if beams > 1:
            return [
                self._ranked(before_after[row], questions[row], bridge, row, sentences)
                for row, sentences in enumerate(generated)
            ]
        sentences = [ranked[0] for ranked in generated]
        if self.text_only:
            return [Caption(self.prompt_tokenizer.decode(ids)) for ids in sentences]
        scores, maps = self._read_again(before_after, questions, bridge, sentences, look=True)
        return [
            Caption(self.prompt_tokenizer.decode(ids), score=score, attention=of_words)
            for ids, score, of_words in zip(sentences, scores, maps, strict=True)
        ]

    def _ranked(
        self,
        pair: Tensor,
        question: list[int],
        bridge: Mapping[str, Tensor],
        row: int,
        sentences: Sequence[list[int]],
    ) -> Caption:
        """The caption of a pair by beam search, its sentences in the order of the search.

        Each sentence has its sum of log-probabilities, without the penalties of the search.

        Args:
            bridge: The prompts of all pairs for the bridge.
            row: The number of this pair.
        """
        count, pictures = len(sentences), self.shape.images
        own = {
            name: value[pictures * row : pictures * (row + 1)].repeat(count, 1)
            for name, value in bridge.items()
        }
        repeated = pair[None].expand(count, *pair.shape)
        name = self.base.family.vision_encoder
        encoder = self.base.model.get_submodule(name) if name else None
        with contextlib.nullcontext() if encoder is None else images.encode_once(encoder, count):
            sums, _ = self._read_again(repeated, [question] * count, own, sentences)
        texts = [self.prompt_tokenizer.decode(ids) for ids in sentences]
        ranked = tuple(zip(texts, sums, strict=True))
        return Caption(ranked[0][0], ranked, score=ranked[0][1])

    def _generate(
        self,
        before_after: Tensor,
        questions: Sequence[list[int]],
        bridge: Mapping[str, Tensor],
        beams: int,
    ) -> list[list[list[int]]]:
        """Sentences of each pair, as ids up to the end mark, in the order of the search."""
        padded = prompts.left_padded(questions, self.prompt_tokenizer.pad)
        ids, attention = (part.to(self.device) for part in padded)
        generation = self.generation
        generated = self.model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=attention,
            **self.image_inputs(before_after),
            **self.extra_inputs(ids),
            **bridge,
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=generation.max_new_tokens,
            min_new_tokens=generation.min_new_tokens,
            length_penalty=generation.length_penalty,
            early_stopping=beams > 1,
            eos_token_id=self.prompt_tokenizer.end,
            pad_token_id=self.prompt_tokenizer.pad,
            repetition_penalty=None,
            logits_processor=self._penalties(ids.shape[1]),
        )
        # Our own model with a connector returns the new tokens alone.
        new = generated if self.base.family is families.LM else generated[:, ids.shape[1] :]
        sentences = [self._ended(row) for row in new.tolist()]
        return [sentences[first : first + beams] for first in range(0, len(sentences), beams)]

    def _penalties(self, prompt: int) -> list[Any]:
        """The penalty of tokens that the caption already has.

        Args:
            prompt: Number of tokens of the prompt, which do not count. Otherwise the words of the
                question would be avoided, the end of the user's turn would keep the caption from
                ending, and padding would make a caption depend on the other pairs of the batch.
        """
        from transformers import RepetitionPenaltyLogitsProcessor

        penalty = self.generation.repetition_penalty
        if penalty == 1:
            return []
        ignored = 0 if self.base.family is families.LM else prompt
        return [RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=ignored)]

    def _ended(self, row: list[int]) -> list[int]:
        """The new tokens up to the end mark, without the padding that follows."""
        end = self.prompt_tokenizer.end
        return row[: row.index(end) + 1] if end in row else row

    def _read_again(
        self,
        before_after: Tensor,
        questions: Sequence[list[int]],
        bridge: Mapping[str, Tensor],
        sentences: Sequence[list[int]],
        look: bool = False,
    ) -> tuple[list[float], list[Attention | None]]:
        """The sum of log-probabilities of each sentence, and the attention of its words."""
        batch = prompts.training_batch(questions, sentences, self.prompt_tokenizer.pad)
        batch = {name: value.to(self.device) for name, value in batch.items()}
        logits_to_keep = batch["ids"].shape[1] - int(batch["last"].min())
        taps = self._word_taps(batch) if look else []
        with attention_tap.only(*taps):
            output = self({**batch, **bridge, "before_after": before_after}, logits_to_keep)
        labels = batch["labels"][:, -logits_to_keep:]
        chosen = output.logits.float().log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])
        sums = chosen[..., 0].masked_fill(labels < 0, 0.0).sum(1).tolist()
        if not taps:
            return sums, [None] * len(sums)
        rows, *of_queries = (first_rows(tap.take()).probabilities for tap in taps)
        places = self.places(batch["ids"])
        crossing = None
        if of_queries:  # [B, images, queries, patches]
            crossing = of_queries[0].unflatten(0, (len(sums), -1))[..., 1:]
        return sums, [
            self._of_words(
                rows[number],
                places[number],
                None if crossing is None else crossing[number],
                sentence,
            )
            for number, sentence in enumerate(sentences)
        ]

    def _word_taps(self, batch: Mapping[str, Tensor]) -> list[Tap]:
        """The taps for attention maps of words: one on the language model and, if image tokens are
        learned queries, one on the attention of these; none if the family's modules are unknown."""
        family = self.base.family
        if not family.language or (self.shape.tokens is None and not family.crossing):
            return []
        module, _ = families.module_at(self.model, family.language, self.layer)
        most = int((batch["labels"] >= 0).sum(1).max())
        queries = batch["last"][:, None] + torch.arange(most, device=self.device)
        taps = [Tap(module, "rows", queries.clamp(max=batch["ids"].shape[1] - 1))]
        if self.shape.tokens is None:
            crossings = [m for n, m in self.model.named_modules() if n.endswith(family.crossing)]
            taps.append(Tap(crossings[-1], "all"))
        return taps

    def _of_words(
        self, rows: Tensor, places: Tensor, crossing: Tensor | None, sentence: Sequence[int]
    ) -> Attention:
        """The map of each word: the mean of its tokens' rows [R, N], over both images.

        Args:
            places: Positions of the image tokens, int64 [images, P].
            crossing: The attention of image tokens that are learned queries, [images, P, patches];
                None if image tokens have places.
        """
        words = self.prompt_tokenizer.decode(sentence).split()
        grid = self.shape.patches if crossing is not None else self.shape.tokens
        assert grid is not None
        maps = torch.zeros(len(words), grid[0] * grid[1], device=rows.device)
        for number in range(len(sentence) - (sentence[-1] == self.prompt_tokenizer.end)):
            word = len(self.prompt_tokenizer.decode(sentence[: number + 1]).split()) - 1
            looked = rows[number][places]
            if crossing is not None:
                looked = torch.einsum("ip,ipn->in", looked, crossing)
            if 0 <= word < len(words):
                maps[word] += looked.sum(0)
        maps = maps / maps.sum(-1, keepdim=True).clamp_min(attention_loss.TINY)
        maps = maps.view(-1, *grid).float().cpu()
        if self.shape.pasted:
            maps = images.maps_of_sides(maps)
        return Attention(tuple(words), maps.numpy())


def first_rows(calls: Sequence[Rows]) -> Rows:
    """All calls of a module joined to one: Qwen's vision network calls it once for every image."""
    probabilities, scores = ([getattr(c, name) for c in calls] for name in Rows._fields)
    return Rows(torch.cat(probabilities), torch.cat(scores))
