"""Tensors of torch's archives without running any of them.

TorchScript, such as OpenAI's `ViT-B-32.pt`: `data.pkl` is read by an unpickler that knows tensors,
lists and attribute holders and refuses every other name; its code is not looked at.

`torch.save` with a training framework's objects beside the tensors, such as taming-transformers'
Lightning checkpoints, which torch's own safe reader refuses whole: every unknown name becomes an
object that holds nothing and does nothing.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Parameters and buffers by dotted name.

    Raises pickle.UnpicklingError, KeyError and ValueError for what is no such archive.
    """
    with zipfile.ZipFile(path) as archive:
        data = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = data.removesuffix("data.pkl")
        module = _Unpickler(archive, folder, io.BytesIO(archive.read(data))).load()
    return dict(_tensors(module, ""))


def read_saved(path: Path) -> Any:
    """What `torch.save` wrote into a zip archive, foreign objects replaced by `Inert` ones.

    Raises pickle.UnpicklingError, KeyError and ValueError for what is no such archive.
    """
    with zipfile.ZipFile(path) as archive:
        data = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = data.removesuffix("data.pkl")
        return _LenientUnpickler(archive, folder, io.BytesIO(archive.read(data))).load()


class Inert:
    """Stands for any object of a class that is not looked for, let alone run."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __new__(cls, *_: object, **__: object) -> Inert:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...


class _Module:
    """Whatever a scripted module was: its attributes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str, file: io.BytesIO) -> None:
        super().__init__(file)
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return list
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")

    def persistent_load(self, pid: Any) -> Tensor:
        import torch

        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, str) or not str(key).isalnum():
            raise pickle.UnpicklingError(f"{kind!r} has no place in a checkpoint")
        data = bytearray(self.archive.read(f"{self.folder}data/{key}"))
        storage = torch.frombuffer(data, dtype=getattr(torch, dtype)) if data else torch.empty(0)
        if len(storage) != count:
            raise ValueError(f"storage {key} has {len(storage)} numbers, not {count}")
        return storage


class _LenientUnpickler(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_known
        try:
            return super().find_class(module, name)
        except pickle.UnpicklingError:
            return Inert

    def persistent_load(self, pid: Any) -> Any:
        """A storage of a type that is not read is a foreign object as well."""
        return Inert() if pid[1] is Inert else super().persistent_load(pid)


def _parameter(data: Tensor, *_: object) -> Tensor:
    return data


def _rebuild(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    return storage.as_strided(size, stride, offset).clone()


def _rebuild_known(storage: Tensor | Inert, *layout: Any) -> Tensor | Inert:
    return storage if isinstance(storage, Inert) else _rebuild(storage, *layout)


def _tensors(module: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    import torch

    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
