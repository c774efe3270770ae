"""The states of a turn: the table in the documentation of `Turn` holds for any order of events."""

import contextvars

import pytest
import trio
from hypothesis import given, strategies as st

from actgent.errors import Interrupted
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Message, Sender, Text, ToolResult
from actgent.protocols.bare_text_protocol import Bare
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.pending.approval_ledger import PendingCalls
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.session_context import TRANSITIONS, SessionContext, Turn, can_resume

STATES = {"running", "exposed", "suspended", "ending", "over"}


def new_turn(*, scope=None):
    """A turn that runs in this scope."""
    session = SessionContext("s", Sender("ada"), SessionConversation(ShortTermMemory().open_view()))
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),))
    return Turn(session, message, CallOptions(protocol=Bare()), 0.0, contextvars.copy_context(), scope=scope)


def do(turn, event):
    """Let an event happen to a turn; True if it was refused."""
    try:
        match event:
            case "expose":
                turn.expose()
            case "stop":
                turn.stop_with(Interrupted("enough"))
            case "revoke":
                turn.revoke_stop()
            case _:
                getattr(turn, event)()
    except Interrupted:
        return True
    return False


def test_every_state_is_reached_and_only_the_end_is_final():
    reached = {to for moves in TRANSITIONS.values() for to in moves.values()}
    left = {state for moves in TRANSITIONS.values() for state in moves}
    assert reached == STATES
    assert left == STATES - {"over"}


async def test_interrupted_turn_waits_for_its_next_task():
    """Its cancel scope belongs to an ended task and would have no effect."""
    turn = new_turn(scope=trio.CancelScope())
    turn.expose()
    turn.mark_failed(Interrupted("the agent failed"))
    assert (turn.is_cut, turn.state, turn.scope.cancel_called) == (True, "ending", False)
    assert do(turn, "expose")


@given(events=st.lists(st.sampled_from(sorted(TRANSITIONS)), max_size=12))
def test_events_lead_to_the_states_of_the_table(events):
    """A stopped turn rejects `expose`, and is not exposed in between."""
    turn, state = new_turn(), "running"
    for event in events:
        was_stopped = turn.stop is not None
        refused = do(turn, event)
        assert refused == (event == "expose" and was_stopped)
        if not refused:
            state = TRANSITIONS[event].get(state, state)
        assert turn.state == state
        assert not (turn.state == "exposed" and turn.stop is not None)


@pytest.mark.parametrize(("is_exposed", "is_cancelled"), [(True, True), (False, False)])
async def test_only_an_exposed_turn_is_cancelled_at_once(is_exposed, is_cancelled):
    """Any other turn ends at its next step, with the error of the first stop."""
    with trio.CancelScope() as scope:
        turn = new_turn(scope=scope)
        if is_exposed:
            turn.expose()
        first = Interrupted("first")
        turn.stop_with(first)
        turn.stop_with(Interrupted("second"))
        await trio.lowlevel.checkpoint_if_cancelled()
    assert scope.cancelled_caught is is_cancelled
    assert turn.stop is first


def test_stopping_a_suspended_turn_resumes_it_to_its_end():
    woken = []
    turn = new_turn()
    turn.suspend()
    turn.on_stop = lambda: woken.append(turn.state)
    turn.stop_with(Interrupted("enough"))
    turn.resume()
    assert (woken, turn.state) == (["ending"], "ending")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("stop", [None, Interrupted("enough")])
@pytest.mark.parametrize("error", [None, ValueError("bad")])
def test_next_step_of_a_turn(waits, stop, error):
    """A suspension precedes an end and a stop, and follows an error. A stop is reported before its error."""
    turn = new_turn()
    turn.pending_approvals = PendingCalls(turn.message, (), None) if waits else None
    turn.stop, turn.error = stop, error
    assert turn.must_suspend == (waits and error is None)
    assert turn.end_error is (stop or error)


def said(text, *, cut=False):
    sender = Sender("ada") if text in ("before", "now") else Sender("a", "assistant")
    return Message(id=text, session_id="s", sender=sender, parts=(Text(text),), cut=cut)


def came(status):
    result = ToolResult(call_id="c", tool_name="pay", status=status)
    return Message(id=status, session_id="s", sender=Sender("pay", "tool"), parts=(result,))


CALLS, RAN, KEPT_OUT = said("calls"), came("success"), came("cancelled")
NOW = [said("before"), CALLS, RAN, said("answer"), said("now")]
"""A turn in which a tool ran, and the message of the next."""


@pytest.mark.parametrize(
    ("behind", "goes_on"),
    [
        ([], True),
        ([said("answer")], True),
        ([said("half an answer", cut=True)], False),
        ([CALLS, RAN], True),
        ([CALLS, came("outcome_unknown")], True),
        ([CALLS, KEPT_OUT], False),
        ([CALLS, RAN, CALLS, KEPT_OUT], True),
    ],
)
def test_failed_turn_resumes_if_a_call_has_run(behind, goes_on):
    """Calls of earlier turns do not count."""
    assert can_resume([*NOW, *behind], "now") is goes_on


def test_empty_session_has_no_turn_to_resume():
    assert not can_resume([], "now")
