"""Execution of the tool calls of one answer, in the order of the answer.

Calls run one after the other. Adjacent calls of tools that may overlap (`Tool.parallel`, by default `effect="pure"`)
run concurrently, and also start in the order of the answer.

A call is in one of these states. If the batch is stopped, its state determines the result:

    waiting             `cancelled`: the tool never ran
    started             `outcome_unknown`, or `cancelled` if the effect is pure or idempotent
    maybe started       `outcome_unknown`: it may have run before a restart, and has not run again yet
    finished            its result
    awaiting approval   `cancelled`, as withdrawn: neither the call nor its question was processed
"""

import time
import types
import typing
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

import attrs
import trio

from actgent.approvals import ApprovalRequest, Approve, Edit, Grant
from actgent.errors import (
    ActgentError,
    ApprovalRequired,
    ConfigurationError,
    InvalidArguments,
    InvalidToolResult,
    OutcomeUnknown,
    ThreadPoolExhausted,
    ToolError,
    ToolTimeout,
)
from actgent.information_flow_labels import (
    Label,
    Labelled,
    contains_labelled,
    replace_labelled,
    text_of,
    text_of_readers,
)
from actgent.messages import Medium, ToolCall, ToolResult, ToolStatus, make_result
from actgent.support import span_names as names
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import ActiveTrace, Attribute, TracedWork, active_trace
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.support.user_code_calls import convert_user_error, leaves

from .outputs.result_media import describe_media, has_media
from .outputs.result_text import canonical_json, describe, fallback_text, to_text, truncate
from .outputs.untrusted_result_delimiters import mark_untrusted
from .pausable_time_limits import TimeLimit, time_limits
from .schemas import plain_form
from .tool_call_start_order import StartGate, start_gate
from .tool_interface import DEFAULT_TIMEOUT_SECONDS, ApprovalRule, NestedToolCalls, Tool, ToolContext
from .tools_run_by_caller import AskCaller
from .untrusted_sources_of_call import CallSources, running_call

logger = logger_of(__name__)

DEFAULT_MAX_RESULT_CHARACTERS = 60_000
"""Maximum length of a result in characters if the agent sets none."""
_NOT_STARTED = "cancelled before it started"
_STOPPED = "cancelled while it ran"
_REJECTED = "it did not run: see the first result of this answer"
_WITHDRAWN = "withdrawn before the approval was decided: it did not run"
_UNKNOWN_TOOL = "unknown"
"""Name in spans of a tool that the agent does not have."""
_UNKNOWN = "stopped while it ran: its outcome is unknown"

NO_GRANTS: Mapping[str, Grant] = MappingProxyType({})
_ONE_STAGE: Sequence[Sequence[int]] = ((0,),)
_NO_APPROVALS: Mapping[int, ApprovalRequest] = MappingProxyType({})
_NONE_AWAITING: Mapping[int, ApprovalRequired] = MappingProxyType({})
_WITHOUT_MEDIA = frozenset({str, int, float, bool, dict, types.NoneType})
"""Types of tool values that never contain pictures or files."""
Check = Callable[[ToolCall, Tool], str | None]
"""Function that returns why a call is rejected; None if the call may run."""


class ToolLookup(typing.Protocol):
    """Interface that finds tools by name or by call, such as `ToolRegistry`."""

    def get(self, name: str) -> Tool | None: ...
    def find(self, call: ToolCall) -> Tool: ...


@attrs.frozen(repr=False)
class PolicyViolation(FieldRepr):
    """Violation of the agent's data policy by a tool call.

    A parameter that needs trusted values (a sink) depends on untrusted text, or a reader of the call's data is not allowed.
    """

    labels: Mapping[str, Label]
    """Label of each checked parameter; empty if the call has no arguments."""
    reason: str
    """Text that names the parameters and their untrusted sources, for the approver, or for the model if the call is refused."""
    is_refused: bool = False
    """True if the policy refuses the call instead of asking an approver."""


class _PolicyRefusal(ToolError):
    """Error: the policy refuses a call. Its text quotes no untrusted text."""


