"""What `cc-train evaluate` does: it scores a run on shards, predictions, or masks."""

from __future__ import annotations

from dataclasses import dataclass

from cc_prep.errors import UserError
from cc_prep.unspaced import Words
from cc_train.commands.scoring import (
    Output,
    References,
    score_masks,
    score_predictions,
    score_run,
)
from cc_train.evaluation import protocols


@dataclass(frozen=True)
class Options:
    """The command's options, as its help describes them; None means the default."""

    run: str | None = None
    shards: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    references: str | None = None
    types: str | None = None
    facts: str | None = None
    predicted_only: bool = False
    protocol: str | None = None
    words: Words | None = None
    mask_predictions: str | None = None
    mask_references: str | None = None
    classes: int | None = None
    out: str | None = None
    beams: int = 1
    device: str = "auto"
    as_json: bool = False

    @property
    def of_masks(self) -> bool:
        """Whether an option of masks is given."""
        return _any_given(self.mask_predictions, self.mask_references, self.classes)

    @property
    def of_captions(self) -> bool:
        """Whether an option of captions is given."""
        return _any_given(
            self.run,
            self.shards,
            self.predictions,
            self.references,
            self.types,
            self.facts,
            self.predicted_only,
            self.protocol,
            self.words,
        )


def _any_given(*options: object) -> bool:
    """Whether one of the options differs from its value where it is left out."""
    return any(option not in (None, ()) and option is not False for option in options)


def evaluate(options: Options) -> None:
    """Scores what the options name, prints the scores and writes them. Raises UserError."""
    _check(options)
    output = Output(options.out, options.as_json)
    if options.of_masks:
        assert options.mask_predictions is not None
        assert options.mask_references is not None
        score_masks(
            options.mask_predictions, options.mask_references, output, classes=options.classes
        )
    elif options.predictions:
        score_predictions(
            options.predictions,
            References(options.references, options.shards, options.types, options.facts),
            output,
            predicted_only=options.predicted_only,
            protocol=options.protocol,
            words=options.words,
        )
    else:
        assert options.run is not None
        score_run(
            options.run,
            options.shards,
            output,
            facts=options.facts,
            protocol=options.protocol,
            words=options.words,
            beams=options.beams,
            device=options.device,
        )


def _check(options: Options) -> None:
    """Raises UserError for options that do not go together, and for an unknown protocol."""
    if options.of_masks:
        if options.of_captions:
            raise UserError("masks and captions are both to be scored", "Score one at a time")
        if options.mask_predictions is None or options.mask_references is None:
            raise UserError(
                "--mask-predictions and --mask-references belong together", "Give both folders"
            )
        return
    if options.protocol is not None:
        protocols.get(options.protocol)
    if options.predictions:
        if options.run is not None or (options.references is None) == (not options.shards):
            raise UserError(
                "--predictions needs either --references or --shards, and no RUN",
                "Use, for example, cc-train evaluate --predictions FILE --references FILE",
            )
        return
    if options.run is None or not options.shards:
        raise UserError("nothing is given to score", "Give RUN and --shards, or --predictions")
    if _any_given(options.references, options.types, options.predicted_only):
        raise UserError(
            "--references, --types and --predicted-only are of --predictions",
            "Leave them out: a run is scored against the captions of its --shards",
        )
