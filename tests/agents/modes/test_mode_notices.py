"""Each mode change gets exactly one notice, despite crashes, rollbacks and interrupts."""

import pytest
import trio

from actgent import BareAgent, Limits, Mode, Modes, Priority, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import AgentMessageRecord, DeliveryRecord
from actgent.testing import CrashingJournal, check_transcript


def marks(session):
    """Return the marks of the mode notices in the history, and those of the mode changes in the state."""
    messages = [
        m.causation_id for m in session.history if m.sender.kind == "system" and m.sender.name == "mode"
    ]
    return messages, [change.mark for change in session.mode_changes]


def clerk(seen, paid):
    """Return an agent whose model switches to a mode, calls a tool, and switches again."""

    @tool(effect="idempotent")
    async def pay() -> str:
        """Pay."""
        await trio.lowlevel.checkpoint()
        paid.append(1)
        return "paid"

    script = {
        "work": [ToolCall("set_mode", {"mode": "act", "reason": "to work"}), ToolCall("pay", {})],
        "rest": [ToolCall("set_mode", {"mode": "plan"}), ToolCall("set_mode", {"mode": "onboarding"})],
    }

    def answer(chat):
        assert check_transcript(chat) == []
        seen.append(chat.messages)
        last = chat.messages[-1]
        if last.role == "user" and last.parts[0].text in script:
            return script[last.parts[0].text]
        return f"answer {len(chat.messages)}"

    modes = Modes(commands=True, agent_may=["act", "plan", "onboarding"])
    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[pay], modes=modes)


