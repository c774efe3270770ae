"""`release_and_claim` has the effect of `release` and `poll`."""

import attrs
import pytest
from hypothesis import given, strategies as st

from actgent.actors.inbox import PriorityInbox
from actgent.errors import UsageError
from actgent.messages import Priority


@attrs.define
class Item:
    session_id: str
    priority: Priority = Priority.NORMAL
    deadline: float | None = None
    number: int = 0


def inbox_with(items):
    inbox = PriorityInbox("a", concurrency=1, urgent_concurrency=1)
    for number, (session, priority) in enumerate(items):
        inbox.put_nowait(Item(session, priority, number=number), now=float(number))
    return inbox


def drain(inbox, step, arrivals=()):
    """Process all messages one by one. Return their numbers and the counters after each.

    Each turn begins with the next of `arrivals`: a session and a priority, or None.
    """
    seen = []
    item = inbox.poll()
    while item is not None:
        seen.append((item.number, inbox.statistics()))
        if len(seen) <= len(arrivals) and (arrival := arrivals[len(seen) - 1]) is not None:
            inbox.put_nowait(Item(*arrival, number=100 + len(seen)), now=100.0 + len(seen))
        item = step(inbox, item.session_id)
    return seen, inbox.statistics()


def release_and_poll(inbox, session_id):
    inbox.release(session_id)
    return inbox.poll()


def release_and_claim(inbox, session_id):
    return inbox.release_and_claim(session_id) or inbox.poll()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(Priority)), max_size=12))
def test_the_order_and_the_counters_are_the_same(items):
    """Order and counters agree for several sessions and priorities, including URGENT."""
    assert drain(inbox_with(items), release_and_claim) == drain(inbox_with(items), release_and_poll)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(Priority)), min_size=1, max_size=6),
    st.lists(st.none() | st.tuples(st.sampled_from("ab"), st.sampled_from(Priority)), max_size=8),
)
def test_messages_that_arrive_during_turns_have_the_same_order(items, arrivals):
    """An URGENT message may arrive for the session that is processed, or for another one."""
    claimed = drain(inbox_with(items), release_and_claim, arrivals)
    assert claimed == drain(inbox_with(items), release_and_poll, arrivals)


def test_the_next_message_of_a_single_session_is_claimed():
    """The session stays claimed, so no other caller gets its next message."""
    inbox = inbox_with([("a", Priority.NORMAL)] * 2)
    assert inbox.get_nowait().number == 0
    assert inbox.release_and_claim("a").number == 1
    assert (inbox.statistics().claimed, inbox.poll()) == (1, None)
    assert inbox.release_and_claim("a") is None
    assert inbox.statistics().sessions == 0


def test_an_unclaimed_session_is_an_error():
    """`release_and_claim` of an unclaimed session raises, as `release` does."""
    with pytest.raises(UsageError, match="no message of session 'a' is claimed"):
        PriorityInbox("a").release_and_claim("a")
