"""A session's state: merged by reducers, journaled, and the same after any crash."""

import pytest
import trio

from actgent import (
    Agent,
    BareAgent,
    ConfigurationError,
    ScriptedLLM,
    ToolCall,
    UsageError,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import MessageAcceptedRecord, StateChangeRecord
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.protocol_interface import SendReply, UpdateState
from actgent.state.reducers import add, append
from actgent.tools.state_tools import StateTool
from actgent.tools.tool_interface import ToolContext


@tool
async def find(what: str, ctx: ToolContext) -> str:
    """Find something, in a task."""
    await trio.lowlevel.checkpoint()
    ctx.state.dispatch([("results", what), (f"found {what}", True)])
    return what


@tool
def search(what: str, ctx: ToolContext) -> str:
    """Find something, in a thread."""
    ctx.state.dispatch([("results", what), (f"found {what}", True)])
    return what


def searches(chat):
    if chat.messages[-1].role == "tool":
        return "done"
    return [ToolCall(name, {"what": f"{name} {n}"}) for name in ("find", "search") for n in range(4)]


async def test_parallel_tools_lose_no_update():
    """Updates of one key and of different keys from tasks and threads are all stored."""
    agent = BareAgent("a", llm=ScriptedLLM(searches), tools=[find, search], reducers={"results": append})
    async with agent:
        session = await agent.create_session("ada", "go")
        await session.wait_idle()
        names = [f"{name} {n}" for name in ("find", "search") for n in range(4)]
        assert sorted(session.state["results"]) == names
        assert all(session.state[f"found {name}"] for name in names)
        assert session.state.number == 8


@pytest.mark.parametrize("reducers", [[append], {"k": "append"}, append])
def test_invalid_reducer_is_rejected(reducers):
    """The error lists the accepted values."""
    with pytest.raises(ConfigurationError, match="reducers= takes"):
        BareAgent("a", llm=ScriptedLLM([]), reducers=reducers)


async def test_history_and_branches_survive(autojump_clock):
    """Failed and rolled-back changes are equal after a restart, and reducers continue."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"]), reducers={"n": append}))
            session = await agent.create_session("ada", "hello")
            await session.wait_idle()
            state = session.state
            for value in (1, 2, 3):
                state.dispatch(("n", value), once=f"change {value}")
            with pytest.raises(UsageError):
                state.dispatch("unknown")
            state.rollback(1)
            state.dispatch(("n", 9))
            before = (dict(state), state.number, state.history, [state.replay(n) for n in state.known])
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"]), reducers={"n": append}))
            state = (await agent.open_session(session.id)).state
            assert (
                dict(state),
                state.number,
                state.history,
                [state.replay(n) for n in state.known],
            ) == before
            state.dispatch(("n", 3), once="change 3")
            state.dispatch(("n", 4))
            assert state["n"] == [1, 9, 4]


async def test_unserializable_state_is_rejected_by_a_journal(autojump_clock):
    """The state is unchanged, and other pending records are kept."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.create_session("ada", "hello")

            @session.on_conversation
            def keep(reply):
                session.state.dispatch(("replies", {reply.text}))

            failures = []
            session.on_exception(failures.append)
            await session.wait_idle()
            assert "cannot be serialized" in str(failures[0].error)
            assert not session.state
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.open_session(session.id)
            assert [message.text for message in session.history] == ["hello", "hi"]
            assert session.state.history[0].error.startswith("NotSerializable")


class Counting(Bare):
    """An agent that changes the state with every answer and answers with the value that it read."""

    def read(self, answer, view):
        seen = view.state.get("n", 0)
        return [
            UpdateState(lambda _: None),
            UpdateState(lambda _: ("log", [f"n was {seen}"])),
            UpdateState(lambda _: [("n", 1), ("n", 1)]),
            SendReply(text=f"{answer.text}: n was {seen}"),
        ]


def counting_agent():
    return Agent(
        "a",
        llm=ScriptedLLM(lambda _: "well", keep=0),
        protocol=Counting(),
        reducers={"n": add, "log": lambda old, new: [*(old or []), *new]},
    )


async def whole_run(make):
    """The records of two turns that nothing interrupted."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make())
            session = await agent.create_session("ada", "first", session_id="s")
            await session.wait_idle()
            await session.chat("second")
            await session.wait_idle()
        return await journal.load("s")


async def restarted(make, records):
    """The state and the replies after a restart in which the journal ends with these records."""
    replies: list[str] = []
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        await journal.commit(Entry(session_id="s", agent="a", records=records), epoch=epoch)
        async with open_runtime(journal=journal) as runtime:
            agent = make()
            agent.on_session(
                lambda session: session.on_conversation(lambda reply: replies.append(str(reply)))
            )
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
            return dict(session.state), replies


async def test_no_change_is_made_twice_after_a_crash(autojump_clock):
    """After a crash at any write, an answer changes the state once, and is read as the first time."""
    records = await whole_run(counting_agent)
    assert sum(isinstance(record, StateChangeRecord) for record in records) == 4
    for cut in range(1, len(records) + 1):
        accepted = sum(isinstance(record, MessageAcceptedRecord) for record in records[:cut])
        texts = [f"n was {2 * turn}" for turn in range(accepted)]
        state, replies = await restarted(counting_agent, records[:cut])
        assert state == ({"n": 2 * accepted, "log": texts} if accepted else {}), cut
        assert set(replies) <= {f"well: {text}" for text in texts}, cut


def noting_agent():
    def answer(chat):
        last = chat.messages[-1]
        return "noted" if last.role == "tool" else [ToolCall("note", {"text": last.parts[0].text})]

    async def note(state, args):  # async, since a virtual clock runs on while a thread works
        await trio.lowlevel.checkpoint()
        return "notes", args["text"]

    tools = [StateTool("note", "Note a text.", note, effect="idempotent")]
    return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=tools, reducers={"notes": append})


async def test_a_repeated_tool_changes_the_state_once(autojump_clock):
    """The tool may have changed the state before the crash that makes it run again."""
    records = await whole_run(noting_agent)
    for cut in range(2, len(records) + 1):
        accepted = sum(isinstance(record, MessageAcceptedRecord) for record in records[:cut])
        state, _ = await restarted(noting_agent, records[:cut])
        assert state["notes"] == ["first", "second"][:accepted], cut
