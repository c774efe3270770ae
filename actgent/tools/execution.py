"""Run the tool calls of one answer, in the order of the answer.

Calls run one after the other. Neighbouring calls of tools that may overlap (`Tool.parallel`, by default `effect="pure"`)
run concurrently, and also start in the order of the answer.

A call goes `waiting -> started -> finished`. What a call is told apart by when its batch is stopped:

    waiting     `cancelled`: its tool never ran
    started     `outcome_unknown`, or `cancelled` where its effect is pure or idempotent
    begun       `outcome_unknown`: it may have run before a restart, and has not run again yet
    finished    its result
    asked       `cancelled`, as withdrawn: it waits for a person, and has not run or asked itself
"""

import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import trio

from actgent.approvals import Ask, Edit, Grant
from actgent.errors import (
    ActgentError,
    AskPerson,
    ConfigurationError,
    InvalidArguments,
    NoThread,
    OutcomeUnknown,
    ToolError,
    ToolTimeout,
    UnusableResult,
)
from actgent.messages import Medium, ToolCall, ToolResult, ToolStatus, make_result
from actgent.support.foreign import failure_of, leaves
from actgent.support.logs import logger_of
from actgent.support.tracing import ActiveTrace, active_trace

from .base import DEFAULT_TIMEOUT, AskFor, CallsTools, Tool, ToolContext
from .outputs.media import describe_media, has_media
from .outputs.provenance import from_outside
from .outputs.results import canonical, capped, describe, fallback_text, to_text
from .registry import ToolRegistry
from .schemas import plain_form
from .spans import ToolWork
from .start_order import StartGate, start_gate
from .time_limits import TimeLimit, time_limits

logger = logger_of(__name__)

DEFAULT_MAX_CHARACTERS = 60_000
_NOT_STARTED = "cancelled before it started"
_STOPPED = "cancelled while it ran"
_REFUSED = "it did not run, see the first result of this answer"
_WITHDRAWN = "withdrawn before a person decided: it did not run"
_UNKNOWN = "stopped while it ran: whether it took effect is not known"

NO_GRANTS: Mapping[str, Grant] = MappingProxyType({})
_ONE_STAGE: Sequence[Sequence[int]] = ((0,),)
_NO_ASKS: Mapping[int, Ask] = MappingProxyType({})
_NOTHING_ASKED: Mapping[int, AskPerson] = MappingProxyType({})
Check = Callable[[ToolCall, Tool], str | None]
"""Why a call may not run at this moment, in words for the model; None: it may. A `ToolError` says no, too."""


class BatchHost(typing.Protocol):
    """The turn that a batch belongs to, as far as its calls need it."""

    def keep(self, call: ToolCall, text: str, limit: int) -> str:
        """Keep a result that is too long elsewhere, and return what the model is shown."""
        ...

    def nest(self, call: ToolCall) -> CallsTools:
        """Make what a running call calls other tools by."""
        ...

    def tell_raised(self, call: ToolCall, error: Exception) -> None:
        """Hear what a tool raised, with its traceback; not of questions to people."""
        ...

    def log_unusable(self, call: ToolCall, error: UnusableResult) -> None:
        """Log that the value of a tool has no JSON form, with the reason. The model gets `str(value)`."""
        ...


