"""Tool calls made from inside a running tool, such as the Python sandbox calling the agent's other tools.

Nested calls follow the same rules as calls of the model: argument validation, modes, approvals, limits and timeouts.
Each result is stored in the session state under the id of the outer call (that of the running tool) and a sequence number. If
the outer call runs again after an approval or a restart, nested calls return their stored results and are not executed twice. So
the outer tool must make the same calls in the same order.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from actgent.approvals import FormAnswer, Grant
from actgent.errors import ApprovalRequired, ToolError
from actgent.messages import ToolCall, ToolResult
from actgent.sessions.session_context import Turn
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.outputs.result_text import canonical_json
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import ToolRegistry
from actgent.tools.untrusted_sources_of_call import running_call

MAX_STORED_CHARS = 4_000_000
"""Maximum characters of nested results that one outer call may store."""
MAX_ARGUMENT_CHARS = 2000
"""Maximum characters of a nested call's arguments in an approval question."""
_KEY = "_nested/"
NewBatch = Callable[[Turn, Sequence[ToolCall]], Batch]


@attrs.define(eq=False, kw_only=True, repr=False)
class NestedCalls(FieldRepr):
    """Executes the nested tool calls of one running tool call (the outer call)."""

    outer: ToolCall
    """The running tool call (outer call) that makes the nested calls."""
    turn: Turn
    registry: ToolRegistry
    new_batch: NewBatch = attrs.field(repr=False)
    """Function that creates the batch that executes a nested call."""
    now: Callable[[], float] = attrs.field(repr=False)
    """Function that returns the current Unix time in seconds."""
    _sources: str = ""
    """Names of the untrusted sources of the results of all finished nested calls, separated by commas."""
    _running: list[Batch] = attrs.field(factory=list, init=False)
    """Batches of the running nested calls."""
    _count: int = 0
    _kept: int = 0

    def __attrs_post_init__(self) -> None:
        mine = f"{_KEY}{self.outer.id}/"
        for key, known in self.turn.session.state_values.items():
            if key.startswith(mine) and isinstance(known, Mapping) and "result" in known:
                self._sources = join_origins(self._sources, known["result"].get("sources", ""))

    @property
    def sources(self) -> str:
        """Untrusted sources of the results of all nested calls so far, including running calls; empty if there are none."""
        sources = self._sources
        for batch in self._running:
            sources = join_origins(sources, batch.running_sources())
        return sources

    def names(self) -> Sequence[str]:
        """Return the names of the tools that nested calls may use: all tools except those that make nested calls themselves."""
        return tuple(tool.name for tool in self.registry if _may_be_called(tool))

    def parameters(self, name: str) -> Sequence[str]:
        """Return the parameter names of a tool, in declaration order."""
        tool = self.registry.get(name)
        return () if tool is None else tuple(tool.parameters.get("properties", ()))

    def first_started_at(self) -> float:
        """Return the Unix time in seconds at which the first run of the outer call called this method.

        The time is stored in the session state, so that a later run of the outer call gets the same time.
        """
        self._delete_completed()
        key = f"{_KEY}{self.outer.id}/0"
        began = self.turn.session.state_values.get(key)
        if began is None:
            began = self.now()
            self.turn.session.state.dispatch([(key, began)])
        known: float = began
        return known

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a nested tool call, or return its stored result from an earlier run of the outer call.

        Raises:
            ApprovalRequired: The call needs an approval. The outer call is suspended, and runs again after the decision.
            LimitReached: The turn has used all tool calls of its limit.
            ToolError: The tool does not exist or may not be nested, or an earlier run made another call at this position.
        """
        self._count += 1
        call = ToolCall(name, dict(arguments), id=f"{self.outer.id}/{self._count}")
        tool = self.registry.get(name)
        if tool is None or not _may_be_called(tool):
            there = sorted(each.name for each in self.registry if _may_be_called(each))
            raise ToolError(
                f"tool {name!r} cannot be called here (available: {', '.join(there[:20]) or 'none'})"
            )
        known = self.turn.session.state_values.get(_KEY + call.id)
        if known is not None and known["call"] != _digest(call):
            raise ToolError(
                f"nested call number {self._count} differs from that of the earlier run, so the run cannot resume"
            )
        if known is None or "result" not in known:
            known = await self._run(call, tool, has_begun=known is not None)
        return _read(call, known["result"])

    # --- one call --------------------------------------------------------------------------

    async def _run(self, call: ToolCall, tool: Tool, *, has_begun: bool) -> Mapping[str, Any]:
        """Execute a nested call, and return its stored form. `has_begun` is True if an earlier run has started this call.

        Raises:
            ApprovalRequired: The call needs an approval.
        """
        turn = self.turn
        if turn.budget is not None and not has_begun:
            turn.budget.take_tool_calls(1, of=call.id, now=trio.current_time())
        batch = self.new_batch(turn, [call])
        if batch.isolation is not None:
            batch.isolation.is_nested = True
        batch.context.outer_sources = join_origins(self.sources, self._sources_of_outer())
        if batch.policy is not None:
            batch.policy = batch.policy.for_nested(batch.context.outer_sources)
        if (grant := self._grant(batch.calls[0])) is not None:
            batch.grants = {call.id: grant}
        if has_begun and tool.effect == "once":
            batch.set_result(0, None)
        elif has_begun:
            batch.maybe_started = frozenset({0})
        checked = self._note_for_audit(batch)
        if tool.effect != "pure" and self.turn.session.log is not None:
            batch.on_stage = partial(self._begin, call, checked)
        self._running.append(batch)
        try:
            await batch.run()
        finally:
            self._running.remove(batch)
            result = batch.results()[0]  # a stopped call may have stored untrusted text in the state
            self._sources = join_origins(self._sources, join_origins(result.origin, result.via))
        if (question := batch.awaiting_approval.get(0)) is not None:
            raise self._question(batch.calls[0], question)
        has_run = tool.effect == "pure" and result.status == "success"
        return self._store(call, result, checked if has_run else {})

    def _note_for_audit(self, batch: Batch) -> Mapping[str, Any]:
        """Return the fields that describe a nested call and its untrusted sources for audits; empty without untrusted sources.

        They are stored with the call, because the journal has no other record of the arguments of a nested call.
        """
        call = batch.calls[0]
        sources = join_origins(self.turn.session.conversation.sources, self.sources)
        sources = join_origins(sources, self._sources_of_outer())
        if batch.isolation is not None:
            for withheld in batch.isolation.unapproved(call).values():
                sources = join_origins(sources, withheld)
        if not sources:
            return {}
        return {"name": call.name, "arguments": call.arguments, "depends_on": sources}

    def _sources_of_outer(self) -> str:
        """Return the untrusted sources in the arguments of the outer tool call and in answers of agents that it has read.

        The text is empty unless the session hides untrusted text from the model.
        """
        running = running_call.get()
        if running is None or running.owner is not self.turn.session:
            return ""
        return join_origins(running.argument_sources, running.answer_sources)

    async def _begin(
        self, call: ToolCall, checked: Mapping[str, Any], batch: Batch, places: Sequence[int]
    ) -> None:
        """Record the start of a nested call with side effects durably, so that a restart does not repeat it silently.

        `checked` has the fields for audits. An interruption of the turn does not cancel the write.
        """
        if self.turn.session.log is None or not all(map(batch.can_start, places)):
            return
        self.turn.session.state.dispatch([(_KEY + call.id, {"call": _digest(call), **checked})])
        self.turn.cover()
        await self.turn.session.log.flush()
        self.turn.expose()

    def _store(self, call: ToolCall, result: ToolResult, checked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store the result of a nested call in the session state, and return the stored value. `checked` has the fields for audits.

        Raises:
            ToolError: The stored results of the outer call exceed 4,000,000 characters.
        """
        self._kept += len(result.content)
        if self._kept > MAX_STORED_CHARS:
            raise ToolError(
                f"the results of the nested calls in one run have more than {MAX_STORED_CHARS:,} characters: make fewer or smaller calls"
            )
        kept = {"content": result.content, "error": result.error, "status": result.status}
        if sources := join_origins(result.origin, result.via):
            kept["sources"] = sources
        known = {"call": _digest(call), **checked, "result": kept}
        self.turn.session.state.dispatch([(_KEY + call.id, known)])
        return known

    def _delete_completed(self) -> None:
        """Delete the stored results of nested calls of earlier outer calls.

        Outer calls run one at a time, so all earlier ones have ended.
        """
        values, mine = self.turn.session.state_values, f"{_KEY}{self.outer.id}/"
        others = [key for key in values if key.startswith(_KEY) and not key.startswith(mine)]
        if left := [key for key in others if values[key] is not None]:
            self.turn.session.state.dispatch([(key, None) for key in left])

    # --- approvals -------------------------------------------------------------------------

    def _question(self, call: ToolCall, question: ApprovalRequired) -> ApprovalRequired:
        """Return the approval question of a nested call as a question of the outer call, with `call_reference` in front."""
        words = f"{call_reference(self.outer.name, call)} {question.question or f'May the tool {call.name!r} run?'}"
        asked = ApprovalRequired(
            words,
            form=question.form,
            timeout=question.timeout,
            again=True,
            risk=question.risk,
            state=question.state,
        )
        asked.sources = question.sources
        return asked

    def _grant(self, call: ToolCall) -> Grant | None:
        """Return the granted approval of the outer call if its question was about this nested call; None otherwise."""
        ledger = self.turn.session.approvals
        verdict = None if ledger is None else ledger.verdict(self.outer.id)
        if verdict is None or (grant := verdict.grant) is None:
            return None
        about = call_reference(self.outer.name, call)
        if not verdict.approval.question.startswith(about):
            return None
        if isinstance(grant, FormAnswer):
            return attrs.evolve(grant, question=verdict.approval.question[len(about) + 1 :])
        return grant


