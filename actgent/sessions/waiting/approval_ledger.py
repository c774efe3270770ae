"""`ApprovalLedger`, the approvals of a session: the calls that wait for people, and the decisions about them.

An approval is `open` until the journal has a decision. While a decision is being written, the approval is still listed
as open, and it is not `undecided` any more: a second decision waits for the first one to be written or to fail. When no
approval of the turn is open, the turn resumes, and each decision lets its call run or is its result.
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
    word_for,
)
from actgent.control.durable_timer import DurableTimer
from actgent.errors import AlreadyDecided, ApprovalMismatch, ApprovalNotFound, NotSuspended, Suspended
from actgent.journal.records import Decided, Ended, PersonAsked, Record, Resumed, Said, SuspendedRecord
from actgent.messages import Message, ToolCall

REMEMBERED = 1000
"""The number of decisions a session remembers, the newest: who decides again is told."""

GUARDED = "guard/"
"""What the call id of an approval begins with that is about a message or an answer, and no call."""

DENIED = "User denied access to tool execution"


@attrs.frozen
class PendingCalls:
    """The calls of an answer of which some wait for people: what a turn needs to go on with them."""

    message: Message
    """Which the answer with the calls was given to."""
    calls: tuple[ToolCall, ...]
    stage: str | None


@attrs.frozen
class Verdict:
    """The decision about a call that has no result yet."""

    approval: Approval
    decision: Decision

    @property
    def grant(self) -> Grant | None:
        """The decision that lets the call run; None if the decision is its result."""
        decision = self.decision
        if isinstance(decision, Edit):
            return decision
        if not isinstance(decision, Approve) or not self.approval.again:
            return None
        if decision.content is None:
            return decision
        return FormAnswer(decision.reason, content=decision.content, question=self.approval.question)

    @property
    def result(self) -> tuple[str, str | None]:
        """Content and error of a call that does not run, as the model reads them."""
        match self.decision:
            case Approve(reason):
                said = {"approved": True, "reason": reason} if reason else {"approved": True}
                return json.dumps(said, ensure_ascii=False), None
            case Respond(content):
                return str(content), None
            case Reject(reason):
                return "", _denial(self.approval.tool_name, reason)
            case Expire():
                return "", f"{DENIED}: nobody approved {self.approval.tool_name!r} in time, so it did not run"
        return "", f"{DENIED}: it was withdrawn"


def _denial(tool_name: str, reason: str) -> str:
    because = f", because: {reason.strip().rstrip('.')}" if reason.strip() else ""
    return (
        f"{DENIED}. IMPORTANT: The user has REJECTED this call of {tool_name!r}{because}. "
        "It did not run; do not try to reach the same in another way."
    )


@attrs.define(eq=False)
class ApprovalLedger:
    """The approvals of one session, kept up to date by the records that its journal gets."""

    open: dict[str, Approval] = attrs.field(factory=dict)
    """Approvals without a decision in the journal, in the order in which they were asked."""
    is_suspended: bool = False
    """True if the journal has the turn as suspended."""
    _writing: dict[str, trio.Event] = attrs.field(factory=dict)
    """By the ids of open approvals whose decision is being written; set when it is written, or cannot be."""
    _verdicts: dict[str, Verdict] = attrs.field(factory=dict)
    """By the ids of calls that have no result yet."""
    _decisions: dict[str, Decision] = attrs.field(factory=dict)

    def apply(self, record: PersonAsked | Decided | SuspendedRecord | Resumed) -> None:
        """Apply a record that was journaled, now or before a restart."""
        match record:
            case PersonAsked(approval=approval):
                self.open[approval.id] = approval
                self._verdicts.pop(approval.call_id, None)  # it asks again
            case Decided(approval_id=known, decision=decision):
                decided = self.open.pop(known, None) or self._decided(known)
                self._end_writing(known)
                if decided is not None:  # or it was withdrawn meanwhile
                    self._verdicts[decided.call_id] = Verdict(decided, decision)
                    self._remember(known, decision)
            case SuspendedRecord() | Resumed():
                self.is_suspended = isinstance(record, SuspendedRecord)

    def _decided(self, approval_id: str) -> Approval | None:
        """An approval whose decision was written although its writing failed; what was decided then counts."""
        each = (verdict.approval for verdict in self._verdicts.values())
        return next((approval for approval in each if approval.id == approval_id), None)

    def close(self, call_ids: Iterable[str]) -> None:
        """Withdraw the approvals that are still open for calls which have their results by now."""
        closed = set(call_ids)
        for call_id in closed:
            self._verdicts.pop(call_id, None)
        for approval in [each for each in self.open.values() if each.call_id in closed]:
            del self.open[approval.id]
            self._remember(approval.id, Withdraw())
            self._end_writing(approval.id)

    def close_guarded(self) -> bool:
        """Withdraw what guards asked, since the turn is over that it was about; False if there is nothing."""
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
    def is_settled(self) -> bool:
        """True if nothing is open, or decided and not done."""
        return not (self.open or self._verdicts or self.is_suspended)

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """The decisions that are remembered, by the ids of their approvals, oldest first."""
        return self._decisions

    def know_decisions(self, decisions: Mapping[str, Decision]) -> None:
        """Remember decisions from before a snapshot."""
        self._decisions = dict(decisions)

    # --- for turns -----------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """True if a call waits for a decision that the journal has."""
        return bool(self.open)

    @property
    def undecided(self) -> tuple[Approval, ...]:
        """The open approvals for which no decision is being written."""
        if not self._writing:
            return tuple(self.open.values())
        return tuple(approval for known, approval in self.open.items() if known not in self._writing)

    @property
    def is_deciding(self) -> bool:
        """True if the turn waits for nothing but decisions that are being written."""
        return bool(self._writing) and not self.undecided

    def suspended(self) -> Suspended:
        """Make the error for whoever does not wait for people."""
        return Suspended(tuple(self.open), [approval.tool_name for approval in self.open.values()])

    @property
    def deadline(self) -> float:
        """Unix time in seconds at which the first of them expires."""
        return min((approval.deadline for approval in self.undecided), default=math.inf)

    def expired(self, now: float) -> list[Approval]:
        """Return the undecided approvals whose deadline is over."""
        return [approval for approval in self.undecided if approval.deadline <= now]

    def open_of(self, call_id: str) -> Approval | None:
        """Return the approval that a call waits for, if there is one."""
        return next((each for each in self.open.values() if each.call_id == call_id), None)

    def verdict(self, call_id: str) -> Verdict | None:
        """Return the decision about a call that has no result yet."""
        return self._verdicts.get(call_id)

    def reuse_decision(self, approval_id: str) -> bool:
        """Make a decision the result of its call, if the call asked the same question again; False if there is none."""
        for call_id, verdict in self._verdicts.items():
            if verdict.approval.id == approval_id:
                final = attrs.evolve(verdict.approval, again=False)
                self._verdicts[call_id] = Verdict(final, verdict.decision)
                return True
        return False

    # --- for those who decide ---------------------------------------------------------------------

    def knows(self, approval_id: str) -> bool:
        """Return True if an approval of this id was ever open here, as far as that is remembered."""
        return approval_id in self.open or approval_id in self._decisions

    def find(self, asked: Approval | str, session_id: str) -> Approval:
        """Return the open approval that somebody wants to decide.

        Raises:
            NotSuspended: nothing waits in this session, and nothing of this id ever did.
            ApprovalNotFound: something else waits.
            ApprovalMismatch: it is altered, so that it stands for something else.
            AlreadyDecided: somebody was faster, or it is withdrawn or expired.
        """
        known = asked if isinstance(asked, str) else asked.id
        if (decision := self._decisions.get(known)) is not None:
            raise AlreadyDecided(known, decision, word_for(decision))
        approval = self.open.get(known)
        if approval is None:
            raise (ApprovalNotFound(known, session_id) if self.has_open else NotSuspended(session_id))
        if not isinstance(asked, Approval) or asked == approval:  # redacted in the journal, it is not genuine
            return approval
        if not (asked.is_genuine and asked.call_id == approval.call_id):
            raise ApprovalMismatch(known)
        return approval

    async def wait_written(self, approval_id: str) -> None:
        """Wait until no decision about an approval is being written."""
        while (writing := self._writing.get(approval_id)) is not None:
            await writing.wait()

    def begin(self, approval: Approval) -> None:
        """Begin to write a decision: other decisions about this approval wait for it."""
        self._writing[approval.id] = trio.Event()

    def undo(self, approval: Approval) -> None:
        """Let others decide an approval, because the journal did not take the decision."""
        self._end_writing(approval.id)

    def _end_writing(self, approval_id: str) -> None:
        if self._writing and (writing := self._writing.pop(approval_id, None)) is not None:
            writing.set()

    def check_made(self, approval: Approval) -> None:
        """Check that a decision came in time.

        Raises:
            AlreadyDecided: the call was withdrawn while the decision was written.
        """
        if isinstance(decision := self._decisions.get(approval.id), Withdraw):
            raise AlreadyDecided(approval.id, decision, word_for(decision))


APPROVAL_TIMER = "approvals"
"""The id of a session's `ApprovalDeadline`."""


@attrs.frozen(eq=False)
class ApprovalDeadline(DurableTimer):
    """When the first open approval of a session expires."""

    id: str = attrs.field(default=APPROVAL_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


def restore_ledger(records: Iterable[Record]) -> ApprovalLedger:
    """Make the ledger of a session from all its records."""
    ledger = ApprovalLedger()
    for record in records:
        match record:
            case PersonAsked() | Decided() | SuspendedRecord() | Resumed():
                ledger.apply(record)
            case Said(message=message):
                ledger.close(result.call_id for result in message.tool_results)
            case Ended():
                ledger.close_guarded()
    return ledger
