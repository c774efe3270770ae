"""The garbage collector with many live sessions."""

from collections import deque

from actgent.actors.gc_tuning import tuned_gc

SESSIONS, LIVE = 100_000, 5_000
"""How many come one after the other, and how many of them are there at a time."""


class Session:
    """An object in a reference cycle, as a session whose handlers refer to it."""

    alive = 0

    def __init__(self):
        type(self).alive += 1
        self.handlers = [self, *([] for _ in range(10))]

    def __del__(self):
        type(self).alive -= 1


def test_ended_wait_cycles_are_removed():
    """Of 100,000 ended sessions in cycles most are freed by the tuned collector."""
    with tuned_gc():
        live = deque(maxlen=LIVE)
        for _ in range(SESSIONS):
            live.append(Session())
        assert Session.alive < SESSIONS / 2


def test_cycles_are_removed_by_a_program_with_many_short_blocks():
    """Sessions that outlive the block in which they began are freed, although each block is short."""
    live = deque(maxlen=LIVE)
    for _ in range(SESSIONS // 100):
        with tuned_gc():
            live.extend(Session() for _ in range(100))
    assert Session.alive < SESSIONS / 2
