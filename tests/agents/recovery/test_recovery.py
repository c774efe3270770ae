"""A crash at every write of the journal, and the recovery at the next start."""

import collections
import itertools

import pytest
import trio

from actgent import (
    BareAgent,
    Failure,
    Priority,
    Reply,
    RouterAgent,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import AgentMessageRecord
from actgent.testing import CrashingJournal, check_transcript

SESSIONS, STEPS = 5, 3


class World:
    """Data outside of the process: effects of tools and values received by handlers, over all restarts."""

    def __init__(self):
        self.paid = collections.Counter()
        self.stored = collections.defaultdict(list)
        """The effect keys under which an order was stored, in their order."""
        self.heard = collections.defaultdict(list)

    def agent(self):
        @tool(effect="once")
        async def pay(order: str) -> str:
            """Pay an order."""
            await trio.lowlevel.checkpoint()
            self.paid[order] += 1
            await trio.lowlevel.checkpoint()
            return f"paid {order}"

        @tool(effect="idempotent")
        async def store(order: str, context: ToolContext) -> str:
            """Store an order."""
            await trio.lowlevel.checkpoint()
            self.stored[order].append(context.idempotency_key)
            return f"stored {order}"

        def answer(chat):
            assert check_transcript(chat) == []
            done = sum(message.role == "tool" for message in chat.messages)
            if done == STEPS:
                return "done"
            order = {"order": f"{chat.messages[0].parts[0].text}, step {done}"}
            return [ToolCall("pay", order), ToolCall("store", order)]

        agent = BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[pay, store])

        @agent.on_session
        def attach(session):
            for register in (session.on_conversation, session.on_tool_result, session.on_exception):
                register(self.heard[session.id].append)

        return agent


