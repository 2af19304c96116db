"""Requests pass at no more than their rate, also of several threads and after pauses."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_train.baselines.pace import Pace, Stopped


class Clock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(
    st.floats(1, 600),
    st.lists(st.tuples(st.booleans(), st.floats(0, 30)), min_size=1, max_size=30),
)
def test_no_minute_has_more_requests_than_allowed(
    rate: float, events: list[tuple[bool, float]]
) -> None:
    """Keeps away: a burst after a pause or after slow replies, which a provider answers by 429."""
    clock = Clock()
    pace = Pace(rate, clock, clock.sleep)
    sent: list[float] = []
    for paused, seconds in events:
        until = clock.now + seconds
        if paused:
            pace.pause(seconds)
        else:
            clock.now = until  # the reply took so long
        pace.wait()
        assert not paused or clock.now >= until - 1e-9
        sent.append(clock.now)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert all(gap >= 60 / rate - 1e-6 for gap in gaps)


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock, clock.sleep)
    for _ in range(5):
        pace.wait()
    assert clock.now == 100.0


def test_a_stop_wakes_who_waits() -> None:
    """Keeps away: a run that was told a wrong key, and ends only after the pause of a thread."""
    pace = Pace()
    pace.pause(600)
    ends: list[type[Exception]] = []

    def wait() -> None:
        try:
            pace.wait()
        except Stopped as error:
            ends.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    pace.stop()
    thread.join(5)
    assert ends == [Stopped]
    with pytest.raises(Stopped):
        pace.wait()
