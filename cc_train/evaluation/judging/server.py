"""The judge: a language model behind a server of chat completions, asked in words alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cc_prep.errors import UserError
from cc_train.baselines.answers import Answer
from cc_train.baselines.http_client import Endpoint
from cc_train.baselines.pace import Pace
from cc_train.baselines.questions import Turn
from cc_train.baselines.server import GENERATION as GENERATION
from cc_train.baselines.server import Patience, Server

_OPTION = re.compile(r"--(url|set|key-variable)\b")


class Judge:
    """A judge by its name on a server.

    Args:
        generation: Keys of the request besides ours, as the server's documentation has them.
        pause: Seconds after a first failure; doubled with each further one.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, generation: Mapping[str, Any], pause: float = 1.0
    ) -> None:
        try:
            patience = Patience(pause=pause)
            self.server = Server(endpoint, model, generation, Pace(), patience)
        except UserError as error:
            raise of_judge(error) from None

    @property
    def identity(self) -> dict[str, Any]:
        """What of the judge decides an answer."""
        return self.server.identity

    def answer(self, prompt: str) -> Answer:
        """The answer to a question. Raises UserError and JobFailed."""
        try:
            return self.server.ask([Turn((prompt,))])
        except UserError as error:
            raise of_judge(error) from None

    def stop(self) -> None:
        """Sends no further request."""
        self.server.stop()


def of_judge(error: UserError) -> UserError:
    """An error of the client, which names the options of `cc-train baseline`."""
    what, remedy = (_OPTION.sub(r"--judge-\1", text) for text in (error.what, error.remedy))
    return UserError(what, remedy)


def endpoint(url: str, key_variable: str) -> Endpoint:
    """The endpoint of `--judge-url` and `--judge-key-variable`. Raises UserError."""
    try:
        return Endpoint.of(url, key_variable)
    except UserError as error:
        raise of_judge(error) from None