class PolicyRule(typing.Protocol):
    """Function that checks the labels of a call's arguments by the agent's data policy."""

    def __call__(self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> PolicyViolation | None:
        """Return the policy violation of a call with these arguments; None if the call may run."""
        ...

    def for_nested(self, sources: str) -> "PolicyRule":
        """Return the policy check for calls that a tool makes after it has read text of the untrusted `sources`."""
        ...


class ResultIsolation(typing.Protocol):
    """Interface that hides results with untrusted text from the session's model."""

    is_nested: bool
    """True if the calls are made by another tool call, so that their results are not sent to the model."""

    first: int
    """Number of the last result that was withheld before this batch of calls."""

    @property
    def shown_sources(self) -> str:
        """Untrusted sources of the values that the model has read in this turn although their results are withheld."""
        ...

    def sources_of(self, call_id: str) -> str: ...
    def reference_of(self, index: int) -> str: ...
    def unapproved(self, call: ToolCall) -> Mapping[str, str]: ...
    def withhold(
        self,
        index: int,
        call: ToolCall,
        tool: Tool | None,
        result: ToolResult,
        parts: Sequence[tuple[Any, str]],
    ) -> ToolResult: ...
    def approve(self, call: ToolCall) -> None: ...
    def note_stored(self, call_id: str) -> None: ...


class BatchTurn(typing.Protocol):
    """Interface that a batch of tool calls uses to reach the turn in which the batch runs."""

    def store_long_result(self, call: ToolCall, text: str, limit: int) -> str:
        """Store a result text of more than `limit` characters for `read_result`. Return a shortened text for the model."""
        ...

    def nest(self, call: ToolCall) -> NestedToolCalls:
        """Return the interface through which a running call of a tool with `calls_tools` calls other tools."""
        ...

    @property
    def via(self) -> str:
        """Untrusted sources that influenced the session, although the conversation does not contain text of these sources."""
        ...

    def report_exception(self, call: ToolCall, error: Exception) -> None:
        """Report an exception that a tool raised, to handlers and logs.

        Requests for approval are not reported.
        """
        ...

    def log_unserializable(self, call: ToolCall, error: InvalidToolResult) -> None:
        """Log why a tool's value has no JSON form. The model receives `str(value)`."""
        ...


@attrs.define(eq=False, repr=False)
class Batch(FieldRepr):
    """The tool calls of one answer. `run` runs them once; `results` returns one result per call at any time."""

    calls: Sequence[ToolCall]
    """The tool calls in the order of the model's answer."""
    registry: ToolLookup
    """Lookup of the tools that the calls may run."""
    context: ToolContext = attrs.field(factory=ToolContext, kw_only=True)
    """Context of the turn; each call gets a copy with its own id and idempotency key."""
    check: Check | None = attrs.field(default=None, kw_only=True)
    """Called directly before a call starts. It returns why the call is rejected; None if the call may run."""
    ask: Callable[[ToolCall, Tool], ApprovalRequest | None] | None = attrs.field(default=None, kw_only=True)
    """Returns the approval that a call needs in addition to the tool's own `approval`; None if it needs none."""
    policy: PolicyRule | None = attrs.field(default=None, kw_only=True)
    """Checks the labels of a call before it starts; None if the agent has no policy."""
    isolation: ResultIsolation | None = attrs.field(default=None, kw_only=True)
    """Hides results with untrusted text from the model; None if the model reads them."""
    source_calls: Sequence[ToolCall] = attrs.field(default=(), kw_only=True)
    """The calls as the model wrote them, with references to hidden results. Empty if they equal `calls`."""
    grants: Mapping[str, Grant] = attrs.field(default=NO_GRANTS, kw_only=True)
    """Approvers' decisions to run a call, by call id."""
    timeout: float = attrs.field(default=DEFAULT_TIMEOUT_SECONDS, kw_only=True)
    """Time limit in seconds for tools without their own."""
    max_characters: int = attrs.field(default=DEFAULT_MAX_RESULT_CHARACTERS, kw_only=True)
    """Maximum length of a result in characters. Longer results are shortened and get a notice."""
    host: BatchTurn | None = attrs.field(default=None, kw_only=True)
    """The turn that runs the batch. None: long results are truncated, and no tool can call other tools."""
    on_stage: "Callable[[Batch, Sequence[int]], Awaitable[object]] | None" = attrs.field(
        default=None, kw_only=True
    )
    """Async function that is called before a group of overlapping calls starts.
    It gets the batch and the indexes of these calls.
    """
    is_parallel: bool = attrs.field(default=False, kw_only=True)
    """True if calls of tools with `parallel=None` may overlap regardless of their effect."""
    on_start: Callable[[ToolCall], object] | None = attrs.field(default=None, kw_only=True)
    """Called with each call that starts."""
    on_finish: Callable[[ToolResult], object] | None = attrs.field(default=None, kw_only=True)
    """Called with each result as soon as the call finishes."""
    maybe_started: frozenset[int] = attrs.field(default=frozenset(), init=False, repr=False)
    """Indexes of the calls that may have run before a restart. They run again if their effect permits it."""
    _started: dict[int, tuple[Tool, ToolContext]] = attrs.field(factory=dict, init=False, repr=False)
    """Tool and context of each started call, by index."""
    _isolated: dict[str, CallSources] = attrs.field(factory=dict, init=False, repr=False)
    """Untrusted sources of each started call, by call id; only with `isolation`."""
    _parts: dict[str, list[tuple[Any, str]]] = attrs.field(factory=dict, init=False, repr=False)
    """Hidden parts of each result: value and untrusted sources, by call id. The text for the model has references to them."""
    _finished: dict[int, ToolResult] = attrs.field(factory=dict, init=False, repr=False)
    """Results of finished calls, by index."""
    awaiting_approval: Mapping[int, ApprovalRequired] = attrs.field(
        default=_NONE_AWAITING, init=False, repr=False
    )
    """Approval requests of the calls that wait for a decision, by index."""
    is_rejected: bool = attrs.field(default=False, init=False)
    """True if `reject_all` rejected all calls of the answer together."""
    _required_approvals: Mapping[int, ApprovalRequest] = attrs.field(
        default=_NO_APPROVALS, init=False, repr=False
    )
    """Approval requests that `required_approval` has returned, by index of the call."""

    # --- results ---------------------------------------------------------------------------

    def results(self) -> tuple[ToolResult, ...]:
        """Return one result per call, in the order of the calls.

        This method can be called at any time, even after a cancellation.
        """
        finished = self._finished
        return tuple(
            [finished.get(index) or self._unfinished_result(index) for index in range(len(self.calls))]
        )

    def _unfinished_result(self, index: int) -> ToolResult:
        """Return the result of a call that has not finished: `cancelled`, or `outcome_unknown` if a `once` tool may have run."""
        call = self.calls[index]
        if index in self.awaiting_approval:
            return _error_result(call, _WITHDRAWN, status="cancelled")
        tool, call_context = self._started.get(index, (None, None))
        if (call_context is None or call_context.cancelled_in_queue) and index not in self.maybe_started:
            return _error_result(call, _NOT_STARTED, status="cancelled")
        if tool is None or tool.effect == "once":
            return self._unknown_result(index)
        return self._with_sources(index, _error_result(call, _STOPPED, status="cancelled"))

    def _unknown_result(self, index: int) -> ToolResult:
        return self._with_sources(index, _error_result(self.calls[index], _UNKNOWN, status="outcome_unknown"))

    def _with_sources(self, index: int, result: ToolResult) -> ToolResult:
        """Return the result of a stopped call with the untrusted sources that the call has read.

        The call, or a nested call, may have stored text of these sources in the session state.
        """
        call = self.calls[index]
        tool, call_context = self._started.get(index, (self.registry.get(call.name), self.context))
        if tool is None:
            return result
        via = _nested_sources(call_context)
        if tool.effect != "pure":
            via = join_origins(via, self._sources_of_own(call, tool, call_context))
        return attrs.evolve(result, via=via) if via else result

    def _sources_of_own(
        self, call: ToolCall, tool: Tool, call_context: ToolContext, *, reads_text: bool = True
    ) -> str:
        """Return the untrusted sources of the text that a call has read, without the sources of its nested calls.

        With `reads_text=False`, the tool itself does not count as a source, even if its results are untrusted.
        """
        via = join_origins(
            (tool.origin or tool.name) if tool.outside and reads_text else call_context.origin,
            _readers_of(tool, call_context),
        )
        if self.isolation is not None:
            via = join_origins(via, self.isolation.sources_of(call.id))
        if (running := self._isolated.get(call.id)) is not None:
            via = join_origins(via, running.answer_sources)
        return via

    def running_sources(self) -> str:
        """Return the names of the untrusted sources whose text the running calls may write to the session's state, as one text.

        With `Policy(untrusted="isolate")`, only the calls that the current task runs count.
        """
        chain = running_call.get() if self.isolation is not None else None
        sources = ""
        for index, (tool, call_context) in self._started.items():
            if index not in self._finished and self._may_run_inside(index, chain):
                own = self._sources_of_own(self.calls[index], tool, call_context)
                sources = join_origins(sources, join_origins(own, _nested_sources(call_context)))
        return sources

    def unrecorded_sources(self) -> str:
        """Return the untrusted sources that calls of this batch have read, but that the conversation does not contain yet.

        A message that a call or handler sends now may repeat their text, so the message is labelled with these sources.
        With isolation, only the call of the current task and its nested calls count. A tool with `calls_tools` reads only
        the results of its nested calls, so the tool itself does not count as a source.
        """
        chain = running_call.get() if self.isolation is not None else None
        sources = ""
        for result in self._finished.values():
            sources = join_origins(sources, join_origins(result.origin, result.via))
        for index, (tool, call_context) in self._started.items():
            if not self._may_run_inside(index, chain):
                continue
            own = self._sources_of_own(self.calls[index], tool, call_context, reads_text=not tool.calls_tools)
            sources = join_origins(sources, join_origins(own, _nested_sources(call_context)))
        return sources

    def _may_run_inside(self, index: int, chain: CallSources | None) -> bool:
        """Return True if the call at `index` belongs to the chain of calls of the current task, or if this chain is unknown."""
        return chain is None or chain.is_inside(self._isolated.get(self.calls[index].id))

    def set_result(self, index: int, result: ToolResult | None) -> None:
        """Set the result of a call that ran before a restart. With None, the result says that the outcome is unknown."""
        self._finished[index] = result or self._unknown_result(index)

    def supply_result(self, index: int, *, content: str = "", error: str | None = None) -> None:
        """Set the content or the error as the result of a call that is not run, for example because the caller has run it."""
        call = self.calls[index]
        if error is None:
            self._finished[index] = self._withhold(index, _success_result(call, self._truncate(content)))
            return
        result = _error_result(call, self._truncate(error))
        tool = self.registry.get(call.name)
        is_rejection = tool is None or not tool.is_of_caller
        if is_rejection and index not in self._finished:
            _trace_refusal(call, tool)
        self._finished[index] = result if is_rejection else self._withhold(index, result)

    def reject_all(self, reason: str) -> None:
        """Reject all calls of the answer. The first result has the reason, and the other results refer to it."""
        self.is_rejected = True
        for index, call in enumerate(self.calls):
            _trace_refusal(call, self.registry.get(call.name))
            self._finished[index] = _error_result(call, reason if index == 0 else _REJECTED)

    def is_resolved(self, index: int) -> bool:
        """Return True if this batch will not run the call at `index` any more, because it has a result or waits for approval."""
        return index in self._finished or index in self.awaiting_approval

    def finished(self) -> Sequence[ToolResult]:
        """Return the results of the finished calls of the batch, in the order in which they finished."""
        return tuple(self._finished.values())

    def count_unfinished(self) -> int:
        """Return the number of tool calls of this batch that have no result yet."""
        return len(self.calls) - len(self._finished)

    def can_rerun(self) -> bool:
        """Return True if all unfinished calls can run again from the start without repeating effects."""
        left = (call for index, call in enumerate(self.calls) if index not in self._finished)
        tools = [self.registry.get(call.name) for call in left]
        return all(tool is not None and tool.effect != "once" and not tool.calls_tools for tool in tools)

    # --- running the calls ---------------------------------------------------------------------

    async def run(self) -> None:
        """Run all calls in the order of the answer, stage by stage. A failed call does not stop later calls.

        The calls of a stage are checked before its first call starts. A batch of inline tools makes no checkpoint. A
        call that awaits approval does not delay later calls, except across a tool marked `exclusive`.
        """
        former: Sequence[int] = ()
        for stage in _ONE_STAGE if len(self.calls) == 1 else self._group_calls():
            if self.awaiting_approval and any(map(self._is_alone, (*former[:1], stage[0]))):
                return
            if self.on_stage is not None:
                await self.on_stage(self, stage)
            waiting: list[tuple[int, Tool, dict[str, Any]]] = []
            for index in stage:
                await trio.lowlevel.checkpoint_if_cancelled()
                if (admitted := self._admit_or_fail(index)) is None:
                    continue
                tool, arguments = admitted
                if tool.inline and not tool.retries and not waiting:  # it never waits, so it needs no task
                    await self._run_call(index, tool, arguments)
                else:
                    waiting.append((index, tool, arguments))
            if len(waiting) == 1:
                await self._run_call(*waiting[0])
            elif waiting:
                await self._run_concurrently(waiting)
            former = stage

    async def _run_concurrently(self, calls: Sequence[tuple[int, Tool, dict[str, Any]]]) -> None:
        """Run each call in its own task.

        The calls start in the order of the answer; trio alone would start them in random order.
        """
        gate = StartGate()
        gate.open()
        async with trio.open_nursery() as nursery:
            for call in calls:
                next_gate = StartGate()
                nursery.start_soon(self._start_call, call, gate, next_gate)
                gate = next_gate

    async def _start_call(
        self, call: tuple[int, Tool, dict[str, Any]], gate: StartGate, next_gate: StartGate
    ) -> None:
        """Wait until the previous call has started, open the gate for the next call, and run this call.

        Args:
            call: Index, tool and arguments of this call.
            gate: Gate that opens when the previous call starts.
            next_gate: Gate that lets the next call start.
        """
        await gate.wait()
        start_gate.set(next_gate)
        next_gate.open()
        await self._run_call(*call)

    def _group_calls(self) -> Iterator[Sequence[int]]:
        overlapping: list[int] = []
        for index, call in enumerate(self.calls):
            if self._may_overlap(call):
                overlapping.append(index)
                continue
            if overlapping:
                yield overlapping
                overlapping = []
            yield (index,)
        if overlapping:
            yield overlapping

    def _may_overlap(self, call: ToolCall) -> bool:
        tool = self.registry.get(call.name)
        if tool is None or tool.exclusive:
            return tool is None  # the call of an unknown tool only produces an error result
        return self.is_parallel or tool.effect == "pure" if tool.parallel is None else tool.parallel

    def _is_alone(self, index: int) -> bool:
        tool = self.registry.get(self.calls[index].name)
        return tool is not None and tool.exclusive

    def _admit_or_fail(self, index: int) -> tuple[Tool, dict[str, Any]] | None:
        """Return the tool and arguments of a call if it may run.

        Otherwise set an error as its result, or record that the call waits for approval, and return None.
        """
        if index in self._finished or index in self.awaiting_approval:  # before a restart
            return None
        call = self.calls[index]
        if index in self.maybe_started and not self.can_start(index):
            self.set_result(index, None)  # not "may not run": the model would read it as "never ran"
            return None
        try:
            return self._admit(index, call)
        except ApprovalRequired as question:
            self._hold_for_approval(index, question)
            return None
        except ToolError as error:
            quoted = "" if error.__cause__ is None else type(error.__cause__).__name__
            result = _error_result(call, self._truncate(describe(error)), raised=quoted)
            tool = self.registry.get(call.name)
            _trace_refusal(call, tool)
            if isinstance(error, InvalidArguments) and tool is not None and tool.outside and tool.origin:
                result = mark_untrusted(
                    result, tool.origin
                )  # the error quotes the schema, which is third-party text
            self._finished[index] = (
                result if isinstance(error, _PolicyRefusal) else self._withhold(index, result)
            )
            return None

    def _withhold(self, index: int, result: ToolResult) -> ToolResult:
        """Return a result for the model.

        With isolation, untrusted text is withheld: the model reads a reference in place of it.
        """
        if self.isolation is None:
            return result
        call = self.calls[index]
        parts = self._parts.get(call.id, ())
        return self.isolation.withhold(index, call, self.registry.get(call.name), result, parts)

    def _hold_for_approval(self, index: int, request: ApprovalRequired) -> None:
        """Record that the call at `index` awaits the approval `request`.

        The exception's traceback is removed, because it references this batch and its session.
        """
        self.awaiting_approval = {**self.awaiting_approval, index: request.with_traceback(None)}

    def can_start(self, index: int) -> bool:
        """Return True if the call at `index` may run now. The batch is not changed."""
        return not self.is_resolved(index) and self.rejection_of(index) is None

    def rejection_of(self, index: int) -> ToolError | None:
        """Return the error that prevents the call at `index` from running now; None if the call may run.

        The error is an `ApprovalRequired` if the call needs approval.
        """
        try:
            self._admit(index, self.calls[index])
        except ToolError as error:
            return error
        return None

    def _admit(self, index: int, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        """Check if a call may run, and return its tool and validated arguments.

        Raises:
            ApprovalRequired: The call needs approval, or the caller of the turn runs it.
            ToolError: The tool is unknown, the check rejected the call, or the arguments are invalid.
        """
        tool = self.registry.find(call)
        refusal = None if self.check is None else self.check(call, tool)
        if refusal is not None:
            raise ToolError(refusal)
        if self.isolation is None:
            arguments = tool.argument_validator.validate(call.arguments)
            violation = None if self.policy is None else self._violation(call, tool, arguments)
        else:  # the model must not learn from the order of checks if a hidden value fits the schema
            violation = self._violation(call, tool, call.arguments)
            arguments = {} if violation is not None else tool.argument_validator.validate(call.arguments)
        ask = self.required_approval(index) if tool.approval or self.ask is not None else None
        if ask is not None or violation is not None:
            raise _make_approval_request(tool, ask or ApprovalRequest(), violation)
        if tool.is_of_caller:
            raise AskCaller
        return tool, arguments

    def _violation(
        self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any] | str
    ) -> PolicyViolation | None:
        """Check a call against the agent's data policy. Return the violation that an approver must allow; None without one.

        Raises:
            _PolicyRefusal: The policy refuses the call.
        """
        if self.policy is None or call.id in self.grants or isinstance(arguments, str):
            return None
        violation = self.policy(call, tool, arguments)
        if violation is not None and violation.is_refused:
            raise _PolicyRefusal(violation.reason)
        return violation

    def required_approval(self, index: int) -> ApprovalRequest | None:
        """Return the approval request of the call at `index`; None if the call needs no approval or has it already.

        The request is computed once and cached until the approval is granted.
        """
        call = self.calls[index]
        tool = self.registry.get(call.name)
        if tool is None or not (tool.approval or self.ask) or call.id in self.grants:
            return None
        ask = self._required_approvals.get(index) or self._approval_for(call, tool)
        if ask is not None:
            self._required_approvals = {**self._required_approvals, index: ask}
        return ask

    def _approval_for(self, call: ToolCall, tool: Tool) -> ApprovalRequest | None:
        """Return the approval request of the agent's rule for a call, else that of the tool; None if neither requires one."""
        ask = None if self.ask is None else self.ask(call, tool)
        ask = ask if ask is not None else _tool_approval(call, tool)
        if ask is not None and ask.form is not None:
            try:
                form = plain_form(ask.form, owner=f"the approval request of {tool.name!r}")
                ask = attrs.evolve(ask, form=form)
            except ConfigurationError as error:
                raise ToolError(str(error)) from error
        return ask

    async def _run_call(self, index: int, tool: Tool, arguments: dict[str, Any]) -> None:
        """Run one call that passed the checks. Record its result or its request for an approval."""
        call = self.calls[index]
        call_context = self._context_of(call, tool)
        self._started[index] = tool, call_context
        if self.on_start is not None:
            self.on_start(call)
        if tool.hooks:
            _call_hook(tool, "on_start", call)
        active = active_trace.get()
        run = self._run_and_convert if active is None else partial(self._run_traced, active)
        if self.isolation is not None:
            run = partial(self._run_isolated, run)
        try:
            result = await run(call, tool, arguments, call_context)
        except ApprovalRequired as question:
            self._hold_for_approval(index, question)
            return
        finally:
            call_context.report = None  # a thread that runs on after the timeout must not report progress
        if isinstance(call_context.approval, Edit):
            result = attrs.evolve(result, content=_note_edited_arguments(result.content, arguments))
        result = self._label(result, tool, call_context)
        if self.isolation is not None:
            result = self._withhold(index, result)
        self._finished[index] = result
        if self.on_finish is not None:
            self.on_finish(result)
        if tool.hooks:
            _call_hook(tool, "on_success" if result.error is None else "on_error", call, result)

    def _context_of(self, call: ToolCall, tool: Tool) -> ToolContext:
        context = self.context if len(self.calls) == 1 else self.context.copy()
        context.call_id, context.tool_name, context.approval = call.id, call.name, self.grants.get(call.id)
        if not tool.inline:
            context.create_state()
        if tool.calls_tools and self.host is not None:
            context.tools = self.host.nest(call)
        return context

    def _label(self, result: ToolResult, tool: Tool, call_context: ToolContext) -> ToolResult:
        """Return a result with its untrusted sources and its readers. Untrusted text is put between delimiters."""
        origin = call_context.origin
        if tool.outside:
            origin = join_origins(tool.origin or tool.name, origin)
        if origin:
            result = mark_untrusted(result, origin)
        if self.host is not None and (via := _sources_of_call(self.host, call_context)):
            result = attrs.evolve(result, via=join_origins(result.via, via))
        if tool.readers is not None or call_context.readers is not None:
            result = attrs.evolve(result, via=join_origins(result.via, _readers_of(tool, call_context)))
        return result

    async def _run_isolated(
        self,
        run: Callable[..., Awaitable[ToolResult]],
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Any],
        call_context: ToolContext,
    ) -> ToolResult:
        """Run a call, and collect the untrusted sources of the answers that the call reads from other sessions.

        A result with such sources is hidden from the model, even if the arguments of the call are trusted.
        """
        isolation = self.isolation
        assert isolation is not None  # noqa: S101 - checked by the caller
        if isinstance(self.grants.get(call.id), Approve):
            isolation.approve(call)
        outer = running_call.get() if isolation.is_nested else None
        given = join_origins(isolation.sources_of(call.id), isolation.shown_sources)
        sources = CallSources(self.context._source, given, outer=outer)  # noqa: SLF001 - the session of the call
        self._isolated[call.id] = sources
        token = running_call.set(sources)
        try:
            result = await run(call, tool, arguments, call_context)
        finally:
            running_call.reset(token)
            own = self._sources_of_own(call, tool, call_context, reads_text=not tool.calls_tools)
            sources.own_sources = join_origins(own, _nested_sources(call_context))
        if sources.has_stored:
            isolation.note_stored(call.id)
        return attrs.evolve(result, via=sources.answer_sources) if sources.answer_sources else result

    async def _run_traced(
        self,
        active: ActiveTrace,
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Any],
        call_context: ToolContext,
    ) -> ToolResult:
        """Run a call in a tracing span of the trace `active`, and return its result."""
        with _ToolSpan(active, call, tool) as span:
            result = await self._run_and_convert(call, tool, arguments, call_context)
            span.note_result(result, self._label(result, tool, call_context).label)
            return result

    async def _run_and_convert(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], call_context: ToolContext
    ) -> ToolResult:
        """Run a call and return its result. An exception of the tool becomes an error result.

        Raises:
            ApprovalRequired: The tool requested an approval.
        """
        started_at = time.time()  # directly after the begin of the call's span
        media: tuple[Medium, ...] = ()
        try:
            key = canonical_json(arguments) if tool.cache else ""
            text = tool.result_cache.get(key) if key else None
            if text is None:
                execution = (
                    tool.execute(arguments, call_context)
                    if tool.inline and not tool.retries  # it never waits, so it needs no timer
                    else self._run_with_timeout(call, tool, arguments, call_context)
                )
                text, media = self._convert_value(call, tool, await execution, call_context, key)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything; the model reads the error
            error = convert_user_error(raised, "tool", tool.name)
            if (question := _find_approval_request(error)) is not None:
                if (mistake := _validate_approval_request(question)) is None:
                    raise question from None  # noqa: ASYNC104 - `convert_user_error` re-raises cancellations
                error = mistake
            if self.host is not None:
                self.host.report_exception(call, error)
            if tool.hooks:
                _call_hook(tool, "on_exception", call, error)
            is_unknown = isinstance(error, OutcomeUnknown) and tool.effect == "once"
            status: ToolStatus = "outcome_unknown" if is_unknown else "error"
            if len(error_text := describe(error)) > self.max_characters:
                error_text = self._shorten(call, error_text)
            raised_class = _user_exception_name(error)
            return _error_result(call, error_text, status=status, raised=raised_class, started_at=started_at)  # noqa: ASYNC104 - as above
        if len(text) > self.max_characters:
            text = self._shorten(call, text)
        return _success_result(call, text, media, started_at)

    def _convert_value(
        self, call: ToolCall, tool: Tool, value: object, call_context: ToolContext, key: str
    ) -> tuple[str, tuple[Medium, ...]]:
        """Convert a tool's value to the text and the media of the result.

        If `key` is not empty, the text is cached with this key. Media are not cached.
        """
        if Labelled.was_made and contains_labelled(value):
            value = self._take_labels(call, value, call_context)
        if type(value) not in _WITHOUT_MEDIA and has_media(value):
            shown = describe_media(value, call, state=call_context.state, outside=tool.outside)
            if shown.unusable is not None:
                self._log_unusable(call, shown.unusable)
            return shown.text, shown.media
        text, is_json = self._convert_to_text(call, value)
        if tool.process_output is not None:
            text, is_text = self._convert_to_text(call, tool.process_output(text))
            is_json = is_json and is_text
        if key and is_json and len(text) <= self.max_characters and self._is_shareable(call, call_context):
            tool.result_cache.put(key, text)
        return text, ()

    def _is_shareable(self, call: ToolCall, call_context: ToolContext) -> bool:
        """Return True if the cached result of a call may be returned to other sessions.

        This requires that the result depends on no untrusted text, and that no part of it is restricted to some readers.
        """
        running = self._isolated.get(call.id)
        return not (
            call_context.origin
            or call_context.readers is not None
            or call.id in self._parts
            or (self.host is not None and _sources_of_call(self.host, call_context))
            or (running is not None and running.answer_sources)
        )

    def _take_labels(self, call: ToolCall, value: object, call_context: ToolContext) -> object:
        """Return the value of a tool without `Labelled` wrappers, and add the labels of the wrappers to those of the call.

        With isolation, untrusted parts are replaced by references, so that the model can read the rest of the value.
        """
        if isinstance(value, Labelled):
            return self._take_label(call, call_context, value, is_whole=True)
        return replace_labelled(value, partial(self._take_label, call, call_context))

    def _take_label(
        self, call: ToolCall, call_context: ToolContext, part: Labelled, *, is_whole: bool = False
    ) -> object:
        """Return the value of a labelled part, or a reference to it. `is_whole` is True if the part is the whole result."""
        inner = replace_labelled(part.value, partial(self._take_label, call, call_context))
        isolation, readers = self.isolation, part.label.readers
        if not (isolation is None or isolation.is_nested or is_whole or part.label.is_trusted):
            parts = self._parts.setdefault(call.id, [])
            parts.append((inner, text_of(part.label)))
            return f"{isolation.reference_of(self.calls.index(call))}/{len(parts)}"
        if readers is not None:
            known = call_context.readers
            call_context.readers = readers if known is None else readers.intersection(known)
        sources = text_of(Label(part.label.sources))
        call_context.origin = join_origins(call_context.origin, sources)
        return inner

    def _convert_to_text(self, call: ToolCall, value: object) -> tuple[str, bool]:
        """Convert a tool's value to text, and return the text and True.

        If JSON cannot represent the value, return `str(value)` and False: the tool did its work, so this is not an error.
        A coroutine is an error, because its work has not started.
        """
        try:
            return to_text(value), True
        except InvalidToolResult as error:
            if type(value) is types.CoroutineType:
                raise
            self._log_unusable(call, error)
        return fallback_text(value), False

    def _log_unusable(self, call: ToolCall, error: InvalidToolResult) -> None:
        if self.host is not None:
            self.host.log_unserializable(call, error)

    async def _run_with_timeout(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], call_context: ToolContext
    ) -> object:
        """Run a call with retries within the time limit of the tool or the batch.

        Raises:
            ToolTimeout: The call exceeded its time limit.
        """
        seconds = self.timeout if tool.timeout is None else tool.timeout
        with trio.move_on_after(seconds) as scope:
            time_limits.set((TimeLimit(scope),))
            return await _run_with_retries(call, tool, arguments, call_context)
        raise ToolTimeout(tool.name, seconds)

    def _shorten(self, call: ToolCall, text: str) -> str:
        """Shorten a text to `max_characters`. If the batch belongs to a turn, store the full text for `read_result`."""
        if self.host is None:
            return self._truncate(text)
        return self.host.store_long_result(call, text, self.max_characters)

    def _truncate(self, text: str) -> str:
        return truncate(text, self.max_characters)