def call_reference(outer: str, call: ToolCall) -> str:
    """Return the beginning of the approval question of a nested call: its number, the outer tool and the arguments."""
    arguments = canonical_json(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    shown = (
        arguments
        if len(arguments) <= MAX_ARGUMENT_CHARS
        else f"{arguments[:MAX_ARGUMENT_CHARS]}... ({_digest(call)})"
    )
    return f"[call {call.id.rpartition('/')[2]} of {outer!r}: {call.name}({shown})]"


@attrs.frozen(repr=False)
class NestedCall(FieldRepr):
    """A recorded nested call (a tool call that another tool call made) that depends on untrusted text."""

    call: ToolCall
    """The nested call; its id begins with the id of the outer call."""
    sources: str
    """Names of the untrusted sources on which the nested call depends, separated by commas."""
    has_effect: bool
    """True if the journal has a record of the start of the call, which it has for tools with an effect."""


def nested_call_of(key: str, value: object) -> NestedCall | None:
    """Return the nested call that is stored under a key of the session state; None if the key has no call with untrusted sources."""
    if not key.startswith(_KEY) or not isinstance(value, Mapping) or "depends_on" not in value:
        return None
    call = ToolCall(value["name"], value["arguments"], id=key.removeprefix(_KEY))
    return NestedCall(call, value["depends_on"], has_effect="result" not in value)


def _may_be_called(tool: Tool) -> bool:
    """Return True if nested calls may use a tool: the tool makes no nested calls, and does not pass calls to other tools."""
    return not (tool.calls_tools or tool.is_gateway)


def _digest(call: ToolCall) -> str:
    arguments = canonical_json(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    return hashlib.blake2s(f"{call.name}\n{arguments}".encode(errors="replace"), digest_size=12).hexdigest()


def _read(call: ToolCall, kept: Mapping[str, Any]) -> ToolResult:
    return ToolResult(
        call_id=call.id,
        tool_name=call.name,
        content=kept["content"],
        error=kept["error"],
        status=kept["status"],
    )
