"""`ApprovalRequests`: which calls of a batch need a person, how people are asked, and what their decisions do."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

import attrs

from actgent.approvals import Approval, Ask
from actgent.errors import AskPerson
from actgent.journal.records import PersonAsked, SuspendedRecord
from actgent.messages import ToolCall
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.approval_calls import approval_for, question_of
from actgent.sessions.waiting.approval_ledger import GUARDED, ApprovalLedger
from actgent.tools.base import Tool, ToolContext
from actgent.tools.execution import Batch
from actgent.turns.dispatcher import Dispatcher
from actgent.turns.observer import Observer

NeedsPerson = Callable[[ToolCall, Tool, ToolContext], bool | Ask]
"""A rule: True if a person has to approve a call; an `Ask` words the question. Must be sync and free of side effects."""


@attrs.frozen(kw_only=True)
class Guarding:
    """What a guard asks people about."""

    guard: str
    subject: str
    """The id of the message or answer."""
    text: str
    ask: Ask
    is_message: bool

    @property
    def call_id(self) -> str:
        """Stands for it where an approval names a call; the same after a restart."""
        return f"{GUARDED}{self.guard}/{self.subject}"


@attrs.frozen(kw_only=True)
class ApprovalRequests:
    """Asks people about the calls of one agent."""

    agent: str
    rule: NeedsPerson | None
    """Besides what tools say themselves."""
    dispatcher: Dispatcher
    observer: Observer
    now: Callable[[], float]
    """Unix time in seconds, by `Clock.steady`: what a person may take is a delay."""

    # --- before calls run --------------------------------------------------------------------

    def rule_for(self, told: ToolContext) -> Callable[[ToolCall, Tool], Ask | None] | None:
        """Return the agent's rule in the form that a batch asks, if there is one."""
        return None if self.rule is None else partial(wish_of, self.rule, told)

    def apply_decisions(self, ledger: ApprovalLedger, batch: Batch) -> None:
        """Give calls the result that a person decided, and mark those that still wait for a decision."""
        for place, call in enumerate(batch.calls):
            verdict = ledger.verdict(call.id)
            if verdict is not None and verdict.grant is None:
                content, error = verdict.result
                batch.answer(place, content=content, error=error)
            elif (approval := ledger.open_of(call.id)) is not None:
                batch.asked = {**batch.asked, place: question_of(approval)}

    # --- when all others have run --------------------------------------------------------------

    async def ask(self, context: SessionContext, turn: Turn, batch: Batch) -> None:
        """Write what people are asked, then ask them; from then on the turn may wait, unless they decide at once."""
        asked = self._approvals(context, turn, batch)
        self._write(context, asked)
        turn.keep_results(batch.finished(), [batch.calls[place].id for place in batch.asked])
        context.conversation.open_calls = tuple(batch.calls)
        if context.log is not None:
            context.log.keep(batch.finished())
            await context.log.flush()
        await self._tell(context, turn, asked)

    async def ask_about(self, context: SessionContext, turn: Turn, asked: Guarding) -> None:
        """Ask people about what a guard wants them to see; from then on the turn waits, unless they decide at once."""
        call = ToolCall(asked.guard, {"text": asked.text}, id=asked.call_id)
        about = "message" if asked.is_message else "answer"
        question = asked.ask.question or f"May this {about} pass the guard {asked.guard!r}?"
        wish = AskPerson(
            question, form=asked.ask.form, again=False, timeout=asked.ask.timeout, risk=asked.ask.risk
        )
        approvals = [self._approval(context, turn, call, wish)]
        self._write(context, approvals)
        if context.log is not None:
            await context.log.flush()
        await self._tell(context, turn, approvals)

    def _write(self, context: SessionContext, asked: Sequence[Approval]) -> None:
        for approval in asked:
            if approval.id not in context.ledger().open:
                context.record_approval(PersonAsked(approval=approval))

    async def _tell(self, context: SessionContext, turn: Turn, asked: Sequence[Approval]) -> None:
        """Let everyone hear what people are asked, once it is written."""
        ledger = context.ledger()
        for approval in asked:
            turn.check()
            self.observer.ask(context, approval)
            self.dispatcher.reports.approval_unheard(context, turn, approval)
            await self.dispatcher.deliver(context, turn, approval)
            await self._tell_parents(context, approval)
        turn.check()
        if ids := tuple(each.id for each in ledger.undecided):
            context.record_approval(SuspendedRecord(message_id=turn.message.id, ids=ids))
            if context.log is not None:
                context.log.flush_soon()

    async def _tell_parents(self, context: SessionContext, approval: Approval) -> None:
        """Tell the sessions above, whose users can decide, too."""
        parent = context.parent
        while parent is not None:
            await self.dispatcher.dispatch(parent, approval)
            parent = parent.parent

    def _approvals(self, context: SessionContext, turn: Turn, batch: Batch) -> list[Approval]:
        """Make the approvals that calls wait for, in their order; a question that was answered already is not asked."""
        ledger = context.ledger()
        asked = []
        for place, question in sorted(batch.asked.items(), key=itemgetter(0)):
            call = batch.calls[place]
            approval = ledger.open_of(call.id) or self._approval(context, turn, call, question)
            if not ledger.reuse_decision(approval.id):
                asked.append(approval)
        return asked

    def _approval(self, context: SessionContext, turn: Turn, call: ToolCall, question: AskPerson) -> Approval:
        return approval_for(
            call,
            question,
            session_id=context.id,
            agent=self.agent,
            owner=context.works_for,
            now=self.now(),
            timeout=turn.limits.approval_timeout,
            is_former=context.is_former,
        )


def wish_of(rule: NeedsPerson, told: ToolContext, call: ToolCall, tool: Tool) -> Ask | None:
    """Return the question of a rule about a call; None if nobody has to approve it."""
    wish = rule(call, tool, told)
    return (wish if isinstance(wish, Ask) else Ask()) if wish else None
