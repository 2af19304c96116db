"""METEOR 1.5 through the Java program that pycocoevalcap carries.

The wrapper of pycocoevalcap hangs or dies on some captions. Here one Java process scores all
captions; it runs in an English locale on every machine, its input holds neither line breaks nor
separators, and it is ended when it does not answer for `PATIENCE_S`. It takes some eight seconds to
start, so it is kept for the next call and ends with this process.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import IO

from cc_prep.console import on_stderr

JAR = "meteor-1.5.jar"
PATIENCE_S = 180.0  # for the first answer, which takes a busy machine a minute, and for each other
TOLD_S = 20.0  # of silence, after which the wait is said
STEP_S = 0.5  # between two looks at the clock


class Unavailable(Exception):
    """A measure is not available on this machine; the message says why."""


def meteor(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    """Corpus score of each group of ids, and the score of each item, of tokenised captions.

    Scores are from 0 to 1. Raises Unavailable without Java, or if its process fails.
    """
    with _lock:
        server = _server(find_java())
        ended = threading.Event()
        server.answered = time.monotonic()
        threading.Thread(target=server.watch, args=(ended,), daemon=True).start()
        try:
            return _ask(server, references, candidates, groups)
        except (OSError, ValueError) as error:
            _stop()
            if server.late:
                raise Unavailable(
                    f"METEOR's Java process did not answer for {PATIENCE_S:.0f} s: the machine is "
                    f"too busy, or {server.java} does not work"
                ) from None
            last_words = server.messages().strip().splitlines()
            raise Unavailable(
                f"METEOR's Java process failed: {last_words[-1] if last_words else error}"
            ) from None
        except BaseException:
            _stop()  # what it still would answer is not for the next call
            raise
        finally:
            ended.set()


class _Server:
    """METEOR's process, which answers line by line until its input ends.

    answered: the time of its last answer, or of the call. late: it was ended, as it gave no answer.
    """

    def __init__(self, java: str) -> None:
        self.late, self.answered = False, time.monotonic()
        options = ("-Xmx2G", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")
        self.java = java
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 -- open while the process is
        self.process = subprocess.Popen(
            [java, *options, "-jar", JAR, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=str(resources.files("pycocoevalcap") / "meteor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",  # half a surrogate pair, which JSON may hold
        )

    def watch(self, ended: threading.Event) -> None:
        """Says that the process is silent, and ends it when it has been so for too long."""
        told = False
        while not ended.wait(STEP_S):
            silent = time.monotonic() - self.answered
            if silent > PATIENCE_S:
                self.late = True
                self.process.kill()
                return
            if silent > TOLD_S and not told:
                told = True
                on_stderr().print(
                    f"METEOR's Java process has not answered for {TOLD_S:.0f} s; without an answer "
                    f"for {PATIENCE_S:.0f} s METEOR is left out"
                )

    def line(self) -> str:
        """Its next answer.

        Raises:
            ValueError: Where it ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.answered = time.monotonic()
        if not line.strip():
            raise ValueError("it ended without an answer")
        return line.strip()

    def messages(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")


_lock = threading.Lock()
_running: _Server | None = None


def _server(java: str) -> _Server:
    """The running process, or a new one if it has ended or another Java is needed."""
    global _running
    if _running and (_running.java != java or _running.process.poll() is not None):
        _stop()
    if _running is None:
        _running = _Server(java)
    return _running


@atexit.register
def _stop() -> None:
    global _running
    if _running is not None:
        _running.process.kill()
        _running.process.wait()
    _running = None


def find_java() -> str:
    """The Java to run. Raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise Unavailable("no Java on the PATH")
    return java


def _ask(
    server: _Server,
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    groups: Sequence[Collection[str]],
) -> tuple[list[float], dict[str, float]]:
    pipe = server.process.stdin
    assert pipe is not None
    lines = [
        " ||| ".join(("SCORE", *map(_clean, references[id]), _clean(caption)))
        for id, caption in candidates.items()
    ]
    # Written beside the reading: both pipes may fill.
    writer = threading.Thread(target=_write, args=(pipe, lines))
    writer.start()
    statistics = {id: server.line() for id in candidates}
    writer.join()
    totals, item_scores = list[float](), dict[str, float]()
    for group in groups:
        ids = [id for id in candidates if id in group]
        pipe.write(" ||| ".join(("EVAL", *(statistics[id] for id in ids))) + "\n")
        pipe.flush()
        item_scores |= {id: float(server.line()) for id in ids}
        totals.append(float(server.line()))
    return totals, item_scores


def _write(pipe: IO[str], lines: Sequence[str]) -> None:
    try:
        for line in lines:
            pipe.write(line + "\n")
        pipe.flush()
    except (OSError, ValueError):
        return  # the reader meets the end and says why


def _clean(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())
