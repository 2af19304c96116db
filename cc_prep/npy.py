"""NumPy's `.npy` files, which may come from strangers: nothing of them is believed unchecked."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np

from cc_prep.errors import first_line

HEADER_SIZE = 10_000  # characters of an array's header, of which ours has under 128


def read(data: bytes, name: str) -> np.ndarray:
    """The array of an encoded file, of any type and shape; a view of `data` that is read-only.

    It must have exactly the bytes that its header declares. No object is ever unpickled. Raises
    ValueError, which names `name`.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f".npy of version {version}")
        shape, transposed, dtype = np.lib.format.read_array_header_1_0(file, HEADER_SIZE)
        if dtype.hasobject:
            raise ValueError("holds Python's objects, which are not read")
        size = len(data) - file.tell()
        # Python's integers: NumPy's would overflow.
        if size != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{size:,} bytes for {dtype} {shape}")
        flat = np.frombuffer(data, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if transposed else "C")
    except Exception as error:  # NumPy parses the header as Python and raises nearly every type
        raise ValueError(f"{name}: {first_line(error)}") from None


def read_as(data: bytes, name: str, dtypes: Sequence[type[np.generic]], axes: int) -> np.ndarray:
    """A copy of the array of an encoded file, in C's order.

    Args:
        dtypes: The types that it may have, little-endian.
        axes: How many axes it must have.

    Raises:
        ValueError: As `read`, and for an array of another kind.
    """
    array = read(data, name)
    expected = [np.dtype(dtype).newbyteorder("<") for dtype in dtypes]
    if array.dtype not in expected or array.ndim != axes or not array.flags.c_contiguous:
        types = " or ".join(map(str, expected))
        raise ValueError(f"{name} is {array.dtype} {array.shape}, not {types} of {axes} axes")
    return array.copy()
