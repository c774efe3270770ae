"""`triggerConversationHandlers(response)`, `triggerToolCallsHandlers(result)` and similar methods call the handlers of a session directly.

Document: ReAct Message Flow, Handler Selection.

Differs: One method serves all kinds, because the type of the value selects the handlers. Write `await
session.inject(Reply(text=...))`, or pass a `ToolResult`, `Event` or `Failure`.
"""

import trio

from actgent import BareAgent, Event, Failure, Reply, ScriptedLLM, ToolResult


async def main() -> None:
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        called = []
        session.on_conversation(lambda reply: called.append(("conversation", str(reply))))
        session.on_tool_result(lambda result: called.append(("tool", result.content)))
        session.on_event(lambda event: called.append(("event", event.name)))
        session.on_exception(lambda failure: called.append(("exception", failure.kind)))
        await session.inject(Reply(text="Hello"))
        await session.inject(ToolResult(call_id="1", tool_name="search", content="/files"))
        await session.inject(Event(name="mood", data={"level": 3}))
        await session.inject(Failure(kind="model", error=ValueError("bad"), message_id="m"))
        assert session.history == ()
    kinds = [("conversation", "Hello"), ("tool", "/files"), ("event", "mood"), ("exception", "model")]
    assert called == kinds, called


trio.run(main)