async def _run_with_retries(
    call: ToolCall, tool: Tool, arguments: Mapping[str, Any], call_context: ToolContext
) -> object:
    """Run a call, and return the tool's value. Retry it after exceptions of the tool's `retry_on` classes, at most `retries` times."""
    attempt = 0
    while True:
        call_context.begin_attempt()
        try:
            return await tool.execute(arguments, call_context)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything
            error = convert_user_error(raised, "tool", tool.name)
        if attempt >= tool.retries or not _is_retryable(error, tool):
            raise error
        _call_hook(tool, "on_retry", call, error)
        await trio.sleep(tool.retry_delay * 2**attempt)
        attempt += 1
        call_context.attempted_before = True


def _sources_of_call(host: BatchTurn, call_context: ToolContext) -> str:
    """Return the untrusted sources of the turn and of the nested calls of a call, without those of its arguments."""
    nested = call_context.tools
    return host.via if nested is None else join_origins(host.via, nested.sources)


def _nested_sources(call_context: ToolContext) -> str:
    """Return the untrusted sources in the results of the nested calls that a call has made."""
    return "" if call_context.tools is None else call_context.tools.sources


def _readers_of(tool: Tool, call_context: ToolContext) -> str:
    """Return the names of the owners that may read the result of a call, as text in the journal's format.

    Return an empty text if all owners may read it.
    """
    declared: Collection[str] | None = (call_context.root_owner,) if tool.readers == "owner" else tool.readers
    given = [frozenset(each) for each in (declared, call_context.readers) if each is not None]
    return text_of_readers(frozenset.intersection(*given)) if given else ""


