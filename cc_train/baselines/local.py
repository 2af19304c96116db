"""A multi-modal LLM in a local folder, through transformers: any with a chat template and images.

Nothing is fetched, and no code in the folder is run. transformers is imported when a model is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import torch
from pydantic import Field

from cc_prep import extras
from cc_prep.devices import is_out_of_memory
from cc_prep.errors import UserError, first_line
from cc_prep.media import images
from cc_prep.settings import Section
from cc_prep.weights import folders
from cc_train.baselines.answers import LENGTH, STOPPED, Answer
from cc_train.baselines.questions import Question
from cc_train.transformers_models import Precision, dtype_of, image_token

NO_CHAT = "Give a model of its family that was trained to chat, or train one: cc-train mllm"


class Generation(Section):
    """How words are chosen: always the most probable ones, so that asking again changes nothing."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 4096  # as many as of a server's model
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    num_beams: Annotated[int, Field(ge=1)] = 1
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    length_penalty: float = 1.0
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0


class Local:
    """A model of a folder.

    Args:
        batch: Pairs that are captioned at a time, which changes memory and time, and answers by
            rounding alone.
    """

    def __init__(
        self, folder: Path, generation: Generation, device: str, precision: Precision, batch: int
    ) -> None:
        self.folder, self.generation, self.batch = folder, generation, batch
        self.device = torch.device(device)
        self.dtype = dtype_of(precision, device)
        self.weights = folders.digest(folder)
        self.processor, self.model = _load(folder, self.dtype)
        self.model.to(self.device)
        self.image_token = image_token(self.model.config, folder)
        self._checked = False

    @property
    def identity(self) -> dict[str, Any]:
        """What of the model decides an answer."""
        precision = str(self.dtype).removeprefix("torch.")
        return {
            "weights": self.weights,
            "precision": precision,
            "generation": self.generation.model_dump(),
        }

    @property
    def name(self) -> str:
        """What people call it."""
        return self.folder.resolve().name

    def stop(self) -> None:
        """One thread asks it, and never waits."""

    @torch.inference_mode()
    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers to some questions at a time.

        Raises:
            UserError: For a model that two images do not fit, and where memory does not suffice.
        """
        if not self._checked:
            self._require_two_images(questions[0])
            self._checked = True
        try:
            return self._written(questions)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            remedy = "Use a smaller --batch-size" if self.batch > 1 else "Use --precision bfloat16"
            raise UserError(f"{self.folder}: memory does not suffice", remedy) from None

    def _written(self, questions: Sequence[Question]) -> list[Answer]:
        inputs = self._encoded([chat(question) for question in questions])
        length = inputs["input_ids"].shape[1]
        settings = self.generation.model_dump()
        # What the folder says of sampling is not ours to follow.
        neutral = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        written = self.model.generate(**inputs, **settings, **neutral)[:, length:]
        ends, whole = _end_tokens(self.model), written.shape[1] < self.generation.max_new_tokens
        texts = self.processor.batch_decode(written, skip_special_tokens=True)
        return [
            Answer(text, STOPPED if whole or ends & set(row) else LENGTH)
            for text, row in zip(texts, written.tolist(), strict=True)
        ]

    def _encoded(self, chats: list[list[dict[str, Any]]]) -> Any:
        """The model's inputs for some chats, padded on the left."""
        encoded = self.processor.apply_chat_template(
            chats,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True, "padding_side": "left"},
        )
        return encoded.to(self.device, self.dtype)

    def _require_two_images(self, question: Question) -> None:
        """Raises UserError unless the second image takes places of its own in the prompt."""
        whole = chat(question)
        content = whole[-1]["content"]
        one_image = [*whole[:-1], {**whole[-1], "content": [*content[:2], content[-1]]}]
        try:
            places = [
                int((self._encoded([one])["input_ids"] == self.image_token).sum())
                for one in (one_image, whole)
            ]
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.folder}: its processor does not take two images in a chat ({error})",
                NO_CHAT,
            ) from None
        if not 0 < places[0] < places[1]:
            raise UserError(
                f"{self.folder}: one image has {places[0]} places in the prompt, two have "
                f"{places[1]}: its chat template does not take two images",
                NO_CHAT,
            )


def chat(question: Question) -> list[dict[str, Any]]:
    """The chat that puts a question, as chat templates take it."""
    return [
        {"role": turn.role, "content": [_part(part) for part in turn.parts]}
        for turn in question.turns
    ]


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": _pixels(part)}


def _pixels(image: bytes) -> PIL.Image.Image:
    pixels = images.decode_stored(image)
    assert pixels is not None, "questions hold images"
    return PIL.Image.fromarray(np.ascontiguousarray(pixels))


def _load(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Processor and model, in evaluation. Raises UserError."""
    try:
        from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
    except ImportError:
        raise UserError("transformers is not installed", extras.install("mllm")) from None
    try:
        processor = AutoProcessor.from_pretrained(folder, **folders.LOCAL)
        if getattr(processor, "chat_template", None) is None:
            raise UserError(f"{folder}: its processor has no chat template", NO_CHAT)
        _check_release(AutoConfig.from_pretrained(folder, **folders.LOCAL))
        model = folders.pretrained(
            AutoModelForImageTextToText, folder, dtype=dtype, use_safetensors=True
        )
    except folders.UNREADABLE as error:
        raise UserError(
            f"{folder}: no model that takes images and text ({first_line(error)})",
            "Give a folder with config.json, safetensors and the processor's files",
        ) from None
    return processor, model.eval()


def _check_release(config: Any) -> None:
    """Raises UserError for a model that this release of transformers cannot run."""
    if config.model_type in ("smolvlm", "idefics3"):
        vision = config.vision_config
        places = (vision.image_size // vision.patch_size // config.scale_factor) ** 2
        folders.check_image_groups(places, vision.patch_size)


def require_folder(path: str) -> Path:
    """The folder of `--model`.

    Raises:
        UserError: If there is no model's folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(
            f"--model {path}: no such folder",
            "Give the local folder of a model, or --url of a server that has one of this name",
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"--model {path}: no config.json in it", "Give the folder of a model")
    return folder


def _end_tokens(model: Any) -> set[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    return {ends} if isinstance(ends, int) else set(ends or ())
