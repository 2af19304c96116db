"""Prompts: the question, the entities found in a pair, and the places of its images; as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.systems.mllm import images
from cc_train.systems.mllm.loading import Base
from cc_train.text import IGNORED

MAX_QUESTIONS = 4096  # that are kept
SIDES = ("Before: ", " After: ")  # the words before each picture
PASTED = ("Before (left) and after (right): ",)


class Prompt(Section):
    """The question to the model."""

    text: str = Field(
        "Describe the change between the before image and the after image.", min_length=1
    )
    """The question."""
    entities: str = Field(" Entity: {}.", pattern=r"\{\}")
    """A sentence that follows it if there are entities, with their names in place of {}."""

    def with_entities(self, names: Sequence[str]) -> str:
        """The question about a pair in which these entities were found."""
        return self.text + (self.entities.replace("{}", ", ".join(names)) if names else "")


@dataclass(frozen=True)
class Sizes:
    """Sizes of prompts.

    Attributes:
        sides: The words before each picture.
        places: Number of tokens of each picture.
        length: Largest number of new tokens of a caption.
        context: Largest number of tokens that the language model takes.
        size: Of a picture, in px.
    """

    sides: tuple[str, ...]
    places: int
    length: int
    context: int
    size: int


class PromptTokenizer:
    """Turns questions and captions into tokens.

    The tokens of a processor are kept, because it looks at blank images each time: 14 to 191 ms.

    Args:
        image: The id of image tokens.
    """

    def __init__(self, base: Base, prompt: Prompt, sizes: Sizes, image: int) -> None:
        self.family, self.tokenizer, self.questions = base.family, base.tokenizer, base.questions
        self.processor = base.processor
        self.prompt, self.sizes, self.image = prompt, sizes, image
        self._questions: dict[str, list[int]] = {}
        self.pad, self.end = int(self.tokenizer.pad_token_id), int(self.tokenizer.eos_token_id)

    def question(self, entities: Sequence[str] = ()) -> list[int]:
        """The tokens of a prompt.

        Raises:
            UserError: For a prompt that does not fit the model.
        """
        question = self.prompt.with_entities(entities)
        if self.family.queries:  # as these models were trained: images, then a text of its own
            marks = [self.image] * (len(self.sizes.sides) * self.sizes.places)
            return self._checked([*marks, *self.tokenizer(question).input_ids])
        if self.processor is not None:
            return self._checked(list(self._processed(question)))
        text = self.prompt_text(question)
        begin = getattr(self.tokenizer, "bos_token", None)
        marked = bool(begin) and text.startswith(str(begin))  # a chat template writes it itself
        ids: list[int] = self.tokenizer(text, add_special_tokens=not marked).input_ids
        if ids and ids[-1] == self.end and not text.endswith(self.tokenizer.eos_token):
            ids = ids[:-1]  # a tokenizer that ends every text by itself
        return self._checked(ids)

    def _processed(self, question: str) -> list[int]:
        if question not in self._questions:
            if len(self._questions) >= MAX_QUESTIONS:
                self._questions.clear()
            self._questions[question] = images.chat_tokens(
                self.processor, self.sizes.sides, question, self.sizes.size
            )
        return self._questions[question]

    def _checked(self, ids: list[int]) -> list[int]:
        """Returns the ids. Raises UserError for a wrong number of image tokens, or too many ids."""
        count, images = ids.count(self.image), len(self.sizes.sides)
        if count != images * self.sizes.places:
            of_images = "1 image" if images == 1 else f"{images} images"
            raise UserError(
                f"a prompt has {count} places for images, where {of_images} of "
                f"{self.sizes.places} tokens need {images * self.sizes.places}",
                "Leave image marks out of prompt.text; the model's chat template has to take "
                f"{of_images}" + (", or set model.images=pasted" if images > 1 else ""),
            )
        if len(ids) + self.sizes.length > self.sizes.context:
            raise UserError(
                f"a prompt of {len(ids)} tokens and a caption of {self.sizes.length} do not fit "
                f"the model's context of {self.sizes.context}",
                "Set a smaller model.image_size, entity.k or generation.max_new_tokens",
            )
        return ids

    def prompt_text(self, question: str) -> str:
        """The whole prompt as text, with the markers of image tokens."""
        family, marker = self.family, self.family.marker
        image = family.around.format(marker * self.sizes.places)
        template = getattr(self.tokenizer, "chat_template", None) if family.chat else None
        if template is not None:
            content: list[dict[str, str]] = []
            for side in self.sizes.sides:
                content += [{"type": "text", "text": side}, {"type": "image"}]
            content.append({"type": "text", "text": question})
            chat: str = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            return chat.replace(marker, image)
        shown = family.image.format(image)
        return "".join(side + shown for side in self.sizes.sides) + f" {question}"

    def caption(self, text: str) -> list[int]:
        """The tokens of a caption, its end mark included; longer ones are cut."""
        words = self.family.space + text.strip()
        ids: list[int] = self.tokenizer(words, add_special_tokens=False).input_ids
        return [*ids[: self.sizes.length - 1], self.end]

    def decode(self, ids: Sequence[int]) -> str:
        """The caption of tokens, up to the first end mark."""
        row = list(ids)
        row = row[: row.index(self.end)] if self.end in row else row
        text: str = self.tokenizer.decode(row, skip_special_tokens=True)
        return " ".join(text.split())

    def bridge(self, entities: Sequence[Sequence[str]], count: int) -> dict[str, Tensor]:
        """The input of a bridge that reads questions: one for each of `count` images of a pair."""
        if self.questions is None:
            return {}
        texts = [self.prompt.with_entities(names) for names in entities for _ in range(count)]
        words = self.questions(texts, return_tensors="pt", padding=True)
        return {
            "qformer_input_ids": words["input_ids"],
            "qformer_attention_mask": words["attention_mask"],
        }


def training_batch(
    questions: Sequence[list[int]], captions: Sequence[list[int]], pad: int
) -> dict[str, Any]:
    """Prompts with their captions, padded behind: {ids, attention, labels, last}.

    ids, attention, labels: int64 [B, L]; a label is the next token of a caption, `IGNORED`
    elsewhere. last: the position of each prompt's last token, int64 [B].
    """
    rows = [question + caption for question, caption in zip(questions, captions, strict=True)]
    length = max(map(len, rows))
    ids = np.full((len(rows), length), pad, np.int64)
    attention, labels = np.zeros_like(ids), np.full_like(ids, IGNORED)
    last = np.array([len(question) - 1 for question in questions])
    for number, (row, first) in enumerate(zip(rows, last, strict=True)):
        ids[number, : len(row)], attention[number, : len(row)] = row, 1
        labels[number, first : len(row) - 1] = row[first + 1 :]
    arrays = {"ids": ids, "attention": attention, "labels": labels, "last": last}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def left_padded(questions: Sequence[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Prompts padded in front, as generation needs them: ids and attention, int64 [B, L]."""
    length = max(map(len, questions))
    ids = torch.full((len(questions), length), pad)
    attention = torch.zeros_like(ids)
    for row, question in enumerate(questions):
        ids[row, length - len(question) :] = torch.tensor(question)
        attention[row, length - len(question) :] = 1
    return ids, attention
