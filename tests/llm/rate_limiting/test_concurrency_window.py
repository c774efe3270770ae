"""The window that detects how many concurrent calls a provider accepts."""

import math

from hypothesis import given, strategies as st

from actgent.llm.rate_limiting.admission_decisions import BETA, MIN_SIZE, Window


def window(size=100.0, **options):
    return Window(size=size, limit=1000, recovery=15.0, **options)


def test_window_doubles_until_the_first_rejection():
    """Each success adds one slot, so one round of successes doubles the window."""
    found = window(8)
    for running in range(8, 0, -1):
        found.grow(max(running, 8), seconds=1, now=1)
    assert found.size == 16


def test_calls_refused_together_count_once():
    """If 90 of 100 concurrent calls are rejected, the window is set from the remaining 10 in one round."""
    found = window(100)
    for left in range(99, 9, -1):
        found.shrink(left, started=0, now=1)
    assert found.size == BETA * 10
    found.shrink(20, started=0, now=1)
    assert found.size == BETA * 10, "a refusal that would leave more room than there is changes nothing"


def test_rejection_of_all_calls_leaves_one_probe():
    """If all calls of one round are rejected, the window shrinks once. A later rejection shrinks it again."""
    found = window(100)
    for left in range(99, -1, -1):
        found.shrink(left, started=0, now=1)
    assert found.size == BETA
    found.shrink(0, started=2, now=3)
    assert found.size == BETA * BETA


def test_window_returns_to_the_rejected_size_and_exceeds_it():
    """The CUBIC curve returns to the rejected size after `recovery`, then exceeds it slowly, then faster."""
    found = window(40)
    found.grow(40, seconds=1, now=0)
    found.shrink(40, started=0, now=0)
    sizes = []
    for second in range(1, 31):
        found.grow(1000, seconds=1, now=float(second))
        sizes.append(found.size)
    assert sizes == sorted(sizes)
    assert math.isclose(sizes[14], 40)
    assert 40 < sizes[19] < 41 < sizes[29]


def test_unused_window_does_not_grow():
    """Single calls in idle hours do not enlarge the window."""
    found = window(40)
    found.shrink(30, started=0, now=0)
    before = found.size
    for hour in range(1, 10):
        found.grow(1, seconds=1, now=hour * 3600.0)
    assert found.size == before


def test_window_below_one_spaces_calls_out():
    """With a window of 0.25, calls of two seconds start every eight seconds."""
    found = window(0.25)
    found.grow(0, seconds=2, now=10)
    found.start(10)
    assert found.ready_at(1, 12) == math.inf
    assert found.ready_at(0, 12) == 18
    assert found.ready_at(0, 20) == 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1200), st.floats(0, 1000)), max_size=60))
def test_window_always_admits_a_call(events):
    """The window stays within its bounds, and an idle limiter has a start time for the next call."""
    found, now = window(), 0.0
    for is_refused, running, pause in events:
        now += pause
        if is_refused:
            found.shrink(running, started=now - pause, now=now)
        else:
            found.grow(running, seconds=pause, now=now)
        assert MIN_SIZE <= found.size <= 1000
        assert found.ready_at(0, now) < math.inf
