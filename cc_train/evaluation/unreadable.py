"""Validation samples that cannot be read: they are left out, counted, and limited in number."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console

from cc_prep.errors import JobFailed
from cc_train.data.stream import REMEDY
from cc_train.distributed import Ranks


class Unreadable:
    """Decides, alike on all ranks, what to do about validation samples that cannot be read.

    Args:
        count: Number of samples to validate on.
        skip_bad: The share of them that may be unreadable, see `StreamSettings`.
        console: Prints a note with the samples that were not named before.
    """

    def __init__(self, count: int, skip_bad: float, ranks: Ranks, console: Console) -> None:
        self.count, self.skip_bad, self.ranks, self.console = count, skip_bad, ranks, console
        self.noted: set[str] = set()

    def agreed(self, own: Collection[str]) -> set[str]:
        """The keys of all samples that some rank could not read; all ranks call this together.

        Args:
            own: The keys of this rank.

        Raises:
            JobFailed: If they are more than `skip_bad` allows, or all samples.
        """
        keys = {key for part in self.ranks.gather_objects(sorted(own)) for key in part}
        if not keys:
            return keys
        new = sorted(keys - self.noted)
        about = f"{len(keys)} of {self.count} samples to validate on cannot be read"
        if len(keys) == self.count:
            raise JobFailed(f"{about}: {REMEDY}")
        if len(keys) > self.skip_bad * self.count:
            last = f"the last is {new[-1] if new else max(keys)}"
            raise JobFailed(f"{about}, {last}: {REMEDY}, or raise stream.skip_bad")
        if new:
            text = f"{about}, and are left out; the last is {new[-1]}"
            if self.ranks.is_main_process:
                self.console.print(text)
            self.noted |= keys
        return keys
