"""SPICE through pycocoevalcap, if Java and the parser's models are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from importlib import resources

MODELS = "stanford-corenlp-3.6.0-models.jar"
PATIENCE_S = 180.0  # for the first answer, which takes a busy machine a minute


class Unavailable(Exception):
    """A measure is not available on this machine; the message says why."""


def spice(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    """Corpus score of each group of ids, and the score of each item, of tokenised captions.

    Scores are from 0 to 1. Nothing is downloaded: the models have to be where pycocoevalcap puts
    them. Raises Unavailable without them or Java, or if its process fails.
    """
    java = find_java()
    models = resources.files("pycocoevalcap") / "spice" / "lib" / MODELS
    if not models.is_file():
        raise Unavailable(
            "its parser's models (385 MB) are not installed; "
            "`python -m pycocoevalcap.spice.get_stanford_models` fetches them"
        )
    _require_answer(java)
    from pycocoevalcap.spice.spice import Spice

    ids = sorted(candidates)
    try:
        _, details = Spice().compute_score(
            {id: list(references[id]) for id in ids}, {id: [candidates[id]] for id in ids}
        )
    except subprocess.CalledProcessError as error:  # its words hold the whole command
        raise Unavailable(f"its Java process ended with exit code {error.returncode}") from None
    except Exception as error:
        raise Unavailable(f"its Java process failed: {error}") from None
    scores = {id: float(detail["All"]["f"]) for id, detail in zip(ids, details, strict=True)}
    return [sum(scores[id] for id in ids if id in g) / max(1, len(g)) for g in groups], scores


def _require_answer(java: str) -> None:
    """Raises Unavailable for a Java that never answers: pycocoevalcap would wait for ever."""
    try:
        subprocess.run([java, "-version"], capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{java} does not work: {error}") from None


def find_java() -> str:
    """The Java to run. Raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise Unavailable("no Java on the PATH")
    return java
