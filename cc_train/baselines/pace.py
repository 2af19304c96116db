"""When the next request may be sent: a rate that is never exceeded, and pauses for all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Stopped(Exception):
    """No further request is to be sent."""


class Pace:
    """Lets requests of several threads pass, at most so many a minute, evenly spread.

    Args:
        requests_per_minute: None for no limit.
        clock: Seconds that only grow.
        sleep: Waits so many seconds, or less once `stop` was called.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._interval = 0.0 if requests_per_minute is None else 60.0 / requests_per_minute
        self._stopped = threading.Event()
        self._clock, self._sleep = clock, sleep or self._stopped.wait
        self._lock = threading.Lock()
        self._next = clock()  # nobody sends a request before

    def wait(self) -> None:
        """Returns when the caller may send a request. Raises Stopped once `stop` was called."""
        while True:
            if self._stopped.is_set():
                raise Stopped
            with self._lock:
                now = self._clock()
                seconds = self._next - now
                if seconds <= 0:
                    self._next = now + self._interval
                    return
            self._sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Nobody sends a request for so many seconds from now on."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)

    def stop(self) -> None:
        """Lets no further request pass, and wakes those that wait."""
        self._stopped.set()
