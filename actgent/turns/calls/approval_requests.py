"""Approval requests for tool calls and guards: decide which calls need approval, send requests, apply decisions."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

import attrs

from actgent.approvals import Approval, ApprovalRequest
from actgent.errors import ApprovalRequired
from actgent.journal.record_types import ApprovalRequestRecord, SuspensionRecord
from actgent.messages import ToolCall
from actgent.sessions.pending.approval_ledger import GUARDED, ApprovalLedger
from actgent.sessions.pending.tool_call_approvals import approval_for
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import Tool, ToolContext
from actgent.turns.outcome_dispatcher import Dispatcher
from actgent.turns.turn_event_publisher import Observer

NeedsPerson = Callable[[ToolCall, Tool, ToolContext], bool | ApprovalRequest]
"""Approval rule of an agent: a sync function without side effects.

It returns True or an `ApprovalRequest` with the question if a tool call needs approval, and False otherwise.
"""


@attrs.frozen(kw_only=True, repr=False)
class GuardApproval(FieldRepr):
    """A message or answer that a guard submits for approval."""

    guard: str
    subject: str
    """Id of the message or answer that the guard checked."""
    text: str
    ask: ApprovalRequest
    is_message: bool

    @property
    def call_id(self) -> str:
        """Id in place of a tool call id in the approval of a guard. After a restart, the same question has the same id."""
        return f"{GUARDED}{self.guard}/{self.subject}"


@attrs.frozen(kw_only=True, repr=False)
class ApprovalRequests(FieldRepr):
    """Creates, records and delivers the approval requests of one agent."""

    agent: str
    rule: NeedsPerson | None
    """The agent's approval rule, applied in addition to the approval settings of each tool; None if there is no rule."""
    dispatcher: Dispatcher
    observer: Observer
    now: Callable[[], float]
    """Returns the Unix time in seconds of `Clock.steady`; used for approval deadlines."""

    # --- before calls run --------------------------------------------------------------------

    def rule_for(
        self, tool_context: ToolContext
    ) -> Callable[[ToolCall, Tool], ApprovalRequest | None] | None:
        """Return the agent's approval rule as a function of call and tool; None if the agent has no rule."""
        return None if self.rule is None else partial(approval_question, self.rule, tool_context)

    def apply_decisions(self, ledger: ApprovalLedger, batch: Batch) -> None:
        """Set the results of those calls in a batch that an approver has rejected or answered with `Respond`.

        Mark calls whose approval is still open as waiting. Approved calls are not changed.
        """
        for index, call in enumerate(batch.calls):
            verdict = ledger.verdict(call.id)
            if verdict is not None and verdict.grant is None:
                content, error = verdict.result
                batch.supply_result(index, content=content, error=error)
            elif ledger.open_of(call.id) is not None:
                batch.awaiting_approval = {**batch.awaiting_approval, index: ApprovalRequired("")}

    # --- when all others have run --------------------------------------------------------------

    async def ask(self, turn: Turn, batch: Batch) -> None:
        """Record the approval requests of a batch of tool calls in the journal, and deliver them to handlers and callers.

        The turn can be suspended after this call, unless a handler decided all requests immediately.
        """
        context = turn.session
        asked = self._approvals(turn, batch)
        self._write(context, asked)
        turn.store_results_in_checkpoint(
            batch.finished(), [batch.calls[index].id for index in batch.awaiting_approval]
        )
        context.conversation.open_calls = tuple(batch.source_calls or batch.calls)
        if context.log is not None:
            context.log.add_results(batch.finished())
            await context.log.flush()
        await self._deliver_requests(turn, asked)

    async def ask_about(self, turn: Turn, request: GuardApproval) -> None:
        """Record and deliver the approval request of a guard about a message or an answer.

        The turn can be suspended after this call, unless a handler decided the request immediately.
        """
        context = turn.session
        call = ToolCall(request.guard, {"text": request.text}, id=request.call_id)
        about = "message" if request.is_message else "answer"
        question = request.ask.question or f"May this {about} pass the guard {request.guard!r}?"
        wish = ApprovalRequired(
            question, form=request.ask.form, again=False, timeout=request.ask.timeout, risk=request.ask.risk
        )
        approvals = [self._approval(turn, call, wish)]
        self._write(context, approvals)
        if context.log is not None:
            await context.log.flush()
        await self._deliver_requests(turn, approvals)

    def _write(self, context: SessionContext, approvals: Sequence[Approval]) -> None:
        """Record the approval requests that are not yet in the session's approval ledger."""
        for approval in approvals:
            if approval.id not in context.ledger().open:
                context.record_approval(ApprovalRequestRecord(approval=approval))

    async def _deliver_requests(self, turn: Turn, approvals: Sequence[Approval]) -> None:
        """Deliver recorded approval requests of a turn to observers, handlers, callers and parent sessions.

        Calls of tools that the caller executes are delivered only to the waiting callers. If requests are still undecided after
        that, the turn is recorded as suspended.
        """
        context = turn.session
        ledger = context.ledger()
        for approval in approvals:
            turn.check()
            if approval.for_caller:
                for listener in turn.listeners:
                    listener.receive_delivery(approval)
                continue
            self.observer.ask(context, approval)
            self.dispatcher.failure_logger.warn_unhandled_approval(turn, approval)
            await self.dispatcher.deliver(turn, approval)
            parent = context.parent  # handlers of parent sessions can also decide the request
            while parent is not None:
                await self.dispatcher.dispatch(parent, approval)
                parent = parent.parent
        turn.check()
        if ids := tuple(each.id for each in ledger.undecided):
            context.record_approval(SuspensionRecord(message_id=turn.message.id, ids=ids))
            if context.log is not None:
                context.log.flush_soon()

    def _approvals(self, turn: Turn, batch: Batch) -> list[Approval]:
        """Return the approvals to request for the waiting calls of a batch, in the order of the calls.

        If the same approval was decided before, its decision is used again and the approval is omitted.
        """
        context = turn.session
        ledger = context.ledger()
        asked = []
        for index, question in sorted(batch.awaiting_approval.items(), key=itemgetter(0)):
            call = batch.calls[index]
            approval = ledger.open_of(call.id) or self._approval(turn, call, question)
            if not ledger.reuse_decision(approval.id):
                asked.append(approval)
        return asked

    def _approval(self, turn: Turn, call: ToolCall, question: ApprovalRequired) -> Approval:
        context = turn.session
        return approval_for(
            call,
            question,
            session_id=context.id,
            agent=self.agent,
            owner=context.quota_owner,
            now=self.now(),
            timeout=turn.limits.approval_timeout,
            is_former=context.is_former,
        )


def approval_question(
    rule: NeedsPerson, tool_context: ToolContext, call: ToolCall, tool: Tool
) -> ApprovalRequest | None:
    """Call the program's approval rule for a tool call. Return the question for the approver; None if no approval is needed.

    A rule that returns True gets a default question.
    """
    wish = rule(call, tool, tool_context)
    return (wish if isinstance(wish, ApprovalRequest) else ApprovalRequest()) if wish else None
