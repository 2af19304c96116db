"""What a system is asked for, and what it gives to the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.captioner import Inputs
from cc_train.data import split
from cc_train.data.split import CaptionSettings, Split
from cc_train.data.stream import Source, Stream, StreamSettings
from cc_train.distributed import Ranks
from cc_train.evaluation.validation import Validation
from cc_train.runs import run_folder
from cc_train.text import Vocabulary, words_of_scores
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop


@dataclass(frozen=True)
class TrainingRequest:
    """What a command asks for besides the settings.

    Attributes:
        shards, valid: Patterns of shards to train and to validate on.
        run: The run's folder.
        init: The file or the run's folder to start from.
        init_name: What the user calls it.
        resume: `auto` or `never`, see `fit`.
        ranks, device: This process and where it computes, `cpu` or `cuda`; `start.train` sets them.
    """

    shards: Sequence[str]
    valid: Sequence[str]
    run: Path
    init: Path | None = None
    resume: str = "auto"
    console: Console = field(default_factory=on_stderr)
    ranks: Ranks = field(default_factory=Ranks)
    device: str = "cpu"
    init_name: str | None = None

    def begun_with(self, codec: type[Vocabulary]) -> Vocabulary | None:
        """The vocabulary of the run to resume; None if it took no step, or has none of this kind.

        All processes call this together: the first one reads the file in the run's folder.

        Raises:
            UserError: For a damaged file.
            FirstRankFailed: On the others.
        """
        [name] = codec.of(()).files()
        words = self.ranks.broadcast_from_rank0(
            lambda: _words_of(run_folder.begun_file(self.run, name), codec)
        )
        return None if words is None else codec(words)


def _words_of(path: Path | None, codec: type[Vocabulary]) -> list[str] | None:
    """The words of a run's vocabulary, if it has one. Raises UserError for a damaged file."""
    try:
        return None if path is None else codec.read(path).words
    except UserError as error:
        raise UserError(error.what, "Restore it, or give another --out") from None


@dataclass(frozen=True)
class Task:
    """A system ready to be trained.

    Attributes:
        objective: The network and its losses.
        source: The micro-batches.
        items: How many items an epoch has, as the source counts them: where it pairs scenes, a
            scene is one.
        about: What identifies the training besides its settings, as JSON; a run resumes only with
            the same, and no key is also a setting.
        files: The content, by name, of the files that the network needs beside its checkpoints.
        settings: The system's, with a value for what was left to `prepare`; None if nothing was.
    """

    objective: Objective
    source: Source
    items: int
    about: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    settings: Section | None = None


class SampleSettings(Protocol):
    """The settings of a system that is trained on the samples of training shards."""

    @property
    def stream(self) -> StreamSettings: ...

    @property
    def loop(self) -> Loop: ...


def captioned(
    settings: CaptionSettings, request: TrainingRequest, codec: type[Vocabulary] = Vocabulary
) -> tuple[Split, Vocabulary]:
    """The samples that a captioner is trained and validated on, and its words. Raises UserError.

    Args:
        codec: The kind of vocabulary.
    """
    shards, console = (request.shards, request.valid), request.console
    return split.captioned(
        *shards, settings, console, codec, ranks=request.ranks, begun_with=request.begun_with
    )


def validation(
    data: Split,
    settings: SampleSettings,
    request: TrainingRequest,
    inputs: Inputs,
    ranks: Ranks | None = None,
    words: str | None = None,
) -> Validation:
    """The validation on the held-out samples of a data set. Raises what `Validation` raises.

    Args:
        inputs: Of the captioner.
        ranks: Those that share the pairs; None for all of the request.
        words: The setting that says how captions are split; None for the default.
    """
    shared = request.ranks if ranks is None else ranks
    return Validation(
        data.valid,
        request.run,
        shared,
        settings.stream.skip_bad,
        request.console,
        inputs,
        words_of_scores(words),
    )


def over_samples(
    data: Split,
    make_batch: Callable[..., dict[str, Any]],
    objective: Objective,
    settings: SampleSettings,
    *,
    request: TrainingRequest,
    about: Mapping[str, Any],
    files: Mapping[str, bytes],
    partners: bool = False,
) -> Task:
    """A task over the samples of training shards.

    Args:
        make_batch, partners: See `Stream`.
        objective, about, files: See `Task`.

    Raises:
        UserError: For too few of them.
    """
    loop, ranks = settings.loop, request.ranks
    stream = Stream(
        data.train,
        make_batch,
        batch_size=loop.batch_size,
        seed=loop.seed,
        settings=settings.stream,
        ranks=ranks,
        partners=partners,
    )
    return Task(objective, stream, len(stream.items), about, files)
