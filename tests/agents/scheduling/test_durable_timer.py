"""`DueIndex` compared with a simple model, without agents and real time."""

from hypothesis import example, given, settings, strategies as st

from actgent.limits_and_schedules.clock import Clock
from actgent.limits_and_schedules.durable_timer import (
    MIN_COMPACT_ENTRIES,
    STILL_DUE_SECONDS,
    TIMER_TOLERANCE_SECONDS,
    DueIndex,
    DurableTimer,
    first_steady_time,
    first_time,
)

NAMES = st.sampled_from("abc")
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, st.integers(0, 8)),
        st.tuples(st.just("load"), NAMES, st.integers(1, 8)),
        st.tuples(st.just("wait"), st.integers(0, 8)),
        st.tuples(st.just("advance"), st.integers(1, 10)),
        st.tuples(st.just("forget"), NAMES),
        st.tuples(st.just("put_back"), NAMES, st.integers(0, 5)),
    ),
    min_size=8,
    max_size=60,
)


class Hands(Clock):
    """A clock whose time changes only by assignment."""

    def __init__(self):
        self.seconds = 1000.0
        self._ahead = 0.0

    def now(self):
        return self.seconds + self._ahead

    def steady(self):
        return self.seconds


class Model:
    """Reference implementation: due times by session, and the sessions that were popped."""

    def __init__(self, clock):
        self.clock, self.at, self.out = clock, {}, set()

    def pop(self):
        now = self.clock.steady()
        due = sorted((at, name) for name, at in self.at.items() if at <= now and name not in self.out)
        self.out.update(name for _, name in due)
        return [name for _, name in due]

    def put_back(self, name, delay):
        self.out.discard(name)
        now = self.clock.steady()
        if name in self.at and (delay or self.at[name] <= now):
            self.at[name] = max(self.at[name], now + (delay or STILL_DUE_SECONDS))


@given(DEEDS)
@example([("set", "a", 1), ("set", "a", 8), ("wait", 2)])
@example([("set", "a", 1), ("wait", 2), ("put_back", "a", 0), ("wait", 1)])
@example([("set", "a", 1), ("set", "b", 2), ("forget", "a"), ("wait", 4)])
@example([("set", "a", 1), ("wait", 2), ("set", "a", 2), ("load", "b", 3), ("wait", 1), ("put_back", "a", 2)])
@settings(deadline=None)
def test_index_equals_a_simple_model(deeds):
    """Each due session is popped once, earliest first, until it is put back. The last set time applies."""
    clock = Hands()
    index, model = DueIndex(clock), Model(clock)
    for deed, *arguments in deeds:
        match deed, arguments:
            case "set", [name, seconds]:
                at = 1000.0 + seconds if seconds else 0.0
                index.set(name, at)
                model.at.pop(name, None)
                model.at |= {name: at} if at else {}
            case "load", [name, seconds]:
                index.load([(name, 1000.0 + seconds)])
                model.at.setdefault(name, 1000.0 + seconds)
            case "wait", [seconds]:
                clock.seconds += seconds
            case "advance", [seconds]:
                index.advance(seconds)
                model.at = {name: at - seconds for name, at in model.at.items()}
            case "forget", [name]:
                index.forget(name.__eq__)
                model.at.pop(name, None)
            case "put_back", [name, delay] if name in model.out:
                index.put_back(name, delay=delay)
                model.put_back(name, delay)
        assert index.pop() == model.pop()
        assert len(index) == len(model.at)
        waiting = [at for name, at in model.at.items() if name not in model.out]
        assert index.first <= min(waiting, default=index.first)


def test_timer_fires_within_the_clock_tolerance():
    """Index and timer use the same tolerance of one millisecond."""
    clock = Hands()
    index = DueIndex(clock)
    for at, is_due in (
        (1000.0 + TIMER_TOLERANCE_SECONDS, True),
        (1000.0 + 1.01 * TIMER_TOLERANCE_SECONDS, False),
    ):
        index.set("a", at)
        assert index.pop() == ["a"] * is_due
        assert DurableTimer("t", at, is_delay=True).is_due(clock) is is_due
        index.put_back("a")


def test_a_new_earliest_time_is_reported():
    """The index calls `on_push` for a new earliest time, so that the service need not poll."""
    received = []
    index = DueIndex(Hands())
    index.on_push = received.append
    index.set("a", 1010.0)
    index.set("a", 1010.0)
    index.set("b", 1005.0)
    assert (received, index.first) == ([1010.0, 1005.0], 1005.0)


def test_changed_times_keep_few_stale_entries():
    """Repeated changes of one session's time keep a bounded number of stale entries."""
    index = DueIndex(Hands())
    for number in range(10 * MIN_COMPACT_ENTRIES):
        index.set("a", 2000.0 - number * 1e-3)
    assert len(index._heap) <= MIN_COMPACT_ENTRIES + 1
    assert len(index) == 1


def test_delays_do_not_follow_a_clock_that_is_set():
    """After a change of the wall clock a date is due by the new time, a delay after its seconds."""
    clock = Hands()
    date, delay = DurableTimer("date", 1010.0), DurableTimer("delay", 1010.0, is_delay=True)
    timers = {timer.id: timer for timer in (date, delay)}
    clock._ahead = 60.0
    assert (date.is_due(clock), delay.is_due(clock)) == (True, False)
    assert first_time(timers) == 1010.0
    assert first_steady_time(timers, clock) == 950.0
    assert first_steady_time({}, clock) == first_time({}) == 0.0