def _make_approval_request(
    tool: Tool, ask: ApprovalRequest, violation: PolicyViolation | None
) -> ApprovalRequired:
    """Return the exception that requests an approval of a call, as `ask` describes it.

    If a policy violation is the reason, its text and labels are added.
    """
    question = ask.question
    if violation is not None:
        reason = f"{violation.reason[0].upper()}{violation.reason[1:]}."
        question = f"{question or f'May the tool {tool.name!r} run?'} {reason}"
    found = ApprovalRequired(question, form=ask.form, timeout=ask.timeout, again=True, risk=ask.risk)
    if violation is not None:
        found.sources = {name: text_of(label) for name, label in violation.labels.items()}
    return found


def _tool_approval(call: ToolCall, tool: Tool) -> ApprovalRequest | None:
    """Return the approval that the tool's option `approval` requires for a call; None if no approval is required."""
    rule_result = (
        _evaluate_approval_rule(tool.approval, call, tool) if callable(tool.approval) else tool.approval
    )
    if isinstance(rule_result, ApprovalRequest):
        return rule_result
    return ApprovalRequest() if rule_result else None


def _evaluate_approval_rule(rule: ApprovalRule, call: ToolCall, tool: Tool) -> bool | ApprovalRequest:
    """Call a tool's approval rule, and return its answer.

    Raises:
        ToolError: The rule raised an exception.
    """
    try:
        return rule(call)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything
        error = convert_user_error(raised, "approval rule of tool", tool.name)
    raise ToolError(f"the approval rule of this tool failed: {describe(error)}") from error


