"""What both command lines do alike: how they print a text, what `~` means in an argument, and that
SIGTERM, which schedulers and `kill` send, is Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Iterable, Iterator

from cc_prep import storage
from cc_prep.redaction import without_credentials

# What a terminal obeys, or shows in another order than it is written: control characters but tab
# and newline, and Unicode's changes of direction. Lone surrogates are of names that are no UTF-8.
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_LINE, _HEAD, _TAIL = 1000, 500, 300  # of an error, in characters; its remedy is at its end
# Said by a command that is stopped before it can say more, such as in the first second of a job. It
# must be true of those that keep nothing too, such as `inspect`.
STOPPED = "stopped. Run the same command again; jobs and trainings go on from what is finished"
_HOME = re.compile(r"(^|[=,])(~)(?=/)|^(~)$")


def printable(text: str) -> str:
    """A text as it may be shown: without credentials, and with what a terminal obeys escaped.

    The escapes are those of JSON (`\\u001b`), so that JSON stays JSON.
    """
    escaped = _NOT_SHOWN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return without_credentials(escaped)


def echo(text: object = "", err: bool = False) -> None:
    """Prints a text and a newline; every command prints by this.

    Args:
        err: To standard error, where the middle of a line is left out that would fill the screen,
            as a stranger's name of 5 MB does.
    """
    file = sys.stderr if err else sys.stdout
    shown = printable(str(text))
    if err:
        shown = "\n".join(map(_shortened, shown.split("\n")))
    file.write(f"{shown}\n")
    file.flush()


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:_HEAD]} … {line[-_TAIL:]}"


def with_homes(arguments: Iterable[str]) -> list[str]:
    """A command's arguments with `~` as the user's folder, also where a shell leaves it: in quotes,
    and behind `=` and commas."""
    home = storage.with_home("~")
    return [_HOME.sub(lambda match: f"{match[1] or ''}{home}", one) for one in arguments]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, so that what is half-written is removed."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)
