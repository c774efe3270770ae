"""The tool calls of a turn: run side by side, each with exactly one result in the record."""

from collections.abc import Sequence

import attrs

from actgent.errors import LimitReached
from actgent.messages import Message, Sender, ToolCall
from actgent.tools.base import ToolContext
from actgent.tools.execution import Batch
from actgent.tools.registry import ToolRegistry
from actgent.tools.threads import Threads

from .context import SessionContext, Turn
from .dispatcher import Dispatcher
from .limits import Limits
from .observer import Observer

TOOLS = Sender("tools", "tool")


@attrs.define(eq=False, kw_only=True)
class Calling:
    """Runs the calls of an answer, closes them in the record and tells the handlers."""

    agent: str
    registry: ToolRegistry
    limits: Limits
    threads: Threads
    dispatcher: Dispatcher
    observer: Observer

    async def run(
        self,
        context: SessionContext,
        turn: Turn,
        message: Message,
        calls: Sequence[ToolCall],
        *,
        stage: str | None,
    ) -> Message:
        """Run the calls of the answer to `message`; returns the message with their results, the turn's next."""
        batch = self._batch(context, [call if call.id else context.adopt(call) for call in calls])
        try:
            turn.check()
            self._count_identical(turn, calls)
            turn.exposed = True
            await batch.run()
        finally:
            turn.exposed = False
            results = self._close(context, turn, message, batch, stage)
        turn.check()  # before handlers, who are not to be cancelled
        await self.deliver(context, turn)
        turn.check()
        return results

    async def give_up(self, context: SessionContext, turn: Turn) -> None:
        """Close calls that will not run any more, and tell what was not told yet."""
        if context.open_calls:
            self._close(context, turn, turn.message, self._batch(context, context.open_calls), None)
        await self.deliver(context, turn)

    async def deliver(self, context: SessionContext, turn: Turn) -> None:
        """Hand the results to the handlers, in the order of the calls."""
        while turn.results:
            result = turn.results.pop(0)
            self.observer.take_result(context, result)
            await self.dispatcher.dispatch(context, result)

    def _batch(self, context: SessionContext, calls: Sequence[ToolCall]) -> Batch:
        return Batch(
            calls,
            self.registry,
            context=ToolContext(
                session_id=context.id,
                owner=context.owner.name,
                agent=self.agent,
                state=context.state,
                session=context.session,
                threads=self.threads,
            ),
            timeout=self.limits.tool_timeout,
            max_characters=self.limits.result_characters,
        )

    def _count_identical(self, turn: Turn, calls: Sequence[ToolCall]) -> None:
        """Stop a model that repeats itself before it does so once more."""
        for call in calls:
            last = turn.last_call
            same = last is not None and last.name == call.name and last.arguments == call.arguments
            turn.identical = turn.identical + 1 if same else 1
            turn.last_call = call
            if turn.identical > self.limits.identical_calls:
                raise LimitReached(f"identical calls of {call.name!r} in a row", self.limits.identical_calls)

    def _close(
        self, context: SessionContext, turn: Turn, message: Message, batch: Batch, stage: str | None
    ) -> Message:
        """Write one result for each call into the record, right behind the calls, whatever came of them."""
        results = batch.results()
        closing = message.caused(TOOLS, results, stage=stage)
        context.append(closing)
        context.open_calls = ()
        turn.results.extend(results)
        return closing
