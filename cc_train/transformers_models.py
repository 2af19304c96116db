"""What is read of models of transformers in the same way, to train one or to ask one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from cc_prep.errors import UserError

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def dtype_of(precision: Precision, device: str) -> torch.dtype:
    """What frozen weights are held in; `auto` is bfloat16 on a GPU and float32 elsewhere."""
    name = ("float32" if device == "cpu" else "bfloat16") if precision == "auto" else precision
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def image_token(config: Any, folder: Path) -> int:
    """The id of the token whose places images take.

    Raises:
        UserError: For a model without one.
    """
    for name in ("image_token_id", "image_token_index"):  # of version 5, and before
        number = getattr(config, name, None)
        if isinstance(number, int):
            return number
    raise UserError(
        f"{folder}: config.json names no image_token_id",
        "Take a folder that was converted for transformers 5, or another model",
    )
