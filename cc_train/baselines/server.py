"""A model behind an OpenAI-compatible server: chat completions with two images as data URLs.

The key comes from the environment. It is sent to the named server alone (redirections are refused),
and is never in a message or a file.
"""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cc_prep.errors import JobFailed, UserError
from cc_train.baselines import http_client
from cc_train.baselines.answers import FILTERED, STOPPED, Answer
from cc_train.baselines.http_client import Endpoint, Filtered, Transient
from cc_train.baselines.pace import Pace
from cc_train.baselines.questions import Question, Turn, media_type

# A model that thinks takes some thousand tokens before it answers; others end after a sentence.
GENERATION: Mapping[str, Any] = {"max_tokens": 4096, "temperature": 0}
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # where servers send them
OURS = ("messages", "model", "n", "stream")  # keys of a request that the user does not set
MAX_BREAK = 60.0  # seconds between two tries, unless the server asks for more
MAX_WAIT = 900.0  # seconds; a server that asks for more is not waited for
MAX_REASON = 100  # characters of why an answer ended
AGAIN = "The same command resumes from here"


@dataclass(frozen=True)
class Patience:
    """tries: of one request. timeout: seconds without a byte after which a request has failed.
    pause: seconds after the first failure; doubled with each further one.
    """

    tries: int = 8
    timeout: float = 600.0  # a model that thinks sends nothing until it has its answer
    pause: float = 1.0


class Server:
    """A model by its name on a server.

    Args:
        generation: Keys of the request besides ours, as the server's documentation has them.
    """

    batch = 1  # a request is about one pair

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        generation: Mapping[str, Any],
        pace: Pace,
        patience: Patience = Patience(),
    ) -> None:
        for key in OURS:
            if key in generation:
                remedy = "Use --model" if key == "model" else "Leave it out"
                raise UserError(f"--set {key}: reserved by this command", remedy)
        self.endpoint, self.name, self.generation = endpoint, name, dict(generation)
        self.pace, self.patience = pace, patience
        self._reached = False
        self._random = random.Random()

    @property
    def identity(self) -> dict[str, Any]:
        """What of the model decides an answer."""
        return {"model": self.name, "generation": self.generation}

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers to some questions, one request each. Raises UserError and JobFailed."""
        return [self.ask(question.turns) for question in questions]

    def stop(self) -> None:
        """Sends no further request."""
        self.pace.stop()

    def ask(self, turns: Sequence[Turn]) -> Answer:
        """The answer to a chat: one request, which is repeated while its failure may pass.

        Args:
            turns: The chat, whose last turn is the user's. It may be text alone.

        Raises:
            UserError: The server refuses, or is not there.
            JobFailed: It fails again and again.
        """
        body = {"model": self.name, "messages": messages(turns), **self.generation}
        for tried in itertools.count(1):
            self.pace.wait()
            try:
                reply = http_client.post(self.endpoint, body, self.patience.timeout, self.name)
            except Transient as trouble:
                self._wait(trouble, tried)
                continue
            except Filtered:
                return Answer("", FILTERED)
            self._reached = True
            return parsed(reply, self.endpoint)
        raise AssertionError("unreachable")

    def _wait(self, trouble: Transient, tried: int) -> None:
        """Pauses all requests before the next try.

        Raises:
            UserError and JobFailed: For no further one.
        """
        if trouble.unreachable and not self._reached:
            raise UserError(f"{self.endpoint}: {trouble.what}", "Is the server there? See --url")
        self._reached = self._reached or not trouble.unreachable
        if tried >= self.patience.tries:
            what = f"{trouble.what}, {tried} times in a row"
            raise JobFailed(f"{self.endpoint}: {what}. {AGAIN}")
        named = trouble.retry_after or 0.0
        if named > MAX_WAIT:
            minutes = f"{named / 60:.0f} minutes"
            raise JobFailed(f"{self.endpoint}: {trouble.what}, asks to wait {minutes}. {AGAIN}")
        doubled = min(MAX_BREAK, self.patience.pause * 2 ** (tried - 1))
        # A server whose clock is wrong names a pause of 0.
        self.pace.pause(max(named, doubled * self._random.uniform(0.5, 1.0)))


def messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """A chat as chat completions take it. A turn of one text has it as its content."""
    return [{"role": turn.role, "content": _content(turn.parts)} for turn in turns]


def _content(parts: Sequence[str | bytes]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [
        {"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in parts
    ]


def _image(image: bytes) -> dict[str, Any]:
    text = base64.b64encode(image).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{media_type(image)};base64,{text}"}}


def parsed(reply: Any, endpoint: object) -> Answer:
    """The answer in a reply of chat completions.

    A refusal is an answer without words.

    Raises:
        UserError: For a reply of another form.
    """
    try:
        choice = reply["choices"][0]
        return read_message(choice["message"], choice.get("finish_reason"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UserError(
            f"{endpoint}: the reply holds no chat completion", http_client.REMEDY
        ) from None


def read_message(message: Mapping[str, Any], ended: Any) -> Answer:
    """The answer in the message of a reply.

    Args:
        ended: Why it ended, as the server says it.

    Raises:
        KeyError, TypeError and AttributeError: For a message of another form.
    """
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