def _note_edited_arguments(content: str, arguments: Mapping[str, Any]) -> str:
    """Append a note to the text of a result, which says that an approver has changed the arguments of the call."""
    return f"{content}\n[an approver changed the arguments to {to_text(arguments)}]".lstrip("\n")


def _find_approval_request(error: Exception) -> ApprovalRequired | None:
    """Return `error` if it is an approval request, or the first one of an exception group that has only such requests.

    Return None for all other errors.
    """
    found = list(leaves(error))
    first = found[0]
    return (
        first
        if isinstance(first, ApprovalRequired) and all(isinstance(e, ApprovalRequired) for e in found)
        else None
    )


def _validate_approval_request(question: ApprovalRequired) -> ConfigurationError | None:
    """Validate the form of the approval request that a tool raised, and convert it to plain JSON in place.

    Return the error if the request is invalid, else None.
    """
    try:
        fields: Any = {"form": question.form, "timeout": question.timeout, "risk": question.risk}
        made = ApprovalRequest(question.question, **fields)
        question.form = plain_form(made.form, owner="the approval request")
    except ConfigurationError as error:
        return error
    return None


def _is_retryable(error: Exception, tool: Tool) -> bool:
    """Return True if all exceptions in an error are of the tool's `retry_on` classes.

    Invalid arguments and requests for approval are never retried.
    """
    return all(
        isinstance(leaf, tool.retry_on)
        and not isinstance(leaf, InvalidArguments | ApprovalRequired | ThreadPoolExhausted)
        for leaf in leaves(error)
    )


