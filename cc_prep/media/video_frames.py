"""Frames of videos in one pass a video, where it is known which ones will be asked for.

To give a frame, a decoder starts at the last keyframe before it. Many videos have one keyframe in
hundreds of frames, and a shard's pairs are shuffled: pair by pair, each frame would cost the
decoding of half a video.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from cc_prep.errors import RejectedPair
from cc_prep.media import images

# Of frames that are held for later. Nine frames of 1280×720 for ten pairs, or all of a shard's
# before and after at 224×224.
MAX_BYTES = 256 * 2**20


class VideoFrames:
    """Reads frames of videos like `images.read`; those expected are read ahead, in a window.

    A window holds the next frames in the order of use, as many as fit. At the first use of a video
    its frames in the window are decoded in order; each is dropped after its last use there. What
    cannot be decoded so is read alone when its turn comes. One thread at a time reads.
    """

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self.expect(())

    def expect(self, references: Iterable[str]) -> None:
        """Forgets what was expected before.

        Args:
            references: In their order of use.
        """
        with self._lock:
            self._upcoming = deque(filter(_has_number, references))
            self._distinct = set(self._upcoming)
            self._uses: Counter[str] = Counter()
            self._waiting: dict[str, list[int]] = {}  # frames of the window by video
            self._frames: dict[str, np.ndarray] = {}

    def read(self, reference: str, size: int | None) -> np.ndarray:
        """`images.read` of that reference, to the bit. Raises RejectedPair."""
        with self._lock:
            if not self._uses[reference] and reference in self._distinct:
                self._next_window(reference, size)
            path, index = images.frame_of(reference)
            if index in self._waiting.get(path, ()):
                self._pass(path, size)
            self._uses[reference] -= 1
            frame = self._frames.get(reference)
            if frame is None:
                return images.read(reference, size)
            if self._uses[reference] <= 0:
                del self._frames[reference]
            return frame

    def _next_window(self, first: str, size: int | None) -> None:
        """A window that begins with that reference, if it is still to come."""
        try:
            begin = self._upcoming.index(first)
        except ValueError:  # it is read again
            return
        for _ in range(begin):  # pairs that were rejected without being read
            self._upcoming.popleft()
        self._frames.clear()
        self._uses.clear()
        self._waiting = {}
        try:
            bytes_a_frame = images.read(first).nbytes if size is None else 3 * size * size
        except RejectedPair:  # is met again, by the one who asked
            self._upcoming.popleft()
            return
        most = max(1, self.most_bytes // bytes_a_frame)
        while self._upcoming and (self._upcoming[0] in self._uses or len(self._uses) < most):
            self._uses[self._upcoming.popleft()] += 1
        for reference in self._uses:
            path, index = images.frame_of(reference)
            self._waiting.setdefault(path, []).append(index)

    def _pass(self, path: str, size: int | None) -> None:
        for index in sorted(self._waiting.pop(path)):
            reference = f"{path}{images.FRAME}{index}"
            try:
                self._frames[reference] = images.read(reference, size)
            except RejectedPair:
                return


def _has_number(reference: str) -> bool:
    """Whether it names a frame; another is the fault of the pair that asks for it."""
    try:
        images.frame_of(reference)
    except RejectedPair:
        return False
    return True
