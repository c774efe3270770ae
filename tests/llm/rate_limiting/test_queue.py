"""The order of waiting calls: priority, ageing and turns of sessions."""

from collections import Counter

from hypothesis import given, strategies as st

from actgent import Priority
from actgent.llm.rate_limiting.call_queue import Call, CallQueue
from actgent.llm.rate_limiting.token_buckets import Cost
from actgent.support.fair_queue import Turns


def call(session="s", priority=Priority.NORMAL, arrived=0.0, tokens=0.0):
    return Call(session=session, priority=priority, cost=Cost(tokens), arrived=arrived)


def drain(waiting, *, now=0.0, step=0.0, rate=1.0):
    """Admit one call every `step` seconds. Return the calls in admission order."""
    order = []
    while (found := waiting.first()) is not None:
        waiting.admit(found[1], now, seconds=found[1].cost.input_tokens / rate)
        order.append(found[1])
        now += step
    assert waiting.entries == 0
    return order


def test_calls_are_admitted_by_priority():
    """The order is URGENT, HIGH, NORMAL, LOW, for any order of arrival."""
    waiting = CallQueue()
    for number, priority in enumerate(reversed(Priority)):
        waiting.add(call(f"s{number}", priority, arrived=number))
    assert [each.priority for each in drain(waiting)] == list(Priority)


def test_waiting_calls_age_by_priority_levels():
    """A LOW call precedes a HIGH call that arrived more than two age steps later."""
    waiting = CallQueue(age_step=30)
    waiting.add(call("old", Priority.LOW, arrived=0))
    waiting.add(call("new", Priority.HIGH, arrived=61))
    waiting.add(call("newer", Priority.HIGH, arrived=59))
    assert [each.session for each in drain(waiting, now=61)] == ["newer", "old", "new"]


def test_session_with_a_hundred_calls_does_not_starve_another():
    """The only call of a session waits for one call of a session that has a hundred."""
    waiting = CallQueue()
    for number in range(100):
        waiting.add(call("many", arrived=number / 1000))
    waiting.add(call("one", arrived=0.2))
    order = drain(waiting, now=0.3, step=0.1)
    assert [each.session for each in order[:3]] == ["many", "one", "many"]


def test_calls_of_sessions_alternate():
    """Each interval of the order has nearly equal numbers of calls of two sessions."""
    waiting = CallQueue()
    for name, count in (("a", 50), ("b", 30), ("c", 30)):
        for _ in range(count):
            waiting.add(call(name))
    first = Counter(each.session for each in drain(waiting, step=0.01)[:60])
    assert max(first.values()) - min(first.values()) <= 1


def test_sessions_with_large_calls_get_fewer_turns():
    """Two sessions that always wait for tokens each get about half of the tokens."""
    waiting = CallQueue()
    for _ in range(200):
        waiting.add(call("dear", tokens=10))
        waiting.add(call("cheap", tokens=1))
    now, tokens = 0.0, Counter()
    while now < 300:
        _, chosen = waiting.first()
        cost = chosen.cost.input_tokens
        waiting.admit(chosen, now, seconds=cost)
        tokens[chosen.session] += cost
        now += cost
    assert 0.8 < tokens["cheap"] / tokens["dear"] < 1.25


def test_calls_without_a_session_are_admitted_in_order_of_arrival():
    waiting = CallQueue()
    calls = [call("", arrived=number) for number in range(5)]
    for each in reversed(calls):
        waiting.add(each)
    assert drain(waiting, now=9) == calls


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "admit", "withdraw"]),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from(Priority),
        st.integers(0, 10_000),
        st.floats(0, 50),
    ),
    max_size=120,
)


@given(EVENTS)
def test_every_call_is_admitted_or_withdrawn_once(events):
    """Each call is admitted or withdrawn exactly once, URGENT first. The bookkeeping stays bounded."""
    waiting, there, now = CallQueue(), [], 0.0
    for what, session, priority, choice, pause in events:
        now += pause
        if what == "add":
            there.append(call(session, priority, arrived=now, tokens=choice % 7))
            waiting.add(there[-1])
        elif there and what == "admit":
            _, chosen = waiting.first()
            assert (chosen.priority == 0) == any(each.priority == 0 for each in there)
            mates = [each for each in there if session and each.session == chosen.session]
            assert not any(
                mate.priority <= chosen.priority and mate.arrived < chosen.arrived for mate in mates
            )
            waiting.admit(chosen, now, seconds=chosen.cost.input_tokens)
            there.remove(chosen)
        elif there:
            waiting.withdraw(there.pop(choice % len(there)))
        assert len(waiting) == len(there)
        assert waiting.entries <= 4 * len(there) + 40
    assert {id(each) for each in drain(waiting, now=now)} == {id(each) for each in there}


# --- owners ----------------------------------------------------------------------------------


def of(owner, session, **options):
    made = call(session, **options)
    made.owner = owner
    return made


def test_owners_alternate_and_sessions_within_an_owner():
    """Twenty sessions of one owner delay another owner's call by one call. Each session gets a turn."""
    waiting = CallQueue()
    for number in range(40):
        waiting.add(of("many", f"m{number % 20}", arrived=number / 1000))
    for _ in range(3):
        waiting.add(of("one", "o", arrived=0.5))
    order = drain(waiting, now=1, step=0.1)
    assert [each.owner for each in order[:6]] == ["many", "one"] * 3
    assert len({each.session for each in order if each.owner == "many"}) == 20
    assert [each.session for each in order[:6:2]] == ["m0", "m1", "m2"]


def test_owner_with_large_calls_gets_fewer_turns():
    """Two owners that always wait for tokens each get about half, for any number of sessions."""
    waiting = CallQueue()
    for number in range(400):
        waiting.add(of("dear", f"d{number % 10}", tokens=10))
        waiting.add(of("cheap", "c", tokens=1))
    now, tokens = 0.0, Counter()
    while now < 300:
        _, chosen = waiting.first()
        waiting.admit(chosen, now, seconds=chosen.cost.input_tokens)
        tokens[chosen.owner] += chosen.cost.input_tokens
        now += chosen.cost.input_tokens
    assert 0.8 < tokens["cheap"] / tokens["dear"] < 1.25


def test_turns_are_shared_by_several_models():
    """An owner that had a turn at one model waits after another owner at a second model."""
    turns = Turns()
    one, two = CallQueue(turns=turns), CallQueue(turns=turns)
    for waiting in (one, two):
        waiting.add(of("ada", "a", arrived=0))
        waiting.add(of("bob", "b", arrived=1))
    one.admit(one.first()[1], 2, seconds=0)
    assert two.first()[1].owner == "bob"