async def drive(journal, seen, paid):
    """Send all messages, with ids, so that a repetition after a crash sends none twice."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(seen, paid))
        session = await agent.ensure_session("ada", "s")
        await session.wait_idle()
        for number, text in enumerate(("hello", "work", "plan", "rest", "bye")):
            await session.chat(text, message_id=f"m{number}")
            await session.wait_idle()
            if text == "hello" and not any(change.by == "admin" for change in session.mode_changes):
                await session.set_mode("integration", by="admin")
        return session


def conversation(messages):
    return [(m.role, [getattr(part, "text", "") or repr(part.name) for part in m.parts]) for m in messages]


async def test_mode_notice_appears_once_after_a_crash_at_every_write(autojump_clock):
    """The last conversation that the model receives equals that of a run without a crash."""
    whole, paid = [], []
    async with MemoryJournal().running() as journal:
        session = await drive(journal, whole, paid)
        marks_found, changed = marks(session)
        assert marks_found == changed
        assert [change.current for change in session.mode_changes] == [
            "integration", "act", "plan", "onboarding",
        ]  # fmt: skip
    crashes = 0
    for writes in range(1, 200):
        seen, paid = [], []
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drive, dying, seen, paid)
                with trio.move_on_after(1):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            if not dying.is_dead:
                break
            crashes += 1
            session = await drive(journal, seen, paid)
            marks_found, changed = marks(session)
            assert marks_found == changed, (writes, marks_found, changed)
            assert len(set(marks_found)) == len(marks_found)
            assert len(changed) == 4, (writes, changed)
            assert conversation(seen[-1]) == conversation(whole[-1]), writes
    assert crashes > 20


async def test_commands_that_are_collected_are_obeyed_in_order(autojump_clock):
    """Collected messages of one turn are commands in their order, so the last one sets the mode, also after a crash."""

    async def say(journal):
        async with open_runtime(journal=journal) as runtime:
            llm = ScriptedLLM(lambda _: "ok", delay=0.1)
            agent = BareAgent("a", llm=llm, modes=Modes(commands=True), on_busy="collect")
            await runtime.start(agent)
            session = await agent.ensure_session("ada", "s")
            for number, text in enumerate(("hello", "act", "wait", "plan", "go on")):
                await session.chat(text, message_id=f"m{number}")
            await session.wait_idle()
            return session

    for writes in range(1, 100):
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(say, dying)
                with trio.move_on_after(5):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            session = await say(journal)
            marks_found, changed = marks(session)
            assert marks_found == changed, writes
            assert [change.current for change in session.mode_changes] == ["act", "plan"], writes
            if not dying.is_dead:
                break
    assert writes > 5
    texts = [m.text for m in session.history if m.sender.kind == "user"]
    assert texts == ["hello", "act", "wait", "plan", "go on"]


async def test_mode_changes_between_turns_are_notices_in_order():
    """Each change between two turns is one notice, which the model reads before the next message."""
    llm = ScriptedLLM(lambda _: "ok")
    async with BareAgent("a", llm=llm, modes=Modes()) as agent:
        session = await agent.create_session("ada")
        for mode in ("plan", "act", "plan", "integration"):
            await session.set_mode(mode)
        await session.chat("hello")
        await session.wait_idle()
        marks_found, changed = marks(session)
        assert marks_found == changed
        assert len(marks_found) == 4
    texts = [message.parts[0].text for message in llm.chats[0].messages]
    assert [text.startswith("<system>") for text in texts] == [True] * 4 + [False]


async def test_a_state_rollback_announces_the_current_mode_again():
    """After a rollback past a notified change the current mode gets one more notice. Later changes get theirs as usual."""
    async with BareAgent("a", llm=ScriptedLLM(lambda _: "ok"), modes=Modes()) as agent:
        session = await agent.create_session("ada")

        async def said():
            before = len(session.history)
            await session.chat("hello")
            await session.wait_idle()
            return [m.text.split("(")[0] for m in session.history[before:] if m.sender.kind == "system"]

        await session.set_mode("plan")
        planned = session.state.number
        await session.set_mode("act")
        assert await said() == []
        session.state.rollback(planned)
        assert session.mode == "plan"
        assert await said() == ["The mode is now plan "]
        assert await said() == []
        await session.set_mode("integration")
        session.state.rollback(0)
        assert session.mode == "onboarding"
        assert await said() == ["The mode is now onboarding "]
        assert await said() == []
        await session.set_mode("act")
        assert session.history[-1].text.startswith("The mode is now act")
        assert await said() == []


async def test_only_the_last_hundred_changes_are_kept():
    async with BareAgent("a", llm=ScriptedLLM(lambda _: "ok"), modes=Modes()) as agent:
        session = await agent.create_session("ada")
        for number in range(150):
            await session.set_mode(("act", "plan")[number % 2])
        marks_found, changed = marks(session)
        assert len(marks_found) == 150
        assert len(changed) == 100
        assert marks_found[-100:] == changed


async def test_an_urgent_message_sees_the_announced_mode(autojump_clock):
    """If an URGENT message stops a turn after a mode change, the next turn has the notice once."""
    llm = ScriptedLLM([[ToolCall("set_mode", {"mode": "plan"}), ToolCall("sleep", {})], "at once"])

    @tool
    async def sleep() -> str:
        """Sleep."""
        await trio.sleep(100)
        return "slept"

    async with BareAgent("a", llm=llm, tools=[sleep], modes=Modes(universal=[sleep])) as agent:
        session = await agent.create_session("ada", "work")
        await trio.sleep(1)
        assert session.mode == "plan"
        await session.chat("stop", priority=Priority.URGENT)
        await session.wait_idle()
        marks_found, changed = marks(session)
        assert marks_found == changed
        assert len(marks_found) == 1
    kinds = [m.sender.kind for m in session.history]
    assert kinds == ["user", "assistant", "tool", "system", "user", "assistant"]


async def test_message_of_an_agent_follows_the_notice_with_the_role_user(autojump_clock):
    """The notice precedes the message of an agent, so that the message is last and has the role user."""
    llm = ScriptedLLM(lambda _: "ok")
    async with BareAgent("a", llm=llm, modes=Modes(commands=True)) as agent:
        session = await agent.create_session("ada")
        await session.set_mode("act")
        await session.chat("do this", "agent")
        await session.wait_idle()
    assert [m.role for m in llm.chats[0].messages] == ["user", "user"]
    assert llm.chats[0].messages[-1].parts[0].text == "do this"


async def test_switching_while_a_session_is_opened_waits_for_its_open_calls(autojump_clock):
    """If `on_session` switches a restored session with open calls, the notice follows their results."""

    @tool(effect="idempotent")
    async def slow() -> str:
        """Be slow."""
        await trio.sleep(10)
        return "done"

    def build(seen):
        def answer(chat):
            seen.append(chat)
            assert check_transcript(chat) == []
            return (
                "ok"
                if chat.messages[-1].role != "user" or "<system>" in chat.messages[-1].parts[0].text
                else [ToolCall("slow", {})]
            )

        return BareAgent("a", llm=ScriptedLLM(answer), tools=[slow], modes=Modes(universal=[slow]))

    async with MemoryJournal().running() as journal:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(build([]))
                await agent.create_session("ada", "work", session_id="s")
                await trio.sleep(1)
                raise RuntimeError
        seen = []
        agent = build(seen)

        @agent.on_session
        async def switch(session):
            await session.set_mode("act", by="admin")

        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
    assert [m.sender.kind for m in session.history] == ["user", "assistant", "tool", "system", "assistant"]
    assert session.mode == "act"


async def test_a_crash_after_a_note_resumes_from_the_results(autojump_clock):
    """A process dies after the notice and before the next answer. The restarted turn keeps its count of model calls."""

    def build(answers):
        agent = BareAgent(
            "a",
            llm=ScriptedLLM(answers),
            modes=Modes(agent_may=["act"]),
            limits=Limits(
                model_calls=3
            ),  # the interrupted call counts, because the provider may charge for it
        )

        @agent.on_session
        def attach(session):
            session.on_tool_result(lambda result: received_items.append(result.tool_name))
            session.on_exception(lambda failure: received_items.append(failure.kind))

        return agent

    async def never(_chat):
        await trio.sleep_forever()

    received_items = []
    async with MemoryJournal().running() as journal:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(build([[ToolCall("set_mode", {"mode": "act"})], never]))
                session = await agent.create_session("ada", "work", session_id="s")
                await trio.sleep(1)
                session.state.dispatch(("seen", True))  # written at once, after the notice
                await trio.sleep(1)
                raise RuntimeError
        (summary,) = await journal.sessions()
        records = await journal.load(summary.session_id)
        received = [each for each in records if isinstance(each, AgentMessageRecord)]
        assert received[-1].message.sender.name == "mode"
        assert received[-1].calls == 1
        received_items.clear()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(build([[ToolCall("get_agent_state", {})], "one too many"]))
            session = await agent.open_session("s")
            await session.wait_idle()
            marks_found, changed = marks(session)
            assert marks_found == changed
            assert len(marks_found) == 1
    assert received_items[-2:] == ["get_agent_state", "limit"]
    kinds = [m.sender.kind for m in session.history]
    assert kinds == ["user", "assistant", "tool", "system", "assistant", "tool"]


async def test_undelivered_tool_results_are_redelivered_after_the_notice(autojump_clock):
    """The process ends before handlers receive a result. The restarted process appends a notice and then delivers the result."""
    received = []

    def build(answers):
        agent = BareAgent("a", llm=ScriptedLLM(answers), modes=Modes(agent_may=["act"]))
        agent.on_session(
            lambda session: session.on_tool_result(lambda result: received.append(result.tool_name)) and None
        )
        return agent

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(build([[ToolCall("set_mode", {"mode": "act"})], "done"]))
            session = await agent.create_session("ada", "work", session_id="s")
            await session.wait_idle()
        records = await journal.load("s")
    place = next(
        n
        for n, each in enumerate(records)
        if isinstance(each, AgentMessageRecord) and each.message.sender.name == "mode"
    )
    kept = [each for each in records[: place + 1] if not isinstance(each, DeliveryRecord)]
    received.clear()
    async with MemoryJournal().running() as journal:
        entry = Entry(session_id="s", agent="a", records=tuple(kept))
        await journal.commit(entry, epoch=await journal.acquire())
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(build(["done"]))
            session = await agent.open_session("s")
            await session.wait_idle()
    assert received == ["set_mode"]
    assert [m.sender.kind for m in session.history] == ["user", "assistant", "tool", "system", "assistant"]


async def test_a_removed_mode_is_still_announced():
    """A pending change to a mode that the new code does not define still gets its notice."""
    async with MemoryJournal().running() as journal:
        dying = CrashingJournal(journal, 1000)
        async with open_runtime(journal=dying) as runtime:
            agent = await runtime.start(
                BareAgent("a", llm=ScriptedLLM(lambda _: "ok"), modes=Modes(Mode("old")))
            )
            session = await agent.create_session("ada", session_id="s")
            agent.modes.switch(session.state, "old", by="admin")
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(lambda _: "ok"), modes=Modes()))
            session = await agent.open_session("s")
            await session.chat("hello")
            await session.wait_idle()
            marks_found, changed = marks(session)
            assert marks_found == changed
            assert [change.current for change in session.mode_changes] == ["old", "plan"]