@attrs.define(eq=False)
class Batch:
    """The calls of one answer. `run` runs them once; `results` tells at any moment what came of them."""

    calls: Sequence[ToolCall]
    registry: ToolRegistry
    context: ToolContext = attrs.field(factory=ToolContext, kw_only=True)
    """What the tools are told; the call's id and effect key are filled in for each."""
    check: Check | None = attrs.field(default=None, kw_only=True)
    """Asked when a call is about to start, after the calls that it has to wait for."""
    ask: Callable[[ToolCall, Tool], Ask | None] | None = attrs.field(default=None, kw_only=True)
    """True if a person has to decide first, besides what the tool says; such a call ends up in `asked`."""
    grants: Mapping[str, Grant] = attrs.field(default=NO_GRANTS, kw_only=True)
    """By their calls' ids what persons said who let them run."""
    timeout: float = attrs.field(default=DEFAULT_TIMEOUT, kw_only=True)
    """Seconds, for tools that say nothing themselves."""
    max_characters: int = attrs.field(default=DEFAULT_MAX_CHARACTERS, kw_only=True)
    """The longest result; longer ones are cut, with a notice."""
    host: BatchHost | None = attrs.field(default=None, kw_only=True)
    """The turn in which they run; None: the rest of longer results is lost, and no call can call other tools."""
    on_stage: "Callable[[Batch, Sequence[int]], Awaitable[object]] | None" = attrs.field(
        default=None, kw_only=True
    )
    """Awaited with the batch and the indexes of the calls of one stage, before the first of these calls starts."""
    is_parallel: bool = attrs.field(default=False, kw_only=True)
    """True if calls of tools with `parallel=None` may overlap, whatever their effect."""
    on_start: Callable[[ToolCall], object] | None = attrs.field(default=None, kw_only=True)
    """Hears of each call that runs."""
    on_finish: Callable[[ToolResult], object] | None = attrs.field(default=None, kw_only=True)
    """Told of each result as soon as it is there."""
    begun: frozenset[int] = attrs.field(default=frozenset(), init=False, repr=False)
    """The places of calls that may have run before a restart, and are to run again if they still may."""
    _started: dict[int, tuple[Tool, ToolContext]] = attrs.field(factory=dict, init=False, repr=False)
    _finished: dict[int, ToolResult] = attrs.field(factory=dict, init=False, repr=False)
    asked: Mapping[int, AskPerson] = attrs.field(default=_NOTHING_ASKED, init=False, repr=False)
    """By their places the calls that wait for a person."""
    is_refused: bool = attrs.field(default=False, init=False)
    """True if the answer as a whole was refused."""
    _asks: Mapping[int, Ask] = attrs.field(default=_NO_ASKS, init=False, repr=False)

    # --- what came of them -----------------------------------------------------------------

    def results(self) -> tuple[ToolResult, ...]:
        """Exactly one result for each call, in the order of the calls; right at any moment, and after cancellation."""
        finished = self._finished
        return tuple([finished.get(place) or self._unfinished(place) for place in range(len(self.calls))])

    def _unfinished(self, place: int) -> ToolResult:
        call = self.calls[place]
        if place in self.asked:
            return _failed(call, _WITHDRAWN, status="cancelled")
        tool, told = self._started.get(place, (None, None))
        if (told is None or told.waits_to_begin) and place not in self.begun:
            return _failed(call, _NOT_STARTED, status="cancelled")
        if tool is None or tool.effect == "once":
            return _failed(call, _UNKNOWN, status="outcome_unknown")
        return _failed(call, _STOPPED, status="cancelled")

    def set_result(self, place: int, result: ToolResult | None) -> None:
        """A call that ran before a restart: its result, or None where it may have run and left none."""
        call = self.calls[place]
        self._finished[place] = result or _failed(call, _UNKNOWN, status="outcome_unknown")

    def answer(self, place: int, *, content: str = "", error: str | None = None) -> None:
        """Somebody else says what came of a call, which does not run."""
        call = self.calls[place]
        if error is not None:
            self._finished[place] = _failed(call, self._capped(error))
            return
        self._finished[place] = _succeeded(call, self._capped(content))

    def refuse(self, reason: str) -> None:
        """None of the calls runs: the first tells why."""
        self.is_refused = True
        for place, call in enumerate(self.calls):
            self._finished[place] = _failed(call, reason if place == 0 else _REFUSED)

    def is_settled(self, place: int) -> bool:
        """True for a call that will not run again: it has its result, or waits for a person."""
        return place in self._finished or place in self.asked

    def finished(self) -> Sequence[ToolResult]:
        """The results that are there."""
        return tuple(self._finished.values())

    def count_left(self) -> int:
        """Count the calls that have no result yet."""
        return len(self.calls) - len(self._finished)

    def may_run_again(self) -> bool:
        """Return True if nothing happens twice where the calls that have no result yet run again from their beginnings."""
        left = (call for place, call in enumerate(self.calls) if place not in self._finished)
        tools = [self.registry.get(call.name) for call in left]
        return all(tool is not None and tool.effect != "once" and not tool.calls_tools for tool in tools)

    # --- running them ----------------------------------------------------------------------

    async def run(self) -> None:
        """Run all calls in the order of the answer, stage by stage. A failed call does not stop the later calls.

        The calls of a stage are checked before its first call starts. A batch of inline tools makes no checkpoint.
        A call that waits for an approval does not delay later calls, except across a tool marked `alone`.
        """
        was_alone = False
        for stage in self._stages():
            is_alone = self._is_alone(stage[0])
            if self.asked and (is_alone or was_alone):
                return
            if self.on_stage is not None:
                await self.on_stage(self, stage)
            await self._run_stage(stage)
            was_alone = is_alone

    async def _run_stage(self, stage: Sequence[int]) -> None:
        waiting: list[tuple[int, Tool, dict[str, Any]]] = []
        for place in stage:
            await trio.lowlevel.checkpoint_if_cancelled()
            admitted = self._admitted(place)
            if admitted is None:
                continue
            if not waiting and _is_immediate(admitted[0]):
                await self._run_call(place, *admitted)
            else:
                waiting.append((place, *admitted))
        if len(waiting) == 1:
            await self._run_call(*waiting[0])
        elif waiting:
            await self._run_concurrently(waiting)

    async def _run_concurrently(self, calls: Sequence[tuple[int, Tool, dict[str, Any]]]) -> None:
        """Run calls in one task each. Each task lets the next one start, since trio starts tasks in random order."""
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
        await gate.wait()
        start_gate.set(next_gate)
        next_gate.open()
        await self._run_call(*call)

    def _stages(self) -> Iterable[Sequence[int]]:
        """Return the indexes of the calls in stages: calls of one stage may overlap, stages run one after the other."""
        return _ONE_STAGE if len(self.calls) == 1 else self._group_calls()

    def _group_calls(self) -> Iterator[Sequence[int]]:
        overlapping: list[int] = []
        for place, call in enumerate(self.calls):
            if self._may_overlap(call):
                overlapping.append(place)
                continue
            if overlapping:
                yield overlapping
                overlapping = []
            yield (place,)
        if overlapping:
            yield overlapping

    def _may_overlap(self, call: ToolCall) -> bool:
        tool = self.registry.get(call.name)
        if tool is None or tool.alone:
            return tool is None  # the call of an unknown tool only makes an error result
        return self.is_parallel or tool.effect == "pure" if tool.parallel is None else tool.parallel

    def _is_alone(self, place: int) -> bool:
        tool = self.registry.get(self.calls[place].name)
        return tool is not None and tool.alone

    def _admitted(self, place: int) -> tuple[Tool, dict[str, Any]] | None:
        """The tool and the arguments of a call that may run; None: it may not, and has its result."""
        if self.is_settled(place):  # by what happened before
            return None
        call = self.calls[place]
        if place in self.begun and not self.would_start(place):
            self.set_result(place, None)  # "it may not run" would be read as "it never ran"
            return None
        try:
            return self._admit(place, call)
        except AskPerson as question:
            self._ask(place, question)
            return None
        except ToolError as error:
            quoted = "" if error.__cause__ is None else type(error.__cause__).__name__
            result = _failed(call, self._capped(describe(error)), raised=quoted)
            tool = self.registry.get(call.name)
            if isinstance(error, InvalidArguments) and tool is not None and tool.outside and tool.origin:
                result = from_outside(
                    result, tool.origin
                )  # the text quotes the schema, which a stranger wrote
            self._finished[place] = result
            return None

    def _ask(self, place: int, question: AskPerson) -> None:
        """Keep what a call asks, without where it was raised: that knows this batch, and with it the session."""
        self.asked = {**self.asked, place: question.with_traceback(None)}

    def would_start(self, place: int) -> bool:
        """Return True if a call may run as things are now; changes nothing."""
        return not self.is_settled(place) and self.obstacle(place) is None

    def obstacle(self, place: int) -> ToolError | None:
        """Return the reason that keeps a call from running now; `AskPerson`: a person has to allow it first."""
        try:
            self._admit(place, self.calls[place])
        except ToolError as error:
            return error
        return None

    def _admit(self, place: int, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        tool = self.registry.find(call)
        refusal = None if self.check is None else self.check(call, tool)
        if refusal is not None:
            raise ToolError(refusal)
        arguments = tool.argument_validator.validate(call.arguments)
        if (tool.approval or self.ask is not None) and (ask := self.needs_person(place)) is not None:
            raise AskPerson(ask.question, form=ask.form, timeout=ask.timeout, again=True, risk=ask.risk)
        return tool, arguments

    def needs_person(self, place: int) -> Ask | None:
        """Return True if a person has to allow a call before it runs; once needed, always until it is granted."""
        call = self.calls[place]
        tool = self.registry.get(call.name)
        if tool is None or not (tool.approval or self.ask) or call.id in self.grants:
            return None
        ask = self._asks.get(place) or self._question(call, tool)
        if ask is not None:
            self._asks = {**self._asks, place: ask}
        return ask

    def _question(self, call: ToolCall, tool: Tool) -> Ask | None:
        ask = None if self.ask is None else self.ask(call, tool)
        ask = ask if ask is not None else _own_question(call, tool)
        if ask is not None and ask.form is not None:
            try:
                form = plain_form(ask.form, owner=f"the question about {tool.name!r}")
                ask = attrs.evolve(ask, form=form)
            except ConfigurationError as error:
                raise ToolError(str(error)) from error
        return ask

    async def _run_call(self, place: int, tool: Tool, arguments: dict[str, Any]) -> None:
        call = self.calls[place]
        grant = self.grants.get(call.id) if self.grants else None
        told = self.context.of_call(call, grant, is_inline=tool.inline, is_only=len(self.calls) == 1)
        if tool.calls_tools and self.host is not None:
            told.tools = self.host.nest(call)
        self._started[place] = tool, told
        if self.on_start is not None:
            self.on_start(call)
        if tool.hooks:
            _notify(tool, "on_start", call)
        try:
            if (active := active_trace.get()) is None:
                result = await self._outcome(call, tool, arguments, told)
            else:
                result = await self._outcome_as_span(active, call, tool, arguments, told)
        except AskPerson as question:
            self._ask(place, question)
            return
        finally:
            told.report = None  # a thread that goes on after its time has nothing more to tell
        if origin := (tool.origin or tool.name) if tool.outside else told.origin:
            result = from_outside(result, origin)
        if self.grants and isinstance(self.grants.get(call.id), Edit):
            result = attrs.evolve(result, content=_with_arguments(result.content, arguments))
        self._finished[place] = result
        if self.on_finish is not None:
            self.on_finish(result)
        if tool.hooks:
            _notify(tool, "on_success" if result.error is None else "on_error", call, result)

    async def _outcome_as_span(
        self,
        active: ActiveTrace,
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Any],
        told: ToolContext,
    ) -> ToolResult:
        with ToolWork(active, call, tool) as work:
            result = await self._outcome(call, tool, arguments, told)
            work.note_result(result)
            return result

    async def _outcome(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], told: ToolContext
    ) -> ToolResult:
        try:
            text, media = await self._written(call, tool, arguments, told)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code; the model reads what went wrong
            error = failure_of(raised, "tool", tool.name)
            if (question := _question_in(error)) is not None:
                if (mistake := _mistake_in(question)) is None:
                    raise question from None  # noqa: ASYNC104 - a cancellation is no failure
                error = mistake
            self._tell_raised(call, tool, error)
            is_unknown = isinstance(error, OutcomeUnknown) and tool.effect == "once"
            status: ToolStatus = "outcome_unknown" if is_unknown else "error"
            words = self._shortened(call, describe(error))
            return _failed(call, words, status=status, raised=_foreign_class(error))  # noqa: ASYNC104 - as above
        result = _succeeded(call, self._shortened(call, text))
        return attrs.evolve(result, media=media) if media else result

    def _tell_raised(self, call: ToolCall, tool: Tool, error: Exception) -> None:
        if self.host is not None:
            self.host.tell_raised(call, error)
        if tool.hooks:
            _notify(tool, "on_exception", call, error)

    async def _written(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], told: ToolContext
    ) -> tuple[str, tuple[Medium, ...]]:
        """Return what a call returns in words, and the pictures and files beside them, which are not cached."""
        key = canonical(arguments) if tool.cache else ""
        if key and (cached := tool.result_cache.get(key)) is not None:
            return cached, ()
        begun = (
            tool.execute(arguments, told)
            if _is_immediate(tool)
            else self._in_time(call, tool, arguments, told)
        )
        value = await begun
        if type(value) is not str and has_media(value):
            shown = describe_media(value, call, state=told.state, outside=tool.outside)
            if shown.unusable is not None:
                self._log_unusable(call, shown.unusable)
            return shown.text, shown.media
        text, is_json = self._text_of(call, value)
        if tool.process_output is not None:
            text, is_text = self._text_of(call, tool.process_output(text))
            is_json = is_json and is_text
        if key and is_json and len(text) <= self.max_characters:
            tool.result_cache.put(key, text)
        return text, ()

    def _text_of(self, call: ToolCall, value: object) -> tuple[str, bool]:
        """Return the text of a tool's value, and False if the value has no JSON form; the text is then `str(value)`.

        The tool did its work, so its result is no error. A coroutine is one: its work has not begun.
        """
        try:
            return to_text(value), True
        except UnusableResult as error:
            if type(value) is types.CoroutineType:
                raise
            self._log_unusable(call, error)
        return fallback_text(value), False

    def _log_unusable(self, call: ToolCall, error: UnusableResult) -> None:
        if self.host is not None:
            self.host.log_unusable(call, error)

    async def _in_time(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], told: ToolContext
    ) -> object:
        seconds = self.timeout if tool.timeout is None else tool.timeout
        with trio.move_on_after(seconds) as scope:
            time_limits.set((TimeLimit(scope),))
            return await _attempts(call, tool, arguments, told)
        raise ToolTimeout(tool.name, seconds)

    def _shortened(self, call: ToolCall, text: str) -> str:
        """The beginning of a text that is too long for the model; the rest is kept, where there is a place for it."""
        if len(text) <= self.max_characters:
            return text
        return self._capped(text) if self.host is None else self.host.keep(call, text, self.max_characters)

    def _capped(self, text: str) -> str:
        return capped(text, self.max_characters)


