"""A model of a server that captions two images, with the prompt and the client of `baseline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cc_prep.errors import JobFailed, UserError
from cc_prep.media import images
from cc_train import doubt
from cc_train.baselines import prompts, server
from cc_train.baselines.answers import LENGTH
from cc_train.baselines.http_client import Endpoint
from cc_train.baselines.pace import Pace
from cc_train.baselines.questions import Question
from cc_train.captioner import Caption
from cc_train.data import image_pairs
from cc_train.data.image_pairs import Image, InOwnSize, Reading, Scale

MAX_SIDE = 1024  # px of an image that is sent; larger ones are shrunk


class ChatCaptioner:
    """Asks a multi-modal LLM of a server what changed.

    Args:
        url: The address below which the server has chat completions, or Ollama's own door.
        model: Its name there.
        prompt: In place of that for any two images.
        key_variable: The environment variable that holds the key.
        overrides: Keys of the request, KEY=VALUE.
        say: Is told what is to be known of how the model sees two images.
        probe: Look first whether it sees two, in their order.

    Raises:
        UserError: For a wrong address or setting.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        prompt: str | None = None,
        key_variable: str = server.KEY_VARIABLE,
        overrides: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: None,
        probe: bool = True,
    ) -> None:
        self.wording = prompts.of(None, prompt)
        endpoint, generation = Endpoint.of(url, key_variable), server.generation(overrides)
        look = say if probe else None
        self.server = server.Server(endpoint, model, generation, Pace(), say=look)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.server.name

    def __call__(
        self,
        before: Image,
        after: Image,
        /,
        *,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> Caption:
        """The caption of a pair; for the arguments see `cc_train.Captioner`.

        Two equal images are not sent. The caption has a sentence alone.

        Raises:
            UserError: For images that cannot be read, and where the server refuses.
            JobFailed: Where the server fails, or the model says nothing.
        """
        reading = Reading.of(bands, scale, register, resize)
        return self._asked(image_pairs.in_own_size(before, after, reading))

    def caption_each(
        self,
        pairs: Sequence[tuple[Image, Image]],
        /,
        *,
        beams: int = 1,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> list[Caption | UserError | JobFailed]:
        """The captions of pairs, and the error of each pair that cannot be read.

        Args:
            beams: Is 1: a server searches by itself.

        Raises:
            UserError and JobFailed: Of the server, which would fail for the others as well.
        """
        assert beams == 1, beams
        reading = Reading.of(bands, scale, register, resize)
        outcomes: list[Caption | UserError | JobFailed] = []
        for before, after in pairs:
            try:
                pair = image_pairs.in_own_size(before, after, reading)
            except (UserError, JobFailed) as error:
                outcomes.append(error)
                continue
            outcomes.append(self._asked(pair))
        return outcomes

    def _asked(self, pair: InOwnSize) -> Caption:
        """What a user is told of a pair."""
        are_equal = np.array_equal(pair.pixels[0], pair.pixels[1])
        said = Caption(doubt.EQUAL) if are_equal else self._answered(pair.pixels)
        return doubt.told(said, are_equal, compared=pair.compared)

    def _answered(self, pixels: np.ndarray) -> Caption:
        """The model's caption of two images, uint8 [2, H, W, 3]."""
        before, after = (_sent(image) for image in pixels)
        [answer] = self.server.answer([Question("", before, after, self.wording)])
        if answer.plain_caption:
            return Caption(answer.plain_caption)
        if answer.ended == LENGTH:
            why = f"was cut off before it began. Add --set max_tokens={server.MANY_TOKENS}"
        else:
            why = f"is empty, and ended with {answer.ended!r}"
        raise JobFailed(f"{self.server.endpoint}: the answer of {self.name} {why}")


def _sent(image: np.ndarray) -> bytes:
    """An image uint8 [H, W, 3] as it is sent: without loss, and not larger than MAX_SIDE."""
    height, width = image.shape[:2]
    factor = MAX_SIDE / max(height, width)
    if factor < 1:
        size = (max(1, round(height * factor)), max(1, round(width * factor)))
        image = images.resize(image, size)
    return images.encode_image(image, "png", 0)
