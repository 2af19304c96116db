"""METEOR 1.5 through the Java program that pycocoevalcap carries.

Its own wrapper hangs or dies on what captions may hold. Here one process scores all captions, runs
in plain English whatever the machine's locale, its input holds no line breaks nor separators, and
every wait ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import IO

JAR = "meteor-1.5.jar"
START_S, EACH_S = 120.0, 0.5  # what a start and a caption may take at most


class Unavailable(Exception):
    """A measure that cannot be had here, and why."""


def meteor(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    """Corpus score of each group of ids, and the score of each item, of tokenised captions.

    Scores are from 0 to 1. Raises Unavailable without Java, or if its process fails.
    """
    java = find_java()
    folder = resources.files("pycocoevalcap") / "meteor"
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"]
    process = subprocess.Popen(
        [*command, "-jar", JAR, "-", "-", "-stdio", "-l", "en", "-norm"],
        cwd=str(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        encoding="utf-8",
    )
    timer = threading.Timer(START_S + EACH_S * len(candidates), process.kill)
    timer.start()
    try:
        return _ask(process, references, candidates, groups)
    except (OSError, ValueError) as error:
        process.kill()
        last_words = (process.stderr.read() if process.stderr else "").strip().splitlines()
        raise Unavailable(
            f"METEOR's Java process failed: {last_words[-1] if last_words else error}"
        ) from None
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def find_java() -> str:
    """The Java to run. Raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise Unavailable("no Java on the PATH")
    return java


def _ask(
    process: subprocess.Popen[str],
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [
        " ||| ".join(("SCORE", *map(_clean, references[id]), _clean(caption)))
        for id, caption in candidates.items()
    ]
    # Written beside the reading: both pipes may fill.
    writer = threading.Thread(target=_write, args=(process.stdin, lines))
    writer.start()
    statistics = {id: _line(process.stdout) for id in candidates}
    writer.join()
    totals, item_scores = list[float](), dict[str, float]()
    for group in groups:
        ids = [id for id in candidates if id in group]
        process.stdin.write(" ||| ".join(("EVAL", *(statistics[id] for id in ids))) + "\n")
        process.stdin.flush()
        item_scores |= {id: float(_line(process.stdout)) for id in ids}
        totals.append(float(_line(process.stdout)))
    return totals, item_scores


def _write(pipe: IO[str], lines: Sequence[str]) -> None:
    try:
        for line in lines:
            pipe.write(line + "\n")
        pipe.flush()
    except (OSError, ValueError):
        return  # the reader meets the end and says why


def _line(pipe: IO[str]) -> str:
    line = pipe.readline()
    if not line.strip():
        raise ValueError("it ended without an answer")
    return line.strip()


def _clean(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())
