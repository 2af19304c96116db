"""Weights by name or file: where they come from, their digests, their tensors, their network."""

from cc_prep.weights.registry import (
    REGISTRY,
    SHIPPED,
    Located,
    Shipped,
    build,
    cached_path,
    fetch,
    is_known,
    locate,
    names,
    read_tensors,
    verify,
)

__all__ = [
    "REGISTRY",
    "SHIPPED",
    "Located",
    "Shipped",
    "build",
    "cached_path",
    "fetch",
    "is_known",
    "locate",
    "names",
    "read_tensors",
    "verify",
]
