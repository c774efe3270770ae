"""Execution of the tool calls of a turn. Each call gets exactly one result in the conversation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from actgent.errors import InvalidToolResult, LimitReached
from actgent.errors.text_escaping import counted, quoted
from actgent.information_flow_labels import Policy
from actgent.journal.record_types import AgentMessageRecord, CallsStartedRecord, make_agent_message_record
from actgent.limits_and_schedules.budget import Budget
from actgent.limits_and_schedules.limits import Limits
from actgent.limits_and_schedules.tool_call_loop_detection import (
    MIN_CALLS,
    find_call_cycle,
    is_same,
    most_calls,
)
from actgent.messages import CallProgress, Message, ToolCall, Usage
from actgent.sessions.pending.approval_ledger import PendingCalls
from actgent.sessions.pending.tool_call_approvals import edited, grants_of
from actgent.sessions.pending.turn_checkpoint import TurnCheckpoint
from actgent.sessions.restore.record_replayer import TOOLS
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.tools.outputs.oversized_results import has_read_result, store_oversized
from actgent.tools.outputs.result_text import truncate
from actgent.tools.tool_execution import NO_GRANTS, Batch
from actgent.tools.tool_interface import Tool, ToolContext, make_context
from actgent.tools.tool_registry import ToolRegistry
from actgent.tools.tools_run_by_caller import with_caller_tools
from actgent.tools.worker_threads import ThreadShare
from actgent.turns.outcome_dispatcher import Dispatcher
from actgent.turns.turn_event_publisher import Observer

from .approval_requests import ApprovalRequests
from .nested_tool_calls import NestedCalls
from .tool_progress_publisher import ProgressPublisher
from .untrusted_result_isolation import Isolation
from .untrusted_text_policy import PolicyCheck

_make_batch = fast_constructor(Batch)
Access = Callable[[ToolCall, Tool, ToolContext], str | None]
"""Access rule of tool calls: a sync function without side effects.

It returns None to allow the call, or the reason of a rejection as text for the model.
"""


def _count_calls(turn: Turn, budget: Budget, calls: Sequence[ToolCall]) -> None:
    """Charge the tool calls of an answer to the turn's budget, unless they were charged before a restart."""
    if turn.checkpoint is None or turn.answer_id not in turn.checkpoint.charged:
        budget.take_tool_calls(len(calls), of=turn.answer_id, now=trio.current_time())


def _results_record(results: Message, turn: Turn, usage: Usage) -> AgentMessageRecord:
    """Build the journal record of tool results. `usage` has the tokens of the child sessions that ran for these calls."""
    if results.text_calls:  # `last_call` and `called` hold them in the journal
        results = attrs.evolve(results, text_calls=())
    last = turn.progress.last_call
    if last is None or last.native:
        return make_agent_message_record(
            message=results, usage=usage, calls=turn.progress.calls, repairs=turn.progress.repairs
        )
    return AgentMessageRecord(
        message=results,
        usage=usage,
        calls=turn.progress.calls,
        repairs=turn.progress.repairs,
        last_call=last,
        identical=turn.progress.identical,
        called=_calls_of_results(results, turn),
    )


def _calls_of_results(results: Message, turn: Turn) -> tuple[ToolCall, ...]:
    """Return the tool calls that the results answer; empty for a single call, which the record stores in another field."""
    count, called = len(results.tool_results), turn.progress.called
    return tuple(called[-count:]) if called and count > 1 else ()


