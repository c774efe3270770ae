"""`NestedCalls`: the calls that one tool makes of the others of its agent while it runs, such as code in a sandbox.

Each is in all respects one of the tool itself: arguments, modes, approvals, limits and timeouts. What came of each is kept
in the session's state, and so in its journal, by the id of the call that runs and a number. When that call runs again,
because a person had to be asked or the process ended, it takes the results that are there, and its next call is a new one:
nothing happens twice. So the tool has to make the same calls again, in the same order.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from actgent.approvals import FormAnswer, Grant
from actgent.errors import AskPerson, ToolError
from actgent.messages import ToolCall, ToolResult
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.tools.base import Tool
from actgent.tools.execution import Batch
from actgent.tools.outputs.results import canonical
from actgent.tools.registry import ToolRegistry

MOST = 4_000_000
"""Characters of the results that one call keeps."""
SHOWN = 2000
"""Characters of a call's arguments that a person reads who is asked about it."""
_KEY = "_nested/"
NewBatch = Callable[[SessionContext, Turn, Sequence[ToolCall]], Batch]


@attrs.define(eq=False, kw_only=True)
class NestedCalls:
    """What a running call is given to call others by."""

    outer: ToolCall
    """The call that runs."""
    context: SessionContext
    turn: Turn
    registry: ToolRegistry
    new_batch: NewBatch = attrs.field(repr=False)
    """Makes a batch of calls as an answer's are made."""
    now: Callable[[], float] = attrs.field(repr=False)
    """Unix time in seconds."""
    _count: int = 0
    _kept: int = 0

    def names(self) -> Sequence[str]:
        """The names of the tools that may be called: all but those that call others themselves."""
        return tuple(tool.name for tool in self.registry if _may_be_called(tool))

    def parameters(self, name: str) -> Sequence[str]:
        """The names of a tool's parameters, in their order."""
        tool = self.registry.get(name)
        return () if tool is None else tuple(tool.parameters.get("properties", ()))

    def begun_at(self) -> float:
        """Unix time in seconds at which the call ran first, the same whenever it runs again."""
        self._forget_others()
        key = f"{_KEY}{self.outer.id}/0"
        began = self.context.state.get(key)
        if began is None:
            began = self.now()
            self.context.state.dispatch([(key, began)])
        known: float = began
        return known

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a call, or take what came of it before.

        Raises:
            AskPerson: a person has to decide first; the call that runs is to run again then, and comes here again.
            LimitReached: the turn may not call any more tools.
            ToolError: there is no such tool to be called, or another call was made here before.
        """
        self._count += 1
        call = ToolCall(name, dict(arguments), id=f"{self.outer.id}/{self._count}")
        tool = self.registry.get(name)
        if tool is None or not _may_be_called(tool):
            there = sorted(each.name for each in self.registry if _may_be_called(each))
            raise ToolError(
                f"there is no tool {name!r} to be called here (there are: {', '.join(there[:20]) or 'none'})"
            )
        known = self.context.state.get(_KEY + call.id)
        if known is not None and known["call"] != _digest(call):
            raise ToolError(f"call {self._count} was another one when this ran before, so it cannot go on")
        if known is None or "result" not in known:
            known = await self._run(call, tool, has_begun=known is not None)
        return _read(call, known["result"])

    # --- one call --------------------------------------------------------------------------

    async def _run(self, call: ToolCall, tool: Tool, *, has_begun: bool) -> Mapping[str, Any]:
        turn = self.turn
        if turn.budget is not None and not has_begun:
            turn.budget.take_tool_calls(1, of=call.id, now=trio.current_time())
        batch = self.new_batch(self.context, turn, [call])
        if (grant := self._grant(call)) is not None:
            batch.grants = {call.id: grant}
        if has_begun and tool.effect == "once":
            batch.set_result(0, None)
        elif has_begun:
            batch.begun = frozenset({0})
        if tool.effect != "pure" and self.context.log is not None:
            batch.on_stage = partial(self._begin, call)
        await batch.run()
        if (question := batch.asked.get(0)) is not None:
            raise self._question(call, question)
        return self._keep(call, batch.results()[0])

    async def _begin(self, call: ToolCall, batch: Batch, places: Sequence[int]) -> None:
        """Write that a call is about to start whose effect a restart has to know of; nothing cuts the write."""
        if self.context.log is None or not all(map(batch.would_start, places)):
            return
        self.context.state.dispatch([(_KEY + call.id, {"call": _digest(call)})])
        self.turn.control.cover()
        await self.context.log.flush()
        self.turn.control.expose()

    def _keep(self, call: ToolCall, result: ToolResult) -> Mapping[str, Any]:
        """Keep what came of a call.

        Raises:
            ToolError: the calls before it have brought too much.
        """
        self._kept += len(result.content)
        if self._kept > MOST:
            raise ToolError(f"the results of the calls in one run have more than {MOST:,} characters")
        known = {
            "call": _digest(call),
            "result": {"content": result.content, "error": result.error, "status": result.status},
        }
        self.context.state.dispatch([(_KEY + call.id, known)])
        return known

    def _forget_others(self) -> None:
        """Forget what calls kept that have their results since."""
        state, mine = self.context.state, f"{_KEY}{self.outer.id}/"
        others = [key for key in state if key.startswith(_KEY) and not key.startswith(mine)]
        if left := [key for key in others if state[key] is not None]:
            state.dispatch([(key, None) for key in left])

    # --- people ----------------------------------------------------------------------------

    def _question(self, call: ToolCall, question: AskPerson) -> AskPerson:
        words = f"{self._asked_about(call)} {question.question or f'May the tool {call.name!r} run?'}"
        return AskPerson(words, form=question.form, timeout=question.timeout, again=True, risk=question.risk)

    def _asked_about(self, call: ToolCall) -> str:
        arguments = canonical(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
        shown = arguments if len(arguments) <= SHOWN else f"{arguments[:SHOWN]}... ({_digest(call)})"
        return f"[call {call.id.rpartition('/')[2]} of {self.outer.name!r}: {call.name}({shown})]"

    def _grant(self, call: ToolCall) -> Grant | None:
        """The decision of a person about this very call."""
        ledger = self.context.approvals
        verdict = None if ledger is None else ledger.verdict(self.outer.id)
        if verdict is None or (grant := verdict.grant) is None:
            return None
        about = self._asked_about(call)
        if not verdict.approval.question.startswith(about):
            return None
        if isinstance(grant, FormAnswer):
            return attrs.evolve(grant, question=verdict.approval.question[len(about) + 1 :])
        return grant


def _may_be_called(tool: Tool) -> bool:
    return not (tool.calls_tools or tool.is_gateway)


def _digest(call: ToolCall) -> str:
    arguments = canonical(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    return hashlib.blake2s(f"{call.name}\n{arguments}".encode(errors="replace"), digest_size=12).hexdigest()


def _read(call: ToolCall, kept: Mapping[str, Any]) -> ToolResult:
    return ToolResult(
        call_id=call.id,
        tool_name=call.name,
        content=kept["content"],
        error=kept["error"],
        status=kept["status"],
    )
