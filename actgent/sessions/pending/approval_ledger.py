"""`ApprovalLedger`: the open approvals of a session, and the decisions about them.

An approval is open until its decision is in the journal. While a decision is being written, the approval is open
but not `undecided`: a second decision waits until the first write succeeds or fails. When no approval of the turn
is open, the turn resumes. Then an approved tool call runs, and a rejection becomes the result of its call.
"""

import json
import math
from collections.abc import Iterable, Mapping

import attrs
import trio

from actgent.approvals import (
    Approval,
    Approve,
    Decision,
    Edit,
    Expire,
    FormAnswer,
    Grant,
    Reject,
    Respond,
    Withdraw,
    decision_name,
)
from actgent.errors import ApprovalAlreadyDecided, ApprovalMismatch, ApprovalNotFound, NotSuspended, Suspended
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageEndRecord,
    Record,
    ResumptionRecord,
    SuspensionRecord,
)
from actgent.limits_and_schedules.durable_timer import DurableTimer
from actgent.messages import Message, ToolCall
from actgent.support.attrs_class_repr import FieldRepr

REMEMBERED = 1000
"""Maximum number of decisions that a session stores, to detect a second decision about an approval."""

GUARDED = "guard/"
"""Prefix of the call id in an approval that a guard requested. Such an approval is about a message, not about a tool
call.
"""

DENIED = "User denied access to tool execution"
"""Error text for the model if an approver rejected a call without a reason."""


@attrs.frozen(repr=False)
class PendingCalls(FieldRepr):
    """The tool calls of one answer, some of which wait for approvals."""

    message: Message
    """Message that the waiting turn answers."""
    calls: tuple[ToolCall, ...]
    """All tool calls of the answer."""
    stage: str | None
    """Name of the protocol's stage that requested the calls; None if the protocol has no stages."""


@attrs.frozen(repr=False)
class PendingDecision(FieldRepr):
    """Decision of an approval whose tool call has no result yet."""

    approval: Approval
    """The approval that the decision answers."""
    decision: Decision
    """The decision: approve, edit, reject or respond, or that the approval has expired."""

    @property
    def grant(self) -> Grant | None:
        """The decision, if it allows the tool call to run; None if it supplies the result of the call or rejects the call."""
        decision = self.decision
        if isinstance(decision, Edit):
            return decision
        if not isinstance(decision, Approve) or not self.approval.again:
            return None
        if decision.content is None:
            return decision
        return FormAnswer(
            decision.reason,
            content=decision.content,
            question=self.approval.question,
            state=self.approval.state,
        )

    @property
    def result(self) -> tuple[str, str | None]:
        """Content and error text that the model receives as the result of a tool call that does not run.

        The error text may be None.
        """
        match self.decision:
            case Approve(reason):
                answer = {"approved": True, "reason": reason} if reason else {"approved": True}
                return json.dumps(answer, ensure_ascii=False), None
            case Respond(content):
                return str(content), None
            case Reject(reason):
                return "", _denial(self.approval, reason)
            case Expire() if self.approval.for_caller:
                return "", "the caller sent no result in time"
            case Expire():
                return (
                    "",
                    f"{DENIED}: {self.approval.tool_name!r} was not approved in time, so it did not run",
                )
        return "", f"{DENIED}: it was withdrawn"


def _denial(approval: Approval, reason: str) -> str:
    if approval.for_caller:
        return f"the caller did not run it: {reason}" if reason else "the caller did not run it"
    because = f", because: {reason.strip().rstrip('.')}" if reason.strip() else ""
    return (
        f"{DENIED}. IMPORTANT: The user has REJECTED this call of {approval.tool_name!r}{because}. "
        "It did not run; do not try to reach the same in another way."
    )


