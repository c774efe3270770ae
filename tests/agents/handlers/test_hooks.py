"""Hooks around the turn: context for one call, and listeners in their order."""

import trio

from actgent import BareAgent, Failure, ScriptedLLM, Sender, ToolCall, tool


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def said(chat):
    return [getattr(part, "text", "") for message in chat.messages for part in message.parts]


async def test_context_is_part_of_one_request_only():
    """The return values of pre-processors are at the end of that request; later requests and the record do not have them."""
    llm = ScriptedLLM([ToolCall("add", {"a": 2, "b": 3}), "five", "bye"])
    agent = BareAgent("x", llm=llm, tools=[add])

    @agent.on_query
    def look_up(message):
        return f"looked up {message.text}" if "2" in message.text else None

    @agent.on_query
    async def owner(message, session):
        await trio.lowlevel.checkpoint()
        return f"asked by {session.owner.name}" if "2" in message.text else ""

    async with agent:
        session = await agent.create_session("ada")
        await agent.run("2 + 3", session=session)
        await agent.run("thanks", session=session)
    first, second, third = llm.chats
    assert said(first) == ["2 + 3", "Context: looked up 2 + 3\n\nasked by ada"]
    assert not any("looked up" in text for text in said(second) + said(third))
    assert not any("looked up" in message.text for message in session.history)
    assert first.system == third.system


async def test_pre_processors_get_user_messages_only():
    """A message of the kind system is not changed."""
    llm = ScriptedLLM(lambda _: "ok")
    agent = BareAgent("x", llm=llm)
    texts = []
    agent.on_query(lambda message: texts.append(message.text))
    async with agent:
        session = await agent.create_session("ada")
        await session.chat("tick", Sender("clock", "system"))
        await session.chat("hello")
        await session.wait_idle()
    assert texts == ["hello"]


async def test_retry_has_the_same_context():
    """A retry answers the same query."""
    llm = ScriptedLLM(["", "ok"])
    agent = BareAgent("x", llm=llm)
    agent.on_query(lambda _: "it rains")
    async with agent:
        await agent.run("weather?")
    assert all("Context: it rains" in said(chat)[-1] for chat in llm.chats)


async def test_a_failing_pre_processor_is_reported_and_the_next_runs(listen):
    """A pre-processor that raises or times out is a handler failure. The answer is delivered nevertheless."""
    llm = ScriptedLLM(["ok"])
    agent = BareAgent("x", llm=llm, handler_timeout=0.01)
    agent.on_query(lambda _: 1 / 0)

    @agent.on_query
    async def slow(message):
        await trio.sleep_forever()

    agent.on_query(lambda _: "third")
    async with agent:
        session = await agent.create_session("ada")
        received = listen(session)
        await session.chat("hi")
        await session.wait_idle()
    assert [failure.kind for failure in received if isinstance(failure, Failure)] == ["handler", "handler"]
    assert said(llm.chats[0])[-1] == "Context: third"
    assert str(received[-1]) == "ok"


async def test_message_hooks_run_by_priority_despite_errors(listen):
    """Hooks receive messages of users, models and tools, the lowest priority value first, hooks without a priority last."""
    agent = BareAgent("x", llm=ScriptedLLM([ToolCall("add", {"a": 2, "b": 3}), "five"]), tools=[add])
    received = []
    agent.on_message(lambda message: received.append(("last", message.sender.kind)))
    agent.on_message(lambda _, session: received.append(("second", session.owner.name)), priority=2)

    @agent.on_message
    def broken(message):
        raise ValueError("no")

    async def first(message):
        await trio.lowlevel.checkpoint()
        received.append(("first", message.sender.kind))

    agent.on_message(first, priority=-1)
    async with agent:
        session = await agent.create_session("ada")
        failures = listen(session)
        await session.chat("2 + 3")
        await session.wait_idle()
    kinds = ["user", "assistant", "tool", "assistant"]
    assert received == [
        entry for kind in kinds for entry in (("first", kind), ("second", "ada"), ("last", kind))
    ]
    assert sum(isinstance(failure, Failure) for failure in failures) == 4


async def test_a_removed_hook_is_not_called():
    """`remove_hook` takes away hooks of both kinds, also while the agent runs."""
    agent = BareAgent("x", llm=ScriptedLLM(lambda _: "ok"))
    received = []
    agent.on_query(received.append)
    agent.on_message(received.append)
    async with agent:
        await agent.run("1")
        before = len(received)
        agent.remove_hook(received.append)
        await agent.run("2")
    assert len(received) == before == 3


async def test_a_failed_turn_reaches_handlers(listen):
    """Listeners receive the records of a failed turn."""
    agent = BareAgent(
        "x", llm=ScriptedLLM([ToolCall("add", {"a": 1, "b": 1}), RuntimeError("down")]), tools=[add]
    )
    received = []
    agent.on_message(lambda message: received.append(message.sender.kind))
    async with agent:
        session = await agent.create_session("ada")
        listen(session)
        await session.chat("hi")
        await session.wait_idle()
    assert received == ["user", "assistant", "tool"]
