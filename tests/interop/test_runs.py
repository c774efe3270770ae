"""The reader of one run: events for orders of records and partial text that a fast scripted model does not produce."""

import pytest

from actgent import Approval, Approve, Text, ToolCall, ToolResult
from actgent.interop.run_events import (
    AnswerDone,
    RunEnded,
    RunReader,
    RunStarted,
    RunSuspended,
    RunToolDone,
    TextDelta,
    TextDiscarded,
)
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    SessionClosedRecord,
    SuspensionRecord,
)
from actgent.messages import Message, Sender
from actgent.sessions.subscriptions import FollowedRecord, PartialText


def said(reply_id, *parts, sender=("clerk", "assistant"), stop="stop"):
    message = Message(id=reply_id, session_id="s1", sender=Sender(*sender), parts=parts)
    return AgentMessageRecord(message=message, stop=stop)


def read(*items, message_id="m1", waiting=(), is_whole=False):
    """Return the reader and the events for these items.

    An item is a record of the turn, or a tuple of a reply id, a position and partial text.
    """
    reader, events = RunReader(message_id, lambda: waiting, is_whole=is_whole), []
    for number, item in enumerate(items, 1):
        if isinstance(item, tuple):
            reply_id, begin, text = item
            events += reader.read(PartialText(turn="m1", reply_id=reply_id, begin=begin, text=text))
        else:
            events += reader.read(FollowedRecord(number=number, at=None, turn="m1", record=item))
    return reader, events


BEGIN = MessageAppendedRecord(message_id="m1")


def test_result_that_is_recorded_twice_is_emitted_once():
    call = ToolCall("add", {}, id="c1")
    result = ToolResult(call_id="c1", tool_name="add", content="5")
    answer = said("a1", call, stop="tool_calls")
    together = said("t1", result, sender=("tools", "tool"))
    _, events = read(BEGIN, answer, CallFinishedRecord(result=result), together)
    assert [each for each in events if isinstance(each, RunToolDone)] == [RunToolDone(result=result)]


def test_text_of_a_repeated_attempt_replaces_the_text_before():
    _, events = read(BEGIN, ("a1", 0, "wro"), ("a1", 3, "ng"), ("a1", 0, "right"), said("a1", Text("right")))
    assert events[1:] == [
        TextDelta(reply_id="a1", text="wro"),
        TextDelta(reply_id="a1", text="ng"),
        TextDiscarded(reply_id="a1"),
        TextDelta(reply_id="a1", text="right"),
        AnswerDone(reply_id="a1", text="right", calls=(), stop="stop", usage=events[-1].usage),
    ]


@pytest.mark.parametrize("shown", ["", "go", "good", "bad"])
def test_recorded_answer_completes_the_text_that_was_shown(shown):
    growing = [("a1", 0, shown)] if shown else []
    _, events = read(BEGIN, *growing, said("a1", Text("good")))
    text = ""
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, TextDiscarded):
            text = ""
    assert text == "good"
    assert any(isinstance(each, TextDiscarded) for each in events) == (shown == "bad")


def test_replaced_reply_discards_the_answer_of_the_model():
    outcome = OutcomeRecord(id="r1", kind="reply", text="allowed")
    _, events = read(BEGIN, said("a1", Text("secret")), outcome, MessageEndRecord(message_id="m1"))
    kinds = [type(each) for each in events]
    assert kinds == [RunStarted, TextDelta, AnswerDone, TextDiscarded, TextDelta, AnswerDone, RunEnded]
    assert events[4].text == "allowed"


def test_reply_with_the_text_of_the_answer_is_not_emitted_again():
    outcome = OutcomeRecord(id="r1", kind="reply", text="hello")
    _, events = read(BEGIN, said("a1", Text("hello")), outcome)
    assert [each.text for each in events if isinstance(each, TextDelta)] == ["hello"]


def test_records_of_other_turns_are_ignored():
    other = FollowedRecord(number=9, at=None, turn="m2", record=said("a2", Text("other")))
    reader, events = read(BEGIN)
    assert reader.read(other) == []
    assert reader.read(PartialText(turn="m2", reply_id="a2", text="other")) == []
    assert [type(each) for each in events] == [RunStarted]


def approval(call_id):
    known = {"agent": "clerk", "tool_name": "pay", "arguments": {}, "created_at": 0.0}
    return Approval(id=f"{call_id}.s1", session_id="s1", call_id=call_id, **known)


def test_whole_run_continues_after_ended_suspensions():
    """A client that reconnects reads on: the turn waited for `c1`, resumed, and now waits for `c2`."""
    first, second = approval("c1"), approval("c2")
    records = (
        BEGIN,
        ApprovalRequestRecord(approval=first),
        SuspensionRecord(message_id="m1", ids=(first.id,)),
        ApprovalDecisionRecord(approval_id=first.id, decision=Approve(), at=1.0),
        ApprovalRequestRecord(approval=second),
        SuspensionRecord(message_id="m1", ids=(second.id,)),
    )
    _, events = read(*records, waiting=(second,), is_whole=True)
    assert events[-1] == RunSuspended(approvals=(second,))
    assert len([each for each in events if isinstance(each, RunSuspended)]) == 1
    _, events = read(*records, waiting=(second,))
    assert events[-1] == RunSuspended(approvals=(first,))


def test_closed_session_ends_the_run():
    reader, events = read(BEGIN, SessionClosedRecord())
    assert reader.is_over
    assert (events[-1].failed, events[-1].reason) == ("stopped", "the session was closed")
    assert reader.read(FollowedRecord(number=9, at=None, turn="m1", record=BEGIN)) == []
