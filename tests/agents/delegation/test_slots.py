"""A turn that waits for another turn lends its running slot."""

import trio

from actgent import BareAgent, Event, NotRunning, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.protocols.protocol_interface import Protocol


async def test_an_agent_may_ask_itself_with_one_slot(autojump_clock):
    """A tool that runs the same agent does not wait for the slot that its own turn holds."""
    depth = ToolCall("deeper", {})
    script = [depth, depth, "bottom", "middle", "top"]

    @tool
    async def deeper() -> str:
        """Ask the same agent again."""
        return (await agent.run("deeper")).text

    agent = BareAgent("a", llm=ScriptedLLM(script), tools=[deeper], max_concurrent_sessions=1)
    async with agent:
        with trio.fail_after(5):
            reply = await agent.run("go")
        assert reply.text == "top"
        assert agent._opener.running.inbox.statistics().claimed == 0


async def test_agents_with_one_slot_each_may_ask_each_other(autojump_clock):
    """All conversations end, for any number of callers that wait for the same helper."""
    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "help", delay=0.1), max_concurrent_sessions=1)
    boss = BareAgent(
        "boss",
        llm=ScriptedLLM(
            lambda chat: "done" if chat.messages[-1].role == "tool" else ToolCall("helper", {"task": "x"})
        ),
        tools=[helper.as_tool()],
        max_concurrent_sessions=1,
    )
    replies = []
    async with open_runtime() as runtime:
        await runtime.start(boss)

        async def ask():
            replies.append((await boss.run("go")).text)

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(ask)
        assert boss._opener.running.inbox.statistics().claimed == 0
    assert replies == ["done"] * 10


async def test_concurrent_tools_of_a_turn_release_one_slot(autojump_clock):
    """The slot count stays right when calls of one answer wait concurrently."""
    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "help", delay=1))
    calls = [ToolCall("helper", {"task": str(number)}) for number in range(3)]
    boss = BareAgent(
        "boss", llm=ScriptedLLM([calls, "done"]), tools=[helper.as_tool()], max_concurrent_sessions=2
    )
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada", "go")
        await trio.sleep(0.5)
        assert boss._opener.running.inbox.statistics().claimed == 0
        await session.wait_idle()
        assert boss._opener.running.inbox.statistics().claimed == 0
        assert session.history[-1].text == "done"


async def test_cancelled_wait_acquires_the_slot_again(autojump_clock):
    """An interrupted turn that waited for another leaves the slot count unchanged."""
    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "help", delay=60))
    boss = BareAgent(
        "boss",
        llm=ScriptedLLM([ToolCall("helper", {"task": "x"}), "later"]),
        tools=[helper.as_tool()],
        max_concurrent_sessions=1,
    )
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada", "go")
        await trio.sleep(1)
        await session.interrupt("enough")
        await session.chat("again")
        await session.wait_idle()
        assert session.history[-1].text == "later"
        assert boss._opener.running.inbox.statistics().claimed == 0


async def test_run_returns_the_event_if_the_answer_has_no_text():
    """`run` returns the name and data of the event."""

    class Noting(Protocol):
        name = "noting"
        template = "Note."

        def read(self, answer, view):
            return [Event(name="note", data={"text": answer.text})]

    async with BareAgent("a", llm=ScriptedLLM(["milk"]), protocol=Noting()) as agent:
        reply = await agent.run("write")
    assert (reply.text, reply.message_type, reply.data) == ("", "note", {"text": "milk"})


async def test_background_task_of_a_tool_cannot_release_the_slot(autojump_clock):
    """The task runs in a nursery of the program. It inherits the context of the turn but is not part of it."""
    now = peak = 0
    texts = []

    @tool
    async def work() -> str:
        """Work."""
        nonlocal now, peak
        program.start_soon(ask)
        now += 1
        peak = max(peak, now)
        await trio.sleep(0.5)
        now -= 1
        return "ok"

    async def ask():
        texts.append((await agent.run("y")).text)

    def says(chat):
        is_over = chat.messages[-1].role == "tool" or chat.messages[-1].parts[0].text == "y"
        return "done" if is_over else ToolCall("work", {})

    agent = BareAgent("a", llm=ScriptedLLM(says), tools=[work], max_concurrent_sessions=1)
    async with trio.open_nursery() as program, agent:
        for number in range(5):
            await agent.create_session(f"u{number}", "go")
        await trio.sleep(5)
        assert agent._opener.running.inbox.statistics().claimed == 0
    assert (peak, texts) == (1, ["done"] * 5)


async def test_background_task_of_a_tool_cannot_send_during_shutdown(autojump_clock):
    """Only running turns may send messages during shutdown; otherwise the block could never exit."""
    outcomes = []

    @tool
    async def work() -> str:
        """Work."""
        program.start_soon(ask)
        await trio.sleep(5)
        return (await agent.run("y")).text

    async def ask():
        await trio.sleep(1)
        try:
            await agent.run("y")
        except NotRunning:
            outcomes.append("refused")

    def says(chat):
        is_over = chat.messages[-1].role == "tool" or chat.messages[-1].parts[0].text == "y"
        return "done" if is_over else ToolCall("work", {})

    agent = BareAgent("a", llm=ScriptedLLM(says), tools=[work])
    async with trio.open_nursery() as program, agent:
        session = await agent.create_session("ada", "go")
        session.on_conversation(lambda reply: outcomes.append(reply.text))
    assert outcomes == ["refused", "done"]