@attrs.define(eq=False, kw_only=True, repr=False)
class ToolCaller(FieldRepr):
    """Runs the tool calls of one agent's answers, records their results and delivers them to handlers."""

    agent: str
    registry: ToolRegistry
    threads: ThreadShare
    dispatcher: Dispatcher
    observer: Observer
    approvals: ApprovalRequests
    is_parallel: bool = False
    """`Agent(parallel_tools=...)`: True if tools without a `parallel` setting may run concurrently."""
    policy: Policy | None = None
    """`Agent(policy=...)`; None if the agent has none."""
    access: Sequence[Access] = ()
    """Access rules, checked when a call is about to start. All rules have to allow the call."""

    async def run(
        self, turn: Turn, message: Message, calls: Sequence[ToolCall], *, stage: str | None
    ) -> None:
        """Run the tool calls of the answer to `message`, and deliver their results to the handlers.

        The turn then processes the message with the results. `stage` is the stage of the protocol for that message, such as
        `execution`; None without stages. If calls wait for approval, there is no such message. Then `turn.pending_approvals` has
        the calls that run after the decisions.
        """
        context = turn.session
        if self.registry.connecting:
            await self._wait_for_toolsets(turn, calls)
        known = self._with_call_ids(turn, calls)
        batch = self._batch(turn, known)
        results = None
        is_final = False
        try:
            turn.check()
            is_counted = (
                turn.progress.counted == turn.answer_id
            )  # the calls were counted before they waited for approvals
            if not (is_counted or batch.is_rejected):
                turn.progress.counted = turn.answer_id
                self._count(turn, known)
            if turn.listeners:
                await self._notify_readers(turn, known)
            turn.expose()
            turn.batch = batch
            if (board := self._make_progress_publisher(turn)) is None:
                await batch.run()
            else:
                batch.context.report = board.put
                await board.run(batch.run)
            if batch.awaiting_approval:
                turn.cover()
                await self.approvals.ask(turn, batch)
                turn.pending_approvals = PendingCalls(message, tuple(known), stage)
            is_final = True
        except Exception:  # e.g. a limit or a journal failure: the turn fails, but the process continues
            is_final = True
            raise
        finally:
            turn.batch = None
            turn.cover()
            if turn.pending_approvals is None:
                results = self._append_results(turn, message, batch, stage, is_final=is_final)
        if results is None:
            return
        if context.log is not None:
            await context.log.flush()
        turn.check()  # stop before handlers run, since they must not be cancelled
        await self.deliver(turn)
        turn.check()
        turn.next_messages.append(results)

    def close_open(self, turn: Turn) -> None:
        """Append a result to the conversation for each open tool call of a turn that ends. Providers reject calls without results."""
        context = turn.session
        if context.conversation.open_calls:
            batch = self._batch(turn, self._with_call_ids(turn, context.conversation.open_calls))
            self._append_results(turn, turn.message, batch, None, is_final=True)

    async def deliver(self, turn: Turn) -> None:
        """Deliver the turn's tool results that handlers have not received yet, in the order of the calls."""
        context = turn.session
        while turn.results:
            result = turn.results.pop(0)
            if result.error is not None:
                self.observer.fail_tool(turn, result)
            if self.observer.stream.active:
                self.observer.take_result(context, result)
            await self.dispatcher.deliver(turn, result)

    def _make_progress_publisher(self, turn: Turn) -> ProgressPublisher | None:
        """Return a publisher that delivers the progress of tools to handlers and observers; None if there are no receivers."""
        context = turn.session
        is_heard = "tool_progress" in context.handlers or (turn.listeners and turn.has_stream_listener())
        if not (is_heard or self.observer.stream.watched):
            return None

        async def tell(progress: CallProgress) -> None:
            self.observer.take_progress(context, progress)
            await self.dispatcher.dispatch(context, progress)

        return ProgressPublisher(tell)

    async def _notify_readers(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Notify stream readers of the tool calls, after the calls are written to the journal."""
        context = turn.session
        if context.log is not None and turn.has_stream_listener():
            await context.log.flush()
        for listener in turn.listeners:
            listener.receive_calls(calls)

    def _with_call_ids(self, turn: Turn, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Resolve `call_tool` calls, and assign ids to calls that the provider sent without an id."""
        context = turn.session
        if self.registry.has_toolsets:
            calls = [self.registry.resolve(call) for call in calls]
        for call in calls:
            if not call.id:
                break
        else:  # results of native calls already have ids
            return calls
        return [
            call if call.id else context.conversation.assign_call_id(call, f"{turn.answer_id}/call/{index}")
            for index, call in enumerate(calls)
        ]

    async def _wait_for_toolsets(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Wait for toolsets that are still connecting, e.g. after a restart, if they may contain the called tools."""
        turn.expose()
        try:
            await self.registry.wait_for_tools(calls)
        finally:
            turn.cover()

    def _restore_batch(self, context: SessionContext, resume: TurnCheckpoint, batch: Batch) -> None:
        """Set the state of the tool calls in `batch` after a restart from the checkpoint `resume`.

        A finished call gets its recorded result. A started call without a result runs again, unless its tool may run only once or
        no longer exists. In these cases, its result is "outcome unknown". Other calls run normally.
        """
        for index, call in enumerate(batch.calls):
            tool = self.registry.get(call.name)
            if call.id in resume.finished:
                batch.set_result(index, resume.finished[call.id])
                if context.log is not None:
                    context.log.note_recorded_result(call.id)
            elif call.id not in resume.started:
                continue
            elif tool is None or tool.effect == "once" or batch.is_resolved(index):
                batch.set_result(index, None)
            else:
                batch.maybe_started |= {index}

    async def _record_call_start(
        self, log: SessionLog, turn: Turn, batch: Batch, indexes: Sequence[int]
    ) -> None:
        """Record durably that tool calls with side effects are about to start, so that a restart does not repeat them silently.

        An interruption of the turn does not cancel the write.
        """
        started = tuple(batch.calls[index].id for index in indexes if self._has_effect(batch, index))
        if started:
            log.add(CallsStartedRecord(call_ids=started))
        turn.cover()
        await log.flush()
        turn.expose()

    def _has_effect(self, batch: Batch, index: int) -> bool:
        tool = self.registry.get(batch.calls[index].name)
        return tool is not None and tool.effect != "pure" and batch.can_start(index)

    def _batch(self, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        """Create the batch of an answer's tool calls, with decided approvals and the callbacks for events and records.

        After a restart, the calls get their recorded results. With a journal, calls with side effects are recorded before they start.
        """
        context = turn.session
        batch = self.new_batch(turn, calls)
        if self.observer.stream.active:
            batch.on_start = partial(self.observer.start_tool, context)
        if context.log is not None:
            batch.on_stage = partial(self._record_call_start, context.log, turn)
            if len(calls) > 1:  # a single result is written with the message that carries it
                batch.on_finish = context.log.record_result_soon
        if context.approvals is not None:
            self.approvals.apply_decisions(context.approvals, batch)
        if turn.checkpoint is not None:
            self._restore_batch(context, turn.checkpoint, batch)
        return batch

    def new_batch(self, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        """Create the batch that executes tool calls of a turn, with its limits, rules and approvals."""
        context = turn.session
        limits = turn.limits
        tool_context = make_context(
            session_id=context.id,
            owner=context.owner.name,
            agent=self.agent,
            deps=turn.options.deps,
            session=context.public_session,
            source=context,
            threads=self.threads,
        )
        grants = NO_GRANTS if context.approvals is None else grants_of(context.approvals, calls)
        registry = (
            with_caller_tools(self.registry, turn.options.tools) if turn.options.tools else self.registry
        )
        isolation, source_calls = None, calls
        if self.policy is not None and self.policy.untrusted == "isolate":
            isolation = Isolation(context, self.registry, bits=self.policy.bits, turn_id=turn.message.id)
            isolation.begin(calls)
            if (
                turn.batch is not None and turn.batch.isolation is not None
            ):  # of a call that makes nested calls
                isolation.first = turn.batch.isolation.first
            calls = [isolation.fill(call) for call in calls]
        batch = _make_batch(
            [edited(call, grants) for call in calls] if grants else calls,
            registry,
            context=tool_context,
            check=partial(self._refusal, tool_context) if self.access else None,
            ask=None if self.approvals.rule is None else self.approvals.rule_for(tool_context),
            policy=None
            if self.policy is None
            else PolicyCheck(policy=self.policy, context=context, isolation=isolation),
            isolation=isolation,
            source_calls=() if isolation is None else source_calls,
            grants=grants,
            timeout=limits.tool_timeout,
            max_characters=limits.result_characters,
            is_parallel=self.is_parallel,
            host=_make_host(self, turn),
        )
        if isolation is not None:
            isolation.calls = batch.calls
        if (excess := excess_of(source_calls, limits)) is not None:
            batch.reject_all(excess)
        return batch

    def _refusal(self, tool_context: ToolContext, call: ToolCall, tool: Tool) -> str | None:
        """Return the reason of the first access rule that rejects a call; None if all rules allow it."""
        return next(filter(None, (rule(call, tool, tool_context) for rule in self.access)), None)

    def _count(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Count the calls of an answer, and charge them to the turn's budget.

        Raises:
            LimitReached: The model repeats identical calls, or a cycle of calls with equal results, too often; or the budget is
                used up.
        """
        context = turn.session
        most = turn.limits.max_repeated_calls
        progress = turn.progress
        progress.tool_calls += len(calls)
        if (called := progress.called) is None:
            called = progress.called = []
        for call in calls:
            last, progress.last_call = progress.last_call, call
            progress.identical = progress.identical + 1 if last is not None and is_same(call, last) else 1
            called.append(call)
            if progress.identical > most:
                raise self._repetition_error(turn, f"identical calls of {quoted(call.name)} in a row")
            if len(called) > MIN_CALLS and (
                again := find_call_cycle(called, most, context.conversation.messages)
            ):
                names = ", ".join(quoted(each.name) for each in again)
                raise self._repetition_error(
                    turn, f"rounds of the same calls ({names}) with the same results"
                )
        if len(called) > MIN_CALLS:  # a turn with few calls skips the slice
            del called[: -most_calls(most)]
        if turn.budget is not None:
            _count_calls(turn, turn.budget, calls)

    def _repetition_error(self, turn: Turn, repeated: str) -> LimitReached:
        """Build the error for too many repeated tool calls. `repeated` describes the calls."""
        context = turn.session
        return LimitReached(
            repeated,
            turn.limits.max_repeated_calls,
            field="max_repeated_calls",
            used={"model_calls": turn.progress.calls},
            agent=self.agent,
            session_id=context.id,
        )

    def _append_results(
        self, turn: Turn, message: Message, batch: Batch, stage: str | None, *, is_final: bool
    ) -> Message:
        """Append a message with the results of all calls in `batch` to the conversation, and return the message.

        `is_final` is True if the message is also recorded. It is False if the agent stops: then the next start runs the
        unfinished calls.
        """
        context = turn.session
        results = batch.results()
        in_text = tuple([call for call in batch.source_calls or batch.calls if not call.native])
        closing = message.caused(TOOLS, results, stage=stage, text_calls=in_text)
        context.conversation.append(closing)
        if context.log is not None and (is_final or turn.is_ending):
            context.log.record_results(_results_record(closing, turn, context.conversation.take_unwritten()))
        context.conversation.open_calls = ()
        if context.approvals is not None:
            context.approvals.close(call.id for call in batch.calls)
            context.update_approval_timer()
        turn.results.extend(results)
        return closing


@attrs.define(eq=False, repr=False)
class _Host(FieldRepr):
    """Interface of a turn to its batch of tool calls: long results, nested calls and error logs."""

    caller: ToolCaller
    turn: Turn

    def store_long_result(self, call: ToolCall, text: str, limit: int) -> str:
        """Return the first `limit` characters of a tool result, and store the whole text for the tool `read_result`.

        If the agent does not have this tool, nothing is stored.
        """
        if not has_read_result(self.caller.registry):
            return truncate(text, limit)
        return store_oversized(
            self.turn.session, call, text, limit, session_limit=self.turn.limits.kept_characters
        )

    @property
    def via(self) -> str:
        return self.turn.session.conversation.via

    def nest(self, call: ToolCall) -> NestedCalls:
        """Return the executor of the nested calls that the running tool call `call` makes."""
        caller = self.caller
        return NestedCalls(
            outer=call,
            turn=self.turn,
            registry=caller.registry,
            new_batch=caller.new_batch,
            now=caller.approvals.now,
        )

    def report_exception(self, call: ToolCall, error: Exception) -> None:
        self.caller.dispatcher.failure_logger.log_tool_error(self.turn.session, call, error)

    def log_unserializable(self, call: ToolCall, error: InvalidToolResult) -> None:
        self.caller.dispatcher.failure_logger.log_unusable_result(self.turn.session, call, error)


_make_host = fast_constructor(_Host)


def excess_of(calls: Sequence[ToolCall], limits: Limits) -> str | None:
    """Return an error text for the model if an answer has too many or too large tool calls; None if its calls are allowed."""
    if len(calls) > limits.answer_calls:
        return (
            f"no call of this answer ran: it has {len(calls):,} calls, and the limit is {limits.answer_calls:,}. "
            "Make fewer calls, and make the others after you get the results"
        )
    size = 0
    for call in calls:
        size += _json_size(call.arguments)
    if size > limits.argument_bytes:
        return (
            f"no call of this answer ran: its arguments have {counted(size, 'byte')}, and the limit is "
            f"{limits.argument_bytes:,}. Pass shorter arguments"
        )
    return None


def _json_size(arguments: Mapping[str, Any] | str) -> int:
    """Return the size of a call's arguments as JSON in bytes."""
    if not arguments:
        return 2
    if isinstance(arguments, str):
        return len(arguments.encode("utf-8", "surrogatepass"))
    import msgspec  # noqa: PLC0415 - loads 16 modules, which agents without tools save

    try:
        return len(msgspec.json.encode(arguments))
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # a model client written in Python can pass values that JSON cannot express
        return len(repr(arguments))
