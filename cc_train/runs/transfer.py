"""What a new network takes over from a run that was trained before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.runs.stored_run import Run
from cc_train.text import Vocabulary


def require_same(run: Run, name: str, value: Any, own_name: str = "") -> None:
    """Refuses a run with another value of a setting that the shapes of its tensors do not show.

    Raises UserError.

    Args:
        name: Of the setting, such as `encoder.heads`.
        value: That of the new network, where the setting is called own_name if not the same.
    """
    section, key = name.split(".")
    theirs = run.settings[section][key]
    if theirs != value:
        raise UserError(
            f"{run.folder} has {name}={theirs}, not {value}", f"Set {own_name or name}={theirs}"
        )


def take_over(network: nn.Module, tensors: Mapping[str, Tensor], init: Path) -> None:
    """Loads what the run at `init` learned into a new network.

    Raises:
        UserError: For other sizes.
    """
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise UserError(f"{init} has other sizes: {reason}", "Use its settings") from None


def word_rows(trained: Vocabulary, words: Vocabulary) -> list[int | None]:
    """Of each of the words, its row in a run with another vocabulary; None if it has none."""
    return [trained.ids.get(word) for word in words.words]


def with_rows(
    tensors: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    names: Sequence[str],
    rows: Sequence[int | None],
) -> dict[str, Tensor]:
    """The tensors of a run with the rows of its words in the order of another vocabulary.

    Args:
        names: The tensors with a row for each word.
        rows: Of each word of the new vocabulary the run's row; None where the run does not know it,
            and the row is that of `own`, the new network's. A tensor whose rows have another shape
            there stays as it is.
    """
    moved = dict(tensors)
    for name in names:
        if own[name].shape[1:] == tensors[name].shape[1:]:
            moved[name] = torch.stack(
                [own[name][i] if row is None else tensors[name][row] for i, row in enumerate(rows)]
            )
    return moved