async def _attempts(call: ToolCall, tool: Tool, arguments: Mapping[str, Any], told: ToolContext) -> object:
    attempt = 0
    while True:
        told.begin_attempt()
        try:
            return await tool.execute(arguments, told)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "tool", tool.name)
        if attempt >= tool.retries or not _is_retryable(error, tool):
            raise error
        _notify(tool, "on_retry", call, error)
        await trio.sleep(tool.retry_delay * 2**attempt)
        attempt += 1
        told.has_begun = True


def _own_question(call: ToolCall, tool: Tool) -> Ask | None:
    """Return what a tool itself wants a person to be asked before a call of it runs."""
    wanted = _wanted(tool.approval, call, tool) if callable(tool.approval) else tool.approval
    if isinstance(wanted, Ask):
        return wanted
    return Ask() if wanted else None


def _wanted(rule: AskFor, call: ToolCall, tool: Tool) -> bool | Ask:
    try:
        return rule(call)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
        error = failure_of(raised, "approval rule of tool", tool.name)
    raise ToolError(f"whether a person has to approve this call is not known: {describe(error)}") from error


def _is_immediate(tool: Tool) -> bool:
    """Return True if a call ends without waiting for anything, so that it needs neither task nor timer."""
    return tool.inline and not tool.retries


def _with_arguments(content: str, arguments: Mapping[str, Any]) -> str:
    """Tell the model that its call ran with other arguments."""
    return f"{content}\n[a person changed the arguments to {to_text(arguments)}]".lstrip("\n")