async def live(journal, world):
    """Run one process that resumes the journal."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(world.agent())
        for context in list(agent._opener.running.sessions.values()):
            await context.public_session.wait_idle()


async def die(inner, world, writes):
    """Run a process that ends at its n-th write. Return whether it reached that write, and its accepted messages."""
    dying = CrashingJournal(inner, writes)
    accepted = []

    async def run(task_status):
        async with open_runtime(journal=dying) as runtime:
            agent = await runtime.start(world.agent())
            sessions = []
            for number in range(SESSIONS):
                sessions.append(await agent.create_session("ada", session_id=f"s{number}"))
                await sessions[-1].chat(f"order {number}", message_id=f"m{number}")
                accepted.append(f"s{number}")
            for session in sessions:
                await session.wait_idle()
        task_status.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, nursery.cancel_scope)
        await dying.died.wait()
        received = {session_id: list(outcomes) for session_id, outcomes in world.heard.items()}
        nursery.cancel_scope.cancel()
    if dying.is_dead:
        world.heard = collections.defaultdict(list, received)  # nobody heard what a dead process said
    return dying.is_dead, accepted


def outcomes_of(world, session_id, kind):
    """Return the ids and statuses that handlers received for each outcome."""
    told = collections.defaultdict(set)
    for outcome in world.heard[session_id]:
        if isinstance(outcome, kind):
            told[getattr(outcome, "call_id", "answer")].add((outcome.id, getattr(outcome, "status", "")))
    return told


async def test_a_crash_at_every_write_loses_and_repeats_nothing(autojump_clock):
    """In 5 sessions with 3 steps each accepted message is answered, and each call and answer has one id.

    `once` tools run at most once, `idempotent` ones under one key.
    """
    crashes = unknown = repeated = 0
    for writes in itertools.count(1):
        world = World()
        async with MemoryJournal().running() as journal:
            died, accepted = await die(journal, world, writes)
            await live(journal, world)
            sessions = {each.session_id: each for each in await journal.sessions("clerk")}
            records = {session_id: await journal.load(session_id) for session_id in sessions}
        assert all(count == 1 for count in world.paid.values()), (writes, world.paid)
        assert all(len(set(keys)) == 1 for keys in world.stored.values()), (writes, world.stored)
        repeated += sum(len(keys) - 1 for keys in world.stored.values())
        assert set(accepted) <= set(sessions), writes
        for session_id in accepted:
            received = [
                record.message for record in records[session_id] if isinstance(record, AgentMessageRecord)
            ]
            results = {r.call_id: {(r.id, r.status)} for message in received for r in message.tool_results}
            assert sessions[session_id].unfinished == 0, (writes, session_id)
            assert len(results) == 2 * STEPS, (writes, session_id)
            assert outcomes_of(world, session_id, ToolResult) == results, (writes, session_id)
            assert len(outcomes_of(world, session_id, Reply)["answer"]) == 1, (writes, session_id)
            assert not outcomes_of(world, session_id, Failure), (writes, session_id)
            unknown += sum(status == "outcome_unknown" for ((_, status),) in results.values())
        if not died:
            break
        crashes += 1
    assert accepted == [f"s{number}" for number in range(SESSIONS)]
    assert crashes >= SESSIONS * (2 + 3 * STEPS)
    assert unknown > 0
    assert repeated > 0


async def test_the_model_receives_the_same_requests_after_a_restart(autojump_clock):
    """After any crash, requests equal those without a crash."""

    def talk(seen):
        def answer(chat):
            seen.append([(m.role, [getattr(p, "text", None) or p for p in m.parts]) for m in chat.messages])
            return f"answer {len(chat.messages)}"

        return BareAgent("a", llm=ScriptedLLM(answer, keep=0))

    whole, parts = [], []
    async with open_runtime() as runtime:
        agent = await runtime.start(talk(whole))
        session = await agent.create_session("ada", session_id="s")
        for number in range(4):
            await session.chat(f"message {number}")
            await session.wait_idle()
    async with MemoryJournal().running() as journal:
        for number in range(4):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(talk(parts))
                if number:
                    session = await agent.open_session("s")
                else:
                    session = await agent.create_session("ada", session_id="s")
                await session.chat(f"message {number}")
                await session.wait_idle()
    assert parts == whole


async def test_queued_messages_keep_their_order_after_a_restart(autojump_clock):
    """URGENT messages are first, then by priority and age."""
    answered = []

    def answer(chat):
        text = chat.messages[-1].parts[0].text
        answered.append(text)
        return text

    async with MemoryJournal().running() as journal:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, delay=60)))
                session = await agent.create_session("ada")
                for text, priority in (
                    ("first", "normal"),
                    ("low", "low"),
                    ("high", "high"),
                    ("normal", "normal"),
                ):
                    await session.chat(text, priority=priority)
                raise RuntimeError
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer)))
            session = await agent.open_session(session.id)
            await session.wait_idle()
            assert answered == ["first", "high", "normal", "low"]
            assert session.owner.name == "ada"


async def test_state_and_usage_survive(autojump_clock):
    """Dispatched actions and the usage of model calls exist after a restart."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.create_session("ada", "hello")
            session.state.dispatch(lambda state: ("count", state.get("count", 0) + 1))
            session.state.dispatch(lambda state: ("count", state["count"] + 1))
            await session.wait_idle()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.open_session(session.id)
            assert dict(session.state) == {"count": 2}
            assert [message.text for message in session.history] == ["hello", "hi"]


async def test_a_message_id_is_accepted_once_over_restarts(autojump_clock):
    """A caller that repeats itself after a crash is not answered twice."""
    async with MemoryJournal().running() as journal:
        for _ in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
                try:
                    session = await agent.open_session("s")
                except LookupError:
                    session = await agent.create_session("ada", session_id="s")
                await session.chat("hello", message_id="m", priority=Priority.HIGH)
                await session.wait_idle()
                assert len(session.history) == 2


async def test_routed_answer_survives_a_restart(autojump_clock):
    """The answer of the routed agent is in the conversation after a restart."""

    def agents():
        helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "helped", keep=0))
        wish = '{"top_level_intent": "ACTION", "second_level_intent": "help", "response": "one moment"}'
        return RouterAgent("desk", llm=ScriptedLLM(lambda _: wish, keep=0), routes={"help": helper})

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            desk = await runtime.start(agents())
            session = await desk.create_session("ada", "help me", session_id="s")
            await session.wait_idle()
            before = [message.text for message in session.history]
        async with open_runtime(journal=journal) as runtime:
            desk = await runtime.start(agents())
            session = await desk.open_session("s")
            assert [message.text for message in session.history] == before
            await session.chat("and again")
            await session.wait_idle()
            helped = await desk.routes["help"].open_session("s/help")
            assert [message.text for message in helped.history] == [
                "help me",
                "helped",
                "and again",
                "helped",
            ]
    assert before[-1] == "helped"
