"""Sessions: creation, ownership and attributes."""

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    InboxFull,
    NotRunning,
    ScriptedLLM,
    Sender,
    SessionClosed,
    SessionNotFound,
    Usage,
    UsageError,
)
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text


async def test_description_is_answered_for_handlers_attached_later(make, listen):
    """Handlers attached after `create_session` receive the whole answer to the description, tokens included."""
    agent, _ = make("Hello Ada.")
    async with agent:
        session = await agent.create_session("ada", "Hi!")
        received = listen(session, tokens=True)
        await session.wait_idle()
    assert [type(item).__name__ for item in received] == ["Token", "Reply"]
    assert [m.text for m in session.history] == ["Hi!", "Hello Ada."]
    assert session.history[0].sender == Sender("ada", "user")


async def test_delayed_description_is_answered_for_handlers_attached_later(autojump_clock, listen):
    """If the inbox was full at first, the answer still begins after the caller could attach handlers."""
    agent = BareAgent("busy", llm=ScriptedLLM(lambda _: "done", delay=1), inbox_capacity=1)
    async with agent:
        busy = await agent.create_session("ada")
        for _ in range(20):
            await busy.chat("one")
            await busy.chat("two")
            session = await agent.create_session("bob", "three")
            received = listen(session, tokens=True)
            await session.wait_idle()
            assert [type(item).__name__ for item in received] == ["Token", "Reply"]
            await busy.wait_idle()


async def test_empty_description_sends_no_message(make):
    agent, llm = make("never")
    async with agent:
        session = await agent.create_session("ada")
        await session.wait_idle()
    assert llm.chats == []
    assert session.history == ()


async def test_on_session_is_awaited_before_the_first_message(make):
    """Handlers of the agent are attached before the first message of every session runs."""
    agent, _ = make(lambda _: "hello")
    order = []

    @agent.on_session
    async def greet(session):
        await trio.testing.wait_all_tasks_blocked()
        order.append(f"opened {session.owner.name}")
        session.on_conversation(lambda reply: order.append(reply.text))

    async with agent:
        session = await agent.create_session("ada", "Hi!")
        await session.wait_idle()
        await agent.run("again")
    assert order == ["opened ada", "hello", "opened user", "hello"]


async def test_failed_session_creation_releases_the_id(make):
    """The exception of the `on_session` function reaches the caller."""
    agent, _ = make("hello")
    wrong = [True]

    @agent.on_session
    def refuse(session):
        if wrong[0]:
            raise LookupError("not today")

    async with agent:
        with pytest.raises(LookupError, match="not today"):
            await agent.create_session("ada", "Hi!", session_id="s")
        with pytest.raises(LookupError, match="not today"):
            await agent.run("Hi!")
        with pytest.raises(LookupError, match="not today"):
            await agent.ref.tell("Hi!")
        assert agent._opener.running.sessions == {}
        wrong.clear()
        wrong.append(False)
        session = await agent.create_session("ada", "Hi!", session_id="s")
        await session.wait_idle()
    assert session.history[-1].text == "hello"


async def test_session_with_a_failed_start_answers_accepted_messages(make, caplog):
    """Accepted messages are not lost, and the agent keeps running."""
    agent, llm = make(lambda _: "ok")

    @agent.on_session
    async def say_and_fail(session):
        await session.chat("I am here")
        raise LookupError("not today")

    async with agent:
        with pytest.raises(LookupError):
            await agent.create_session("ada")
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}
    assert len(llm.chats) == 1


async def test_run_rejected_by_a_full_inbox_removes_its_session(autojump_clock):
    """A new session is removed if its only message was rejected."""
    agent = BareAgent(
        "busy",
        llm=ScriptedLLM(lambda _: "x", delay=100),
        max_concurrent_sessions=1,
        inbox_capacity=1,
        grace=0,
    )
    async with agent:
        busy = await agent.create_session("ada", "one")
        await busy.chat("two")
        with pytest.raises(InboxFull):
            await agent.run("three")
        with pytest.raises(InboxFull):
            await agent.ref.tell("three", enqueue_timeout=1)
        assert list(agent._opener.running.sessions) == [busy.id]