@attrs.define(eq=False, repr=False)
class ApprovalLedger(FieldRepr):
    """Approvals of one session, built from the approval records in its journal."""

    open: dict[str, Approval] = attrs.field(factory=dict)
    """Approvals without a recorded decision by approval id, oldest first."""
    is_suspended: bool = False
    """True if the journal shows the session's turn as suspended."""
    _writing: dict[str, trio.Event] = attrs.field(factory=dict)
    """Events for decisions that are being written to the journal, by approval id. An event is set when the write ends."""
    _verdicts: dict[str, PendingDecision] = attrs.field(factory=dict)
    """Decisions about tool calls that have no result yet, by call id."""
    _decisions: dict[str, Decision] = attrs.field(factory=dict)
    """Newest recorded decisions by approval id, oldest first."""

    def apply(
        self, record: ApprovalRequestRecord | ApprovalDecisionRecord | SuspensionRecord | ResumptionRecord
    ) -> None:
        """Update the open approvals and decisions from one journal record.

        A decision about a withdrawn approval is ignored. A new approval request for a call replaces the earlier decision about the
        call.
        """
        match record:
            case ApprovalRequestRecord(approval=approval):
                self.open[approval.id] = approval
                self._verdicts.pop(approval.call_id, None)  # the call requests a new approval
            case ApprovalDecisionRecord(approval_id=approval_id, decision=decision):
                decided = self.open.pop(approval_id, None) or self._find_decided(approval_id)
                self._end_writing(approval_id)
                if decided is not None:  # None if the approval was withdrawn
                    self._verdicts[decided.call_id] = PendingDecision(decided, decision)
                    self._remember(approval_id, decision)
            case SuspensionRecord() | ResumptionRecord():
                self.is_suspended = isinstance(record, SuspensionRecord)

    def _find_decided(self, approval_id: str) -> Approval | None:
        """Return the approval with this id if it is decided and its call has no result yet; None otherwise.

        A decision can be in the journal although its write has reported a failure.
        """
        each = (verdict.approval for verdict in self._verdicts.values())
        return next((approval for approval in each if approval.id == approval_id), None)

    def close(self, call_ids: Iterable[str]) -> None:
        """Remove the decisions about the tool calls with these ids, and withdraw their open approvals: the calls have results."""
        closed = set(call_ids)
        for call_id in closed:
            self._verdicts.pop(call_id, None)
        for approval in [each for each in self.open.values() if each.call_id in closed]:
            del self.open[approval.id]
            self._remember(approval.id, Withdraw())
            self._end_writing(approval.id)

    def withdraw_guard_approvals(self) -> bool:
        """Withdraw the open approvals of guards, and remove their decisions, because the turn has ended.

        Approvals of tool calls are not changed. Return True if an approval or a decision of a guard existed.
        """
        asked = {each.call_id for each in self.open.values()} | self._verdicts.keys()
        guarded = [call_id for call_id in asked if call_id.startswith(GUARDED)]
        self.close(guarded)
        return bool(guarded)

    def _remember(self, approval_id: str, decision: Decision) -> None:
        self._decisions[approval_id] = decision
        if len(self._decisions) > REMEMBERED:
            del self._decisions[next(iter(self._decisions))]

    # --- for snapshots -------------------------------------------------------

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """Newest recorded decisions by approval id, oldest first."""
        return self._decisions

    def restore_decisions(self, decisions: Mapping[str, Decision]) -> None:
        """Set the newest decisions, as read from a snapshot of the session."""
        self._decisions = dict(decisions)

    # --- for turns -----------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """True if an approval has no recorded decision."""
        return bool(self.open)

    @property
    def undecided(self) -> tuple[Approval, ...]:
        """Open approvals for which no decision is being written."""
        if not self._writing:
            return tuple(self.open.values())
        return tuple(
            approval for approval_id, approval in self.open.items() if approval_id not in self._writing
        )

    @property
    def is_deciding(self) -> bool:
        """True if approvals are open and the decisions about all of them are being written."""
        return bool(self._writing) and not self.undecided

    def suspended(self) -> Suspended:
        """Return the error `Suspended` with the open approvals, for callers that do not wait for approvals."""
        return Suspended(tuple(self.open), [approval.tool_name for approval in self.open.values()])

    @property
    def deadline(self) -> float:
        """Earliest Unix time in seconds at which an undecided approval expires; infinite if none expires."""
        return min((approval.deadline for approval in self.undecided), default=math.inf)

    def expired(self, now: float) -> list[Approval]:
        """Return the undecided approvals that expire at or before the Unix time `now` in seconds."""
        return [approval for approval in self.undecided if approval.deadline <= now]

    def open_of(self, call_id: str) -> Approval | None:
        """Return the open approval of the tool call with this id; None if the call has no open approval."""
        return next((each for each in self.open.values() if each.call_id == call_id), None)

    def verdict(self, call_id: str) -> PendingDecision | None:
        """Return the decision about a tool call that has no result yet; None if the call has no such decision."""
        return self._verdicts.get(call_id)

    def reuse_decision(self, approval_id: str) -> bool:
        """Use an existing decision again for a tool call that requests the same approval again.

        Return False if no decision about the approval exists. Then an approver must decide.
        """
        for call_id, verdict in self._verdicts.items():
            if verdict.approval.id == approval_id:
                final = attrs.evolve(verdict.approval, again=False)
                self._verdicts[call_id] = PendingDecision(final, verdict.decision)
                return True
        return False

    # --- decisions ---------------------------------------------------------------------

    def knows(self, approval_id: str) -> bool:
        """Return True if an approval with this id is open, or if its decision is among the newest decisions."""
        return approval_id in self.open or approval_id in self._decisions

    def find(self, requested: Approval | str, session_id: str) -> Approval:
        """Return the open approval that an approver wants to decide. `requested` is the approval or its id.

        `session_id` is the id of the session for the errors.

        Raises:
            NotSuspended: The session has no open approval, and the id is unknown.
            ApprovalNotFound: The session has open approvals, but none with this id.
            ApprovalMismatch: The approval object was altered.
            ApprovalAlreadyDecided: The approval was decided, withdrawn or expired.
        """
        approval_id = requested if isinstance(requested, str) else requested.id
        if (decision := self._decisions.get(approval_id)) is not None:
            raise ApprovalAlreadyDecided(approval_id, decision, decision_name(decision))
        approval = self.open.get(approval_id)
        if approval is None:
            raise (ApprovalNotFound(approval_id, session_id) if self.has_open else NotSuspended(session_id))
        if (
            not isinstance(requested, Approval) or requested == approval
        ):  # an approval redacted in the journal is not genuine
            return approval
        if not (requested.is_genuine and requested.call_id == approval.call_id):
            raise ApprovalMismatch(approval_id)
        return approval

    async def wait_written(self, approval_id: str) -> None:
        """Wait until no decision about this approval is being written to the journal."""
        while (writing := self._writing.get(approval_id)) is not None:
            await writing.wait()

    def begin(self, approval: Approval) -> None:
        """Mark an approval as being decided, while its decision is written to the journal.

        Other decisions about the approval wait for the end of this write.
        """
        self._writing[approval.id] = trio.Event()

    def undo(self, approval: Approval) -> None:
        """Remove the mark of `begin` after the write has failed, so that the approval can be decided again."""
        self._end_writing(approval.id)

    def _end_writing(self, approval_id: str) -> None:
        if self._writing and (writing := self._writing.pop(approval_id, None)) is not None:
            writing.set()

    def check_not_withdrawn(self, approval: Approval) -> None:
        """Raise if the approval was withdrawn while its decision was written.

        Raises:
            ApprovalAlreadyDecided: The approval was withdrawn in the meantime.
        """
        if isinstance(decision := self._decisions.get(approval.id), Withdraw):
            raise ApprovalAlreadyDecided(approval.id, decision, decision_name(decision))


APPROVAL_TIMER = "approvals"
"""Timer id of `ApprovalDeadline`, in each session."""


@attrs.frozen(eq=False, repr=False)
class ApprovalDeadline(DurableTimer):
    """Durable timer that fires when the next open approval of a session expires."""

    id: str = attrs.field(default=APPROVAL_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


def restore_ledger(records: Iterable[Record]) -> ApprovalLedger:
    """Rebuild the approvals and decisions of a session from all its records."""
    ledger = ApprovalLedger()
    for record in records:
        match record:
            case ApprovalRequestRecord() | ApprovalDecisionRecord() | SuspensionRecord() | ResumptionRecord():
                ledger.apply(record)
            case AgentMessageRecord(message=message):
                ledger.close(result.call_id for result in message.tool_results)
            case MessageEndRecord():
                ledger.withdraw_guard_approvals()
    return ledger