def _success_result(
    call: ToolCall, content: str, media: tuple[Medium, ...] = (), started_at: float = 0.0
) -> ToolResult:
    return make_result(
        id=f"{call.id}/result",  # equal for a call that is repeated after a crash
        call_id=call.id,
        tool_name=call.name,
        content=content,
        media=media,
        native=call.native,
        started_at=started_at,
        ended_at=time.time() if started_at else 0.0,
    )


def _error_result(
    call: ToolCall, error: str, *, status: ToolStatus = "error", raised: str = "", started_at: float = 0.0
) -> ToolResult:
    return ToolResult(
        id=f"{call.id}/result",  # equal for a call that is repeated after a crash
        call_id=call.id,
        tool_name=call.name,
        status=status,
        error=error,
        native=call.native,
        raised=raised,
        started_at=started_at,
        ended_at=time.time() if started_at else 0.0,
    )


def _user_exception_name(error: Exception) -> str:
    """Return the class name of the first exception in an error whose text is not actgent's.

    Return an empty text if actgent defines all exceptions in it.
    """
    for leaf in leaves(error):
        quoted = leaf.__cause__ if isinstance(leaf, InvalidToolResult) else leaf
        if quoted is not None and not isinstance(quoted, ActgentError):
            return type(quoted).__name__
    return ""