async def test_open_session_returns_the_open_session(make):
    """`open_session` returns the open session with an id, and raises for an unknown one."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada", session_id="lesson-1")
        assert session.id == "lesson-1"
        assert await agent.open_session("lesson-1") is session
        with pytest.raises(SessionNotFound, match="lesson-2"):
            await agent.open_session("lesson-2")
        with pytest.raises(ConfigurationError, match="lesson-1"):
            await agent.create_session("bob", session_id="lesson-1")
        await session.aclose()
        with pytest.raises(SessionNotFound):
            await agent.open_session("lesson-1")


@pytest.mark.parametrize("owner", ["", "  ", None, 7])
async def test_an_empty_owner_is_rejected(make, owner):
    """The error states that a session needs an owner."""
    agent, _ = make("x")
    async with agent:
        with pytest.raises(ConfigurationError, match="owner"):
            await agent.create_session(owner, "Hi!")


async def test_sessions_form_a_tree_that_closes_with_its_root(make):
    """A child has its parent, a parent has its open children, and a close includes all descendants."""
    agent, _ = make(lambda _: "x")
    async with agent:
        root = await agent.create_session("ada")
        child = await agent.create_session("ada", parent=root)
        grandchild = await agent.create_session("ada", parent=child)
        other = await agent.create_session("ada", parent=root)
        assert child.parent is root
        assert root.parent is None
        assert root.children == (child, other)
        await other.aclose()
        assert root.children == (child,)
        await root.aclose()
        assert [s.status for s in (root, child, grandchild)] == ["closed"] * 3
        with pytest.raises(SessionClosed):
            await grandchild.chat("anyone?")
        with pytest.raises(SessionClosed):
            await agent.create_session("ada", parent=root)


async def test_session_has_status_and_usage(listen):
    """The status is idle, working, idle, closed.

    Usage adds up over all calls, and a reply has the usage of its turn.
    """
    usage = Usage(input_tokens=10, output_tokens=2, cost=0.5)
    answer = ModelResponse(parts=(Text("hi"),), usage=usage)
    agent = BareAgent("a", llm=ScriptedLLM([answer, answer]))
    seen = []
    async with agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: seen.append((session.status, reply.usage)))
        assert session.status == "idle"
        await session.chat("one")
        assert session.status == "working"
        await session.wait_idle()
        await session.chat("two")
        await session.wait_idle()
        assert session.status == "idle"
        assert seen == [("working", usage), ("working", usage)]
        assert session.usage == usage + usage
        await session.aclose()
        assert session.status == "closed"


async def test_history_is_an_immutable_tuple(make):
    agent, _ = make("one", "two")
    async with agent:
        session = await agent.create_session("ada", "a")
        await session.wait_idle()
        before = session.history
        await session.chat("b")
        await session.wait_idle()
    assert isinstance(before, tuple)
    assert [m.text for m in before] == ["a", "one"]
    assert [m.text for m in session.history] == ["a", "one", "b", "two"]
    assert session.history[3].sender == Sender("tutor", "assistant")
    assert session.history[3].causation_id == session.history[2].id


async def test_the_state_is_a_mapping_that_only_actions_change(make):
    """An action returns one pair, several or none. Other return values change nothing."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada")
        state = session.state
        state.dispatch(lambda s: ("count", s.get("count", 0) + 1))
        state.dispatch(lambda s: [("a", 1), ("count", s["count"] + 1)])
        state.dispatch(lambda _: None)
        assert dict(state) == {"count": 2, "a": 1}
        with pytest.raises(UsageError, match="action"):
            state.dispatch(lambda _: {"count": 9})
        with pytest.raises(TypeError):
            state["count"] = 3
        assert session.state is state
        assert state["count"] == 2


async def test_chat_requires_a_running_agent(make):
    """Before and after its block, an agent accepts no messages. The error names the block to open."""
    agent, _ = make("x")
    with pytest.raises(NotRunning, match="async with"):
        await agent.create_session("ada", "Hi!")
    with pytest.raises(NotRunning):
        await agent.run("Hi!")
    async with agent:
        session = await agent.create_session("ada")
    with pytest.raises(NotRunning):
        await session.chat("Hi!")
    with pytest.raises(NotRunning):
        await agent.create_session("ada")


async def test_agent_rejects_the_session_of_another_agent(make):
    """The agent keeps running."""
    agent, _ = make("mine")
    other = BareAgent("other", llm=ScriptedLLM(["yours"]))
    async with agent, other:
        session = await agent.create_session("ada")
        with pytest.raises(UsageError, match="other"):
            await other.run("Hi!", session=session)
        assert (await other.run("Hi!")).text == "yours"
        assert (await agent.run("Hi!", session=session)).text == "mine"


async def test_temporary_session_stays_open_until_its_first_message_ends(make):
    """Earlier messages, e.g. of hooks, do not close a new session of `run` or `tell`."""
    agent, _ = make(lambda chat: chat.messages[-1].parts[0].text)
    received = []

    @agent.on_session
    async def prepare(session):
        session.on_conversation(lambda reply: received.append(str(reply)))
        await session.chat("before")
        await session.wait_idle()

    async with agent:
        assert str(await agent.run("run")) == "run"
        await agent.ref.tell("tell")
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}
    assert received == ["before", "run", "before", "tell"]
