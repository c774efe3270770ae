"""Run the tool calls of a turn, in the order of the answer, each with exactly one result in the record."""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from actgent.control.answer_limits import excess_of
from actgent.control.budget import Budget
from actgent.control.loop_detection import MIN_CALLS, find_call_cycle, is_same, most_calls
from actgent.errors import LimitReached, UnusableResult
from actgent.errors.printable import quoted
from actgent.journal.records import Said, Started, make_said
from actgent.messages import CallProgress, Message, ToolCall, Usage
from actgent.sessions.context import SessionContext
from actgent.sessions.restore import TOOLS
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.approval_calls import edited, grants_of
from actgent.sessions.waiting.approval_ledger import PendingCalls
from actgent.sessions.waiting.turn_checkpoint import TurnCheckpoint
from actgent.support.quick_init import maker
from actgent.tools.base import Tool, ToolContext, make_context
from actgent.tools.execution import NO_GRANTS, Batch
from actgent.tools.outputs.kept import can_read_results, keep_result
from actgent.tools.outputs.results import capped
from actgent.tools.registry import ToolRegistry
from actgent.tools.threads import ThreadShare
from actgent.turns.dispatcher import Dispatcher
from actgent.turns.observer import Observer

from .approval_requests import ApprovalRequests
from .nested_calls import NestedCalls
from .progress import ProgressBoard

_make_batch = maker(Batch)
Access = Callable[[ToolCall, Tool, ToolContext], str | None]
"""A rule: why a call may not run at this moment, in words for the model; None: it may. It must be sync and free of side effects."""


def _count_calls(turn: Turn, budget: Budget, calls: Sequence[ToolCall]) -> None:
    """Take the calls of an answer from the turn's budget, once."""
    if turn.checkpoint is None or turn.answer.id not in turn.checkpoint.charged:
        budget.take_tool_calls(len(calls), of=turn.answer.id, now=trio.current_time())


def _closing(results: Message, turn: Turn, usage: Usage) -> Said:
    """Build the record of results, and of calls that no other record holds; `usage` is that of sessions that worked for them."""
    if results.text_calls:  # `last_call` and `called` hold them in the journal
        results = attrs.evolve(results, text_calls=())
    last = turn.progress.last_call
    if last is None or last.native:
        return make_said(
            message=results, usage=usage, calls=turn.progress.calls, repairs=turn.progress.repairs
        )
    return Said(
        message=results,
        usage=usage,
        calls=turn.progress.calls,
        repairs=turn.progress.repairs,
        last_call=last,
        identical=turn.progress.identical,
        called=_called_at_last(results, turn),
    )


def _called_at_last(results: Message, turn: Turn) -> tuple[ToolCall, ...]:
    """The calls that have these results, where they are several."""
    count, called = len(results.tool_results), turn.progress.called
    return tuple(called[-count:]) if called and count > 1 else ()


