"""The two forms in which servers take a chat: chat completions, and Ollama's own.

Ollama takes chat completions as well, but makes a turn of its own of each part, and some models
refuse a turn of an image alone. By its own door both images are in the turn of the question.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cc_train.baselines.answers import STOPPED, Answer
from cc_train.baselines.questions import Turn, media_type

COMPLETIONS, OLLAMA = "/chat/completions", "/api/chat"  # ends of an address
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # where servers send them
MAX_REASON = 100  # characters of why an answer ended


class Door(Protocol):
    """How a chat is sent, and where its answer is in the reply."""

    def body(
        self, model: str, turns: Sequence[Turn], generation: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The request that puts a chat to a model.

        Args:
            generation: Decoding parameters, as chat completions name them.
        """
        ...

    def answer(self, reply: Any) -> Answer:
        """The answer in a reply; a refusal is an answer without words.

        Raises:
            KeyError, IndexError, TypeError and AttributeError: For a reply of another form.
        """
        ...


class Completions:
    """Chat completions, as OpenAI defined them. A turn of one text has it as its content."""

    def body(
        self, model: str, turns: Sequence[Turn], generation: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Door`."""
        messages = [{"role": turn.role, "content": _content(turn.parts)} for turn in turns]
        return {"model": model, "messages": messages, **generation}

    def answer(self, reply: Any) -> Answer:
        """See `Door`."""
        choice = reply["choices"][0]
        return _answer(choice["message"], choice.get("finish_reason"))


class Ollama:
    """Ollama's own form: a turn is one text, and its images beside it, which the text numbers."""

    OF_REQUEST = ("think", "keep_alive", "format")  # what is none of its `options`

    def body(
        self, model: str, turns: Sequence[Turn], generation: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Door`."""
        names = {"max_tokens": "num_predict"}
        top = {name: value for name, value in generation.items() if name in self.OF_REQUEST}
        options = {
            names.get(name, name): value for name, value in generation.items() if name not in top
        }
        messages = [_numbered(turn) for turn in turns]
        return {"model": model, "messages": messages, "stream": False, "options": options, **top}

    def answer(self, reply: Any) -> Answer:
        """See `Door`."""
        return _answer(reply["message"], reply.get("done_reason"))


def of(path: str) -> Door:
    """The door at an address."""
    return Ollama() if path.endswith(OLLAMA) else Completions()


def _content(parts: Sequence[str | bytes]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [
        {"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in parts
    ]


def _image(image: bytes) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{media_type(image)};base64,{_base64(image)}"},
    }


def _numbered(turn: Turn) -> dict[str, Any]:
    text, images = "", list[str]()
    for part in turn.parts:
        if isinstance(part, bytes):
            images.append(_base64(part))
            text += f" image {len(images)}"
        else:
            text += f"\n{part}"
    return {"role": turn.role, "content": text.strip(), **({"images": images} if images else {})}


def _base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def _answer(message: Mapping[str, Any], ended: Any) -> Answer:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(content)
    thoughts = (message.get(name) for name in THOUGHTS)
    thought = next((text for text in thoughts if isinstance(text, str)), "")
    ended = ended[:MAX_REASON] if isinstance(ended, str) and ended else STOPPED
    return Answer(_storable(content or ""), _storable(ended), _storable(thought))


def _storable(text: str) -> str:
    """A text that a file can hold: JSON may have half a pair of surrogates."""
    return text.encode("utf-8", "replace").decode()