def _call_hook(tool: Tool, event: str, call: ToolCall, *details: object) -> None:
    """Call the hook `event`, such as `on_start`, of each of the tool's `hooks`. Exceptions are logged, and never change the result."""
    for hooks in tool.hooks:
        hook = getattr(hooks, event)
        if hook is None:
            continue
        try:
            hook(call, *details)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - a failing hook never changes the result
            convert_user_error(raised, "hook", event)
            logger.warning("the %s hook of tool %r raised %s", event, tool.name, type(raised).__name__)


def _trace_refusal(call: ToolCall, tool: Tool | None) -> None:
    """Record the span of a tool call that was not permitted to run, if the turn has a trace."""
    if (active := active_trace.get()) is not None:
        with _ToolSpan(active, call, tool) as span:
            span.note_refusal()


class _ToolSpan(TracedWork):
    """Tracing span of one tool call."""

    def __init__(self, active: ActiveTrace, call: ToolCall, tool: Tool | None) -> None:
        """Begin the tracing span of a call.

        `tool` is None if the agent does not have the tool. The span then does not contain its name, which is the model's text.
        """
        name = _UNKNOWN_TOOL if tool is None else tool.name
        attributes: dict[str, Attribute] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_CALL: call.id,
        }
        if tool is not None:
            attributes[names.TOOL_TYPE] = "extension" if tool.outside else "function"
            attributes[names.TOOL_EFFECT] = tool.effect
        if active.tracing.has_content:
            if tool is not None:
                attributes |= active.tracing.content(names.TOOL_DESCRIPTION, lambda: tool.description)
            attributes |= active.tracing.content(names.TOOL_ARGUMENTS, lambda: call.arguments)
        links = [active.deciders.get(call.id)]
        super().__init__(active, f"{names.EXECUTE_TOOL} {name}", attributes, links=links)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ApprovalRequired):  # not a failure: the call runs after the approval
            self.facts[names.TOOL_STATUS] = "asked"
            kind = error = trace = None
        super().__exit__(kind, error, trace)

    def note_refusal(self) -> None:
        """Mark the tracing span of a tool call: the call was not permitted to run."""
        self.facts[names.TOOL_STATUS] = self.error = names.REFUSED

    def note_result(self, result: ToolResult, label: Label) -> None:
        """Add the result of a call and its label to the tracing span. A result that is not a success marks the span as failed."""
        self.facts[names.TOOL_STATUS] = result.status
        if not label.is_trusted:
            self.facts[names.LABEL_SOURCES] = tuple(sorted(label.sources))
        if label.readers is not None:
            self.facts[names.LABEL_READERS] = tuple(sorted(label.readers))
        if result.status != "success":
            self.error = "tool"
        if self.tracing.has_content:
            self.facts |= self.tracing.content(names.TOOL_RESULT, lambda: result.text)
