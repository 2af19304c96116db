"""The trainer: streams the shards that `cc_prep` and `pipelines` make. No Ray here.

What users call is here by name, and is imported on first use: `import cc_train` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cc_prep import __version__

if TYPE_CHECKING:
    from cc_train.captioner import Caption
    from cc_train.data.webdataset_shards import open_shards
    from cc_train.evaluation.captions.score_predictions import score
    from cc_train.pretrained import Captioner

__all__ = ["Caption", "Captioner", "__version__", "open_shards", "score"]

_MODULES = {
    "Caption": "cc_train.captioner",
    "Captioner": "cc_train.pretrained",
    "open_shards": "cc_train.data.webdataset_shards",
    "score": "cc_train.evaluation.captions.score_predictions",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
