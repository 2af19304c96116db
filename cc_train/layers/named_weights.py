"""Frozen networks that an exported captioner only names, since the package has them.

Its settings then hold `by_name: {FILE: {name, sha256}}` for each file that was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.weights import Located

KEY = "by_name"


def named(path: Path, network: nn.Module, located: Located) -> dict[str, dict[str, str]]:
    """The entry of `by_name` for a file of a run, if it holds exactly this network; else none.

    Args:
        network: That of the weights `located`.
    """
    stored, own = weights.read_tensors(path), network.state_dict()
    same = stored.keys() == own.keys() and all(torch.equal(stored[n], own[n]) for n in own)
    return {path.name: {"name": located.name, "sha256": located.sha256}} if same else {}


def of(settings: Mapping[str, Any], file: str) -> Located | None:
    """The named weights that replace a file which was left out; None if it was not.

    Fetches them where they do not come with the package.

    Raises:
        UserError: For weights of another package.
    """
    known = settings.get(KEY, {}).get(file)
    if known is None:
        return None
    name, digest = str(known["name"]), str(known["sha256"])
    remedy = "Install the version of the package that exported it"
    if not weights.is_known(name):
        raise UserError(f"{file} is left out, and no weights are named {name}", remedy)
    located = weights.locate(name)
    if located.sha256 != digest:
        raise UserError(f"{file} is left out, and {name} has another SHA-256 here", remedy)
    return located
