"""Copies of sessions under new ids."""

from actgent import Reject, Sender
from actgent.approvals import Approval, approval_id
from actgent.journal.record_types import (
    AccountKey,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    ResumptionRecord,
    ScheduleRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    SuspensionRecord,
)
from actgent.journal.session_export_and_fork import ExportedSession, copy_with_new_id, with_new_ids
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message


def message(session_id):
    return Message(session_id=session_id, sender=Sender("ada"), parts="hello")


def test_copied_children_reference_copied_parents():
    """Parents that are copied with their children get new ids in the references; other references stay."""

    def session(session_id, parent_id):
        opened = SessionCreatedRecord(owner=Sender("ada"), parent_id=parent_id, created_at=1.0)
        return ExportedSession(
            session_id,
            "a",
            (opened, MessageAcceptedRecord(message=message(session_id)), SessionClosedRecord()),
        )

    one, two, three = with_new_ids([session("1", None), session("2", "1"), session("3", "elsewhere")])
    assert len({"1", "2", "3", one.session_id, two.session_id, three.session_id}) == 6
    assert [each.records[0].parent_id for each in (one, two, three)] == [None, one.session_id, "elsewhere"]
    assert [each.records[1].message.session_id for each in (one, two)] == [one.session_id, two.session_id]
    assert one.records[2] == SessionClosedRecord()


def test_copied_sessions_keep_their_budget_reference():
    """The budget of a copied session is found under its new id in sessions, queued messages and schedules."""
    keys = (AccountKey(session_id="p", agent="a"), AccountKey(session_id="else", turn="m", agent="b"))
    opened = SessionCreatedRecord(owner=Sender("ada"), within=keys, created_at=1.0)
    scheduled = ScheduleRecord(schedule_id="1", description="look", at=2.0, within=keys)
    session = ExportedSession(
        "s", "a", (opened, MessageAcceptedRecord(message=message("s"), within=keys), scheduled)
    )
    copy = copy_with_new_id(session, {SessionKey("a", "s"): "t", SessionKey("a", "p"): "q"})
    for record in copy.records:
        assert [key.session_id for key in record.within] == ["q", "else"]
        assert [key.turn for key in record.within] == ["", "m"]


def test_approvals_can_be_decided_in_the_copy():
    """A pending approval can be decided in the copy by its new id, and by no other id."""
    old = approval_id("s", "c1", "pay", {"sum": 3}, "Pay?")
    approval = Approval(
        id=old,
        session_id="s",
        agent="a",
        call_id="c1",
        tool_name="pay",
        arguments={"sum": 3},
        question="Pay?",
    )
    records = (
        AgentMessageRecord(message=message("s")),
        ApprovalRequestRecord(approval=approval),
        SuspensionRecord(message_id="m", ids=(old, "timer")),
        ApprovalDecisionRecord(approval_id=old, decision=Reject("no"), at=2.0),
        ResumptionRecord(ids=(old,)),
    )
    copy = copy_with_new_id(ExportedSession("s", "a", records), {SessionKey("a", "s"): "t"})
    said, asked, suspended, decided, resumed = copy.records
    new = asked.approval.id
    assert said.message.session_id == asked.approval.session_id == "t"
    assert asked.approval.is_genuine
    assert new != old
    assert suspended.ids == (new, "timer")
    assert decided.approval_id == new
    assert resumed.ids == (new,)
