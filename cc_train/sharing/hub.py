"""Captioners on the Hugging Face hub, through `huggingface_hub` (extra `[hub]`).

An id is `OWNER/NAME`, or `OWNER/NAME@REVISION`. Only files of the kinds that an exported captioner
consists of are fetched, and none of them is ever unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from cc_prep import extras, strict_json
from cc_prep.errors import UserError, first_line
from cc_train import systems
from cc_train.evaluation import evaluation
from cc_train.runs import checkpoints, run_folder, stored_run
from cc_train.sharing import model_card

ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
SUFFIXES = (".safetensors", ".json", ".jsonl", ".txt", ".md", ".csv", ".jpg")


def is_id(path: str) -> bool:
    """Whether `path` can only be an id on the hub: it looks like one, and nothing is there.

    A path below a folder that exists, such as `out/clevr`, is none.
    """
    first = path.split("/", 1)[0]
    return ID.fullmatch(path) is not None and not Path(first).exists()


def name_of(path: str) -> str:
    """What pages call a captioner: the last part of its id, or of its path, also of "."."""
    return Path(os.path.abspath(path)).name if Path(path).is_dir() else Path(path).name


def check_id(repo_id: str) -> None:
    """Raises UserError for what is no `OWNER/NAME`."""
    match = ID.fullmatch(repo_id)
    if match is None or match[2] is not None:
        raise UserError(f"{repo_id}: no name of a repository", "Give it as OWNER/NAME")


def locate(path: str, revision: str | None = None) -> Path:
    """The folder of a run, of a captioner that comes with the package, or fetched from the hub.

    Args:
        revision: A branch, tag or commit of the hub's repository.

    Raises:
        UserError: Where the hub cannot be reached, or does not have it, and for a revision of what
            is no id, or that has one already.
    """
    if not is_id(path):
        if revision is not None:
            raise UserError(
                f"{path}: no id of the hub, so it has no revision {revision}",
                "Give OWNER/NAME, or leave out the revision",
            )
        return run_folder.locate(path)
    match = ID.fullmatch(path)
    assert match is not None
    if None not in (revision, match[2]):
        raise UserError(f"{path}: {revision} is given as its revision too", "Give one of them")
    with _errors(f"{path}: no folder here"):
        kinds = [f"*{suffix}" for suffix in SUFFIXES]
        folder = _library().snapshot_download(
            match[1], revision=revision or match[2], allow_patterns=kinds
        )
    if not (Path(folder) / checkpoints.MODEL).is_file():
        raise UserError(f"{path}: no captioner on the hub", "Give one that cc-train export wrote")
    return Path(folder)


def require_captioner(folder: Path) -> None:
    """Raises UserError for the folder of a run, or an exported one, that is no captioner's."""
    system = stored_run.system_of(folder)
    if not hasattr(systems.recipe(system), "load"):
        raise UserError(
            f"{folder}: a run of {system} is no captioner, which the hub is for",
            "Give a captioner's run, or export it without --push",
        )


def upload(folder: Path, repo_id: str, *, private: bool = False) -> str:
    """Uploads an exported captioner in one commit; its address.

    The card's examples name the repository. What an earlier export left there and this one does not
    have, such as its scores, is removed; other files stay.

    Args:
        private: The repository is made private, and one that is there must be.

    Raises:
        UserError: For a folder that is no exported captioner, with `private` for a public
            repository, and where the hub refuses it; nothing is uploaded then.
    """
    check_id(repo_id)
    if not (folder / checkpoints.MODEL).is_file():
        raise UserError(f"{folder}: no exported captioner", "Export it first: cc-train export")
    require_captioner(folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    with _errors(f"{repo_id}: not uploaded"):
        library = _library()
        api = library.HfApi()
        api.create_repo(repo_id, private=private, exist_ok=True)  # one that is there stays as it is
        repository = api.model_info(repo_id)
        if private and not repository.private:
            raise UserError(
                f"{repo_id}: a public repository, and it is to be private; nothing is uploaded",
                "Make it private on the hub, or give another name",
            )
        operations: list[Any] = [
            library.CommitOperationAdd(
                path_in_repo=file.relative_to(folder).as_posix(),
                path_or_fileobj=_content(file, repo_id),
            )
            for file in files
        ]
        there = {sibling.rfilename for sibling in repository.siblings or ()}
        gone = _exported(api, repo_id, there) - {one.path_in_repo for one in operations}
        operations += [library.CommitOperationDelete(path_in_repo=path) for path in sorted(gone)]
        api.create_commit(repo_id, operations, commit_message="Upload captioner")
        return f"{api.endpoint}/{repo_id}"


def _exported(api: Any, repo_id: str, there: Collection[str]) -> set[str]:
    """The paths in a repository that an export wrote, besides those that each export writes.

    Args:
        there: The paths of all its files. They are those of an evaluation, and what the network
            needed besides by the settings there.
    """
    paths = {f"{run_folder.EVALUATION}/{name}" for name in evaluation.FILES} & set(there)
    if run_folder.SETTINGS in there:
        text = Path(api.hf_hub_download(repo_id, run_folder.SETTINGS)).read_bytes()
        try:
            settings = strict_json.loads(text)
            paths |= {str(file) for file in settings.get("files", [])} & set(there)
        except (ValueError, TypeError, AttributeError):  # not settings of ours
            pass
    return {path for path in paths if path.endswith(SUFFIXES)}


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
