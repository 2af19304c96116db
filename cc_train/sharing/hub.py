"""Captioners on the Hugging Face hub, through `huggingface_hub` (extra `[hub]`).

An id is `OWNER/NAME`, or `OWNER/NAME@REVISION`. Only files of the kinds that an exported captioner
consists of are fetched, and none of them is ever unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from cc_prep import extras
from cc_prep.errors import UserError, first_line
from cc_train.runs import checkpoints, run_folder
from cc_train.sharing import model_card

ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
SUFFIXES = (".safetensors", ".json", ".jsonl", ".txt", ".md")


def is_id(path: str) -> bool:
    """Whether `path` can only be an id on the hub: it looks like one, and nothing is there.

    A path below a folder that exists, such as `out/clevr`, is none.
    """
    first = path.split("/", 1)[0]
    return ID.fullmatch(path) is not None and not Path(first).exists()


def check_id(repo_id: str) -> None:
    """Raises UserError for what is no `OWNER/NAME`."""
    match = ID.fullmatch(repo_id)
    if match is None or match[2] is not None:
        raise UserError(f"{repo_id}: no name of a repository", "Give it as OWNER/NAME")


def locate(path: str, revision: str | None = None) -> Path:
    """The folder of a run, of a captioner that comes with the package, or fetched from the hub.

    revision: a branch, tag or commit of the hub's repository. Raises UserError where the hub cannot
    be reached, or does not have it.
    """
    if not is_id(path):
        return run_folder.locate(path)
    match = ID.fullmatch(path)
    assert match is not None
    with _errors(f"{path}: no folder here"):
        kinds = [f"*{suffix}" for suffix in SUFFIXES]
        folder = _library().snapshot_download(
            match[1], revision=revision or match[2], allow_patterns=kinds
        )
    if not (Path(folder) / checkpoints.MODEL).is_file():
        raise UserError(f"{path}: no captioner on the hub", "Give one that cc-train export wrote")
    return Path(folder)


def upload(folder: Path, repo_id: str, *, private: bool = False) -> str:
    """Uploads an exported captioner; its address. Raises UserError where the hub refuses it.

    The card's examples name the repository. private: for a repository that is made by this.
    """
    check_id(repo_id)
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    with _errors(f"{repo_id}: not uploaded"):
        library = _library()
        api = library.HfApi()
        api.create_repo(repo_id, private=private, exist_ok=True)
        operations = [
            library.CommitOperationAdd(
                path_in_repo=file.relative_to(folder).as_posix(),
                path_or_fileobj=_content(file, repo_id),
            )
            for file in files
        ]
        api.create_commit(repo_id, operations, commit_message="Upload captioner")
        return f"{api.endpoint}/{repo_id}"


def _content(file: Path, repo_id: str) -> bytes | str:
    """What is uploaded of a file: of the card a text that names the repository."""
    if file.name == model_card.NAME:
        return model_card.with_path(file.read_text(encoding="utf-8"), repo_id).encode()
    return str(file)


def _library() -> ModuleType:
    # The library asks the hub about other programs that use it; nothing of ours needs that.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    return huggingface_hub


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turns what the hub's library raises into one line."""
    try:
        yield
    except ImportError:
        raise UserError(
            f"{what}, and huggingface_hub is not installed", extras.install("hub")
        ) from None
    except UserError:
        raise
    except Exception as error:  # its own types, and those of whichever HTTP library it uses
        reason = first_line(error).rstrip(".")
        raise UserError(f"{what}, and the hub says: {reason}", _remedy(error)) from None


def _remedy(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "Check the name, and log in with hf auth login if it is private"
    if status == 404:
        return "Check the name and the revision"
    return "Check the network; offline, only what was fetched before is available"
