"""What can go wrong because of a user, a file or a network, as types."""

from __future__ import annotations

from enum import Enum

from cc_prep.redaction import without_credentials


class UserError(Exception):
    """A user's mistake: what is wrong, and how to fix it. The CLI turns it into exit code 2."""

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = without_credentials(what)
        self.remedy = without_credentials(remedy)
        super().__init__(self.what, self.remedy)

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its type if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def named_line(error: BaseException) -> str:
    """The type of an error and the first line of its message, or the type alone."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


class JobFailed(Exception):
    """The work itself failed, through no mistake in the call. The CLI turns it into exit code 1."""


class LoaderWorkerDied(JobFailed):
    """A process that reads samples for a training was killed."""


class StoreFailed(JobFailed):
    """An object store that failed again and again; what was to be stored there is not."""


class StoreRefused(UserError):
    """An object store that does not accept the keys, whatever file is asked for."""


class FileRefused(UserError):
    """One file that is not read or written: for its kind, its name, its place or missing rights."""


class FileTooLarge(FileRefused):
    """A file with more bytes than its kind may have."""


class Reason(str, Enum):
    """Why a pair was rejected."""

    MISSING_IMAGE = "missing image"
    UNREADABLE_IMAGE = "unreadable image"
    UNREADABLE_MASK = "unreadable mask"
    MASK_DOES_NOT_FIT = "mask does not fit"
    IMAGE_TOO_SMALL = "image too small"
    IMAGE_TOO_LARGE = "image too large"
    SIZES_DIFFER = "sizes differ"
    NOT_REGISTERED = "not registered"
    SIZE_NOT_DIVISIBLE = "size not divisible"
    CAPTION_TOO_LONG = "caption too long"
    UNREADABLE_SEQUENCE = "unreadable sequence"
    UNREADABLE_VIDEO = "unreadable video"
    MISSING_FEATURES = "missing features"
    UNREADABLE_FEATURES = "unreadable features"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    KILLED_ITS_PROCESS = "killed its process"


class RejectedPair(Exception):
    """A pair that cannot be processed; it becomes a reject and the job continues.

    Args:
        detail: What is wrong, and with which file.
        remedy: A sentence, where one is known.
    """

    def __init__(self, reason: Reason, detail: str, remedy: str = "") -> None:
        self.reason = reason
        self.detail = without_credentials(detail)
        self.remedy = remedy
        super().__init__(reason, self.detail, remedy)

    @property
    def message(self) -> str:
        """The detail and the remedy."""
        return f"{self.detail}. {self.remedy}" if self.remedy else self.detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}"
