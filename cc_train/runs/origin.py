"""What a training started from, as the settings of its run say it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cc_prep.storage import sha256
from cc_train.runs import checkpoints, run_folder

IMPORTED = "imported"  # the key of the file of others that the weights of a run were taken from
INIT = "init"  # the key of what a training started from, see `started_from`
INIT_PAIR = "init_pair_weights"  # the key of a second start, with the same `name` and `sha256`


def started_from(init: Path | None, name: str | None) -> dict[str, str] | None:
    """The entry in a run's settings about the weights that --init names; None without any.

    Args:
        init: A run, a packed captioner or a file of weights.
        name: The user's name for it, which is recorded if it is no path on this machine. `place` is
            a digest of the whole path: it tells two folders of one name apart and keeps the path
            private.

    Raises:
        UserError: For a folder without a network.
    """
    if init is None:
        return None
    shown = _without_folders(init) if name is None or Path(name) == init else name
    whole = name if name is not None and Path(name) != init else str(init.resolve())
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return {"name": shown, "place": digest, "sha256": sha256(run_folder.weights_file(init))}


def _without_folders(path: Path) -> str:
    """What cards call a path on this machine: `run`, `ViT-B-32.pt`, or
    `run/checkpoints/001000/model.safetensors`.
    """
    parts = path.resolve().parts
    if path.name != checkpoints.MODEL:
        return parts[-1]
    return "/".join(parts[-4:] if parts[-3] == checkpoints.FOLDER else parts[-2:])


def start_in_words(start: Mapping[str, str] | None) -> str:
    """What a training started from, as messages and cards have it."""
    return "new weights" if start is None else f"{start['name']} (SHA-256 {start['sha256'][:12]})"
