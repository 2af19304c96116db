"""Models that transformers reads: a local folder with `config.json` and its tensors.

They are never fetched. A folder is known by its name and a digest of its files.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cc_prep import storage
from cc_prep.devices import is_out_of_memory
from cc_prep.errors import UserError, first_line
from cc_prep.weights.registry import Located

CONFIG = "config.json"
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # for every `from_pretrained`
# What it raises for a folder that is damaged or of another model. Safetensors has a type of its
# own, which is none of the others.
UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)
# What decides a model's output: its settings, its chat, its vocabulary and its tensors.
SUFFIXES = (".json", ".jinja", ".safetensors", ".bin", ".txt", ".model")


def locate_folder(path: str, model_type: str) -> Located:
    """A folder of a model of that type, named by its name and digest.

    Raises:
        UserError: For what is no such folder, or holds another type of model.
    """
    actual = read_model_type(path, f"Give a local folder of a {model_type} model")
    if actual != model_type:
        raise UserError(
            f"{Path(path) / CONFIG}: a model of the type {actual}, not {model_type}",
            f"Give a local folder of a {model_type} model",
        )
    return identify(path)


def read_model_type(path: str, remedy: str) -> str:
    """The `model_type` of the model in a folder. Raises UserError, with this remedy."""
    try:
        config = storage.read_json(str(Path(storage.with_home(path)) / CONFIG))
        return str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: no folder with a {CONFIG} of transformers in it",
            f"{remedy}; none is downloaded",
        ) from None


def identify(path: str) -> Located:
    """A folder by its name and its digest."""
    folder = Path(storage.with_home(path))
    sha256 = digest(folder)
    return Located(f"{folder.resolve().name}@{sha256[:8]}", folder, sha256)


def digest(folder: Path) -> str:
    """SHA-256 of the names and contents of the files in a folder that decide a model's output."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    whole = hashlib.sha256()
    for path in files:
        status = path.stat()
        whole.update(f"{path.name} {_sha256(path, status.st_size, status.st_mtime_ns)}\n".encode())
    return whole.hexdigest()


def check_image_groups(places: int, patch: int) -> None:
    """Raises UserError where this transformers cannot place the image tokens of a SmolVLM.

    Args:
        places: Image tokens of an image. Before 5.21 transformers places them in groups of as many
            as a patch has px on a side.
    """
    from packaging.version import Version

    installed = version("transformers")
    if places % patch and Version(installed) < Version("5.21"):
        raise UserError(
            f"transformers {installed} takes images of SmolVLM in groups of {patch} tokens, and "
            f"this model has {places} of them for each image",
            "Install transformers 5.21 or later, which needs Python 3.11",
        )


@lru_cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    return storage.sha256(path)


def pretrained(make: Any, folder: Path, **options: Any) -> Any:
    """The model of a folder; all its tensors have to be in the folder.

    Raises one of UNREADABLE, and UserError where memory does not suffice, or tensors are missing:
    transformers draws those at random, and only warns.

    Args:
        make: Its class in transformers.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # instead of its table of these tensors there is our line
    logging.disable_progress_bar()
    try:
        network, loaded = make.from_pretrained(folder, output_loading_info=True, **LOCAL, **options)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"{folder}: memory does not suffice for it ({first_line(error)})",
            "Take a smaller model, or a precision of fewer bits",
        ) from None
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise UserError(
            f"{folder}: {missing[0]} of its {type(network).__name__} is not there, the first of "
            f"{len(missing)} missing tensors",
            "Give the whole folder, as save_pretrained writes it",
        )
    return network


def load(
    folder: Located, name: str, key: str, model: Any, processor: Any, device: str
) -> tuple[Any, Any]:
    """The model of a folder, in evaluation, and its processor.

    Args:
        name: Of the kind of model, for messages.
        key: The manifest section whose `weights` names the folder.
        model, processor: Their classes in transformers.

    Raises:
        UserError: Where the folder holds another kind.
    """
    try:
        of_folder = processor.from_pretrained(folder.path, **LOCAL)
        network = pretrained(model, folder.path)
    except UNREADABLE as error:
        raise UserError(
            f"{folder.path}: no {name} can be loaded ({first_line(error)})",
            f"Give {key}.weights a folder that {model.__name__}.save_pretrained and "
            f"{processor.__name__}.save_pretrained wrote",
        ) from None
    return network.to(device).eval(), of_folder