def _question_in(error: Exception) -> AskPerson | None:
    """The question that a tool asked, also out of a nursery; None where anything else went wrong."""
    found = list(leaves(error))
    first = found[0]
    return first if isinstance(first, AskPerson) and all(isinstance(e, AskPerson) for e in found) else None


def _mistake_in(question: AskPerson) -> ConfigurationError | None:
    """Make a tool's question one that people can be asked; what is wrong with it is the result of the call."""
    try:
        made = Ask(question.question, form=question.form, timeout=question.timeout, risk=question.risk)  # type: ignore[arg-type] # it checks
        question.form = plain_form(made.form, owner="its question")
    except ConfigurationError as error:
        return error
    return None


def _is_retryable(error: Exception, tool: Tool) -> bool:
    """Return True if the tool declared it; of a group, all that is in it."""
    return all(
        isinstance(leaf, tool.retry_on) and not isinstance(leaf, InvalidArguments | AskPerson | NoThread)
        for leaf in leaves(error)
    )


def _succeeded(call: ToolCall, content: str) -> ToolResult:
    return make_result(
        id=_result_id(call), call_id=call.id, tool_name=call.name, content=content, native=call.native
    )


def _failed(call: ToolCall, error: str, *, status: ToolStatus = "error", raised: str = "") -> ToolResult:
    return ToolResult(
        id=_result_id(call),
        call_id=call.id,
        tool_name=call.name,
        status=status,
        error=error,
        native=call.native,
        raised=raised,
    )


def _foreign_class(error: Exception) -> str:
    """The class of the first foreign exception whose words a failure has; empty if all words are actgent's or a `ToolError`'s."""
    for leaf in leaves(error):
        quoted = leaf.__cause__ if isinstance(leaf, UnusableResult) else leaf
        if quoted is not None and not isinstance(quoted, ActgentError):
            return type(quoted).__name__
    return ""


def _result_id(call: ToolCall) -> str:
    """Follows from the call, so that a repetition after a crash has the same."""
    return f"{call.id}/result"


def _notify(tool: Tool, event: str, call: ToolCall, *details: object) -> None:
    for hooks in tool.hooks:
        hook = getattr(hooks, event)
        if hook is None:
            continue
        try:
            hook(call, *details)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - a watcher never changes the outcome
            failure_of(raised, "hook", event)
            logger.warning("the %s hook of tool %r raised %s", event, tool.name, type(raised).__name__)