@attrs.define(eq=False, kw_only=True)
class ToolCaller:
    """Runs the calls of an answer, closes them in the record and tells the handlers."""

    agent: str
    registry: ToolRegistry
    threads: ThreadShare
    dispatcher: Dispatcher
    observer: Observer
    approvals: ApprovalRequests
    is_parallel: bool = False
    """`Agent(parallel_tools=...)`: calls of tools that leave `parallel` open may overlap."""
    access: Sequence[Access] = ()
    """All of them have to agree, when the call is about to start."""

    async def run(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        calls: Sequence[ToolCall],
        *,
        stage: str | None,
    ) -> Message | None:
        """Run the calls of the answer to `message`; returns the message with their results, the turn's next.

        None: some of them wait for people, and `turn.pending_approvals` is what to go on with when all have decided.
        """
        if self.registry.unsettled:
            await self._wait_for_toolsets(turn, calls)
        known = self._known(context, turn, calls)
        batch = self._batch(context, turn, known)
        results = None
        is_over = False
        control = turn.control
        try:
            turn.check()
            is_counted = turn.progress.counted == turn.answer.id  # they waited for people meanwhile
            if not (is_counted or batch.is_refused):
                turn.progress.counted = turn.answer.id
                self._count(context, turn, known)
            self._prepare(context, turn, batch)
            if turn.listeners:
                await self._tell_readers(context, turn, known)
            control.expose()
            turn.batch = batch
            if (board := self._board(context, turn)) is None:
                await batch.run()
            else:
                batch.context.report = board.put
                await board.run(batch.run)
            if batch.asked:
                control.cover()
                await self.approvals.ask(context, turn, batch)
                turn.pending_approvals = PendingCalls(message, tuple(known), stage)
            is_over = True
        except Exception:  # a limit, a journal that fails: the turn ends by it, and the process goes on
            is_over = True
            raise
        finally:
            turn.batch = None
            control.cover()
            if turn.pending_approvals is None:
                results = self._close(context, turn, message, batch, stage, is_over=is_over)
        if results is None:
            return None
        if context.log is not None:
            await context.log.flush()
        turn.check()  # before handlers, who are not to be cancelled
        await self.deliver(context, turn)
        turn.check()
        return results

    def close_open(self, context: SessionContext, turn: Turn) -> None:
        """Give each call that will not run any more a result in the conversation."""
        if context.conversation.open_calls:
            batch = self._batch(context, turn, self._resolved(context.conversation.open_calls))
            self._close(context, turn, turn.message, batch, None, is_over=True)

    async def deliver(self, context: SessionContext, turn: Turn) -> None:
        """Hand the results to the handlers, in the order of the calls."""
        while turn.results:
            result = turn.results.pop(0)
            if result.error is not None:
                self.observer.fail_tool(context, turn, result)
            if self.observer.stream.active:
                self.observer.take_result(context, result)
            await self.dispatcher.deliver(context, turn, result)

    def _prepare(self, context: SessionContext, turn: Turn, batch: Batch) -> None:
        """Have observers hear of each call. With a journal, what may have an effect is written first."""
        if self.observer.stream.active:
            batch.on_start = partial(self.observer.start_tool, context)
        if context.log is None:
            return
        batch.on_stage = partial(self._begin_stage, context.log, turn)
        if len(batch.calls) > 1:  # a single result is written with the message that carries it
            batch.on_finish = context.log.finish

    def _board(self, context: SessionContext, turn: Turn) -> ProgressBoard | None:
        """Return where tools put their progress; None: nobody would hear of it."""
        is_heard = context.handlers.of("tool_progress") or (turn.listeners and turn.is_heard())
        if not (is_heard or self.observer.stream.watched):
            return None

        async def tell(progress: CallProgress) -> None:
            self.observer.take_progress(context, progress)
            await self.dispatcher.dispatch(context, progress)

        return ProgressBoard(tell)

    async def _tell_readers(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Tell the listeners of calls that are in the journal."""
        if context.log is not None and turn.is_heard():
            await context.log.flush()
        for listener in turn.listeners:
            listener.take_calls(calls)

    def _resolved(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Return the calls of the tools themselves where the model ran them by `call_tool`."""
        return [self.registry.resolve(call) for call in calls] if self.registry.has_toolsets else calls

    def _known(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """The calls of the tools themselves, each with its id."""
        calls = self._resolved(calls)
        for call in calls:
            if not call.id:
                break
        else:  # those of providers have theirs
            return calls
        return [
            call if call.id else context.conversation.assign_call_id(call, f"{turn.answer.id}/call/{place}")
            for place, call in enumerate(calls)
        ]

    async def _wait_for_toolsets(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Wait for toolsets that connect for the first time, such as after a restart, where calls may be of theirs."""
        turn.control.expose()
        try:
            await self.registry.wait_for(calls)
        finally:
            turn.control.cover()

    def _settle(self, context: SessionContext, resume: TurnCheckpoint, batch: Batch) -> None:
        """Tell a batch what became of its calls before the restart."""
        for place, call in enumerate(batch.calls):
            tool = self.registry.get(call.name)
            if call.id in resume.finished:
                batch.set_result(place, resume.finished[call.id])
                if context.log is not None:
                    context.log.know_finished(call.id)
            elif call.id not in resume.started:
                continue
            elif tool is None or tool.effect == "once" or batch.is_settled(place):
                batch.set_result(place, None)
            else:
                batch.begun |= {place}

    async def _begin_stage(self, log: SessionLog, turn: Turn, batch: Batch, places: Sequence[int]) -> None:
        """Write which calls are about to start with an effect that a restart has to know of; nothing cuts the write."""
        started = tuple(batch.calls[place].id for place in places if self._has_effect(batch, place))
        if started:
            log.add(Started(call_ids=started))
        turn.control.cover()
        await log.flush()
        turn.control.expose()

    def _has_effect(self, batch: Batch, place: int) -> bool:
        tool = self.registry.get(batch.calls[place].name)
        return tool is not None and tool.effect != "pure" and batch.would_start(place)

    def _batch(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        batch = self.new_batch(context, turn, calls)
        if context.approvals is not None:
            self.approvals.apply_decisions(context.approvals, batch)
        if turn.checkpoint is not None:
            self._settle(context, turn.checkpoint, batch)
        return batch

    def new_batch(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        """Calls of a turn that are about to run."""
        limits = turn.limits
        told = make_context(
            session_id=context.id,
            owner=context.owner.name,
            agent=self.agent,
            deps=turn.options.deps,
            session=context.face,
            source=context,
            threads=self.threads,
        )
        grants = NO_GRANTS if context.approvals is None else grants_of(context.approvals, calls)
        batch = _make_batch(
            [edited(call, grants) for call in calls] if grants else calls,
            self.registry,
            context=told,
            check=partial(self._refusal, told) if self.access else None,
            ask=None if self.approvals.rule is None else self.approvals.rule_for(told),
            grants=grants,
            timeout=limits.tool_timeout,
            max_characters=limits.result_characters,
            is_parallel=self.is_parallel,
            host=_make_host(self, context, turn),
        )
        if (excess := excess_of(calls, limits)) is not None:
            batch.refuse(excess)
        return batch

    def _refusal(self, told: ToolContext, call: ToolCall, tool: Tool) -> str | None:
        return next(filter(None, (rule(call, tool, told) for rule in self.access)), None)

    def _count(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Take the calls of an answer from what the turn may still do."""
        self._count_identical(context, turn, calls)
        if turn.budget is not None:
            _count_calls(turn, turn.budget, calls)

    def _count_identical(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Stop a model that repeats itself before it does so once more."""
        most = turn.limits.identical_calls
        progress = turn.progress
        progress.tool_calls += len(calls)
        if (called := progress.called) is None:
            called = progress.called = []
        for call in calls:
            last, progress.last_call = progress.last_call, call
            progress.identical = progress.identical + 1 if last is not None and is_same(call, last) else 1
            called.append(call)
            if progress.identical > most:
                raise self._repeating(context, turn, f"identical calls of {quoted(call.name)} in a row")
            if len(called) > MIN_CALLS and (
                again := find_call_cycle(called, most, context.conversation.messages)
            ):
                names = ", ".join(quoted(each.name) for each in again)
                raise self._repeating(
                    context, turn, f"rounds of the same calls ({names}) with the same results"
                )
        if len(called) > MIN_CALLS:  # a turn with few calls skips the slice
            del called[: -most_calls(most)]

    def _repeating(self, context: SessionContext, turn: Turn, what: str) -> LimitReached:
        return LimitReached(
            what,
            turn.limits.identical_calls,
            field="identical_calls",
            used={"model_calls": turn.progress.calls},
            agent=self.agent,
            session_id=context.id,
        )

    def _close(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        batch: Batch,
        stage: str | None,
        *,
        is_over: bool,
    ) -> Message:
        """Write one result for each call into the record, right behind the calls, whatever came of them.

        The journal hears of it unless the process ends: then the next start goes on with what is known by then.
        """
        results = batch.results()
        in_text = tuple([call for call in batch.calls if not call.native])
        closing = message.caused(TOOLS, results, stage=stage, text_calls=in_text)
        context.conversation.append(closing)
        if context.log is not None and (is_over or turn.is_ending):
            context.log.say_results(_closing(closing, turn, context.conversation.take_unwritten()))
        context.conversation.open_calls = ()
        if context.approvals is not None:
            context.approvals.close(call.id for call in batch.calls)
            context.watch_deadline()
        turn.results.extend(results)
        return closing


@attrs.define(eq=False)
class _Host:
    """A turn, as the batches of its calls know it."""

    caller: ToolCaller
    context: SessionContext
    turn: Turn

    def keep(self, call: ToolCall, text: str, limit: int) -> str:
        """The beginning of a result that is too long; the rest is kept where the model can read on in it."""
        if not can_read_results(self.caller.registry):
            return capped(text, limit)
        return keep_result(self.context, call, text, limit, most=self.turn.limits.kept_characters)

    def nest(self, call: ToolCall) -> NestedCalls:
        caller = self.caller
        return NestedCalls(
            outer=call,
            context=self.context,
            turn=self.turn,
            registry=caller.registry,
            new_batch=caller.new_batch,
            now=caller.approvals.now,
        )

    def tell_raised(self, call: ToolCall, error: Exception) -> None:
        self.caller.dispatcher.reports.tool_raised(self.context, call, error)

    def log_unusable(self, call: ToolCall, error: UnusableResult) -> None:
        self.caller.dispatcher.reports.unusable_result(self.context, call, error)


_make_host = maker(_Host)
