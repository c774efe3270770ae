"""The same scenarios in process and over HTTP. The same methods have the same effects."""

import inspect
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from actgent import (
    Agent,
    ApprovalAlreadyDecided,
    Approve,
    ConfigurationError,
    DeadlineExceeded,
    Edit,
    Failure,
    LongTermMemory,
    MessageTooLarge,
    ModelError,
    Reject,
    RemoteAgent,
    RemoteLongTermMemory,
    RemoteSession,
    Reply,
    Respond,
    Session,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Suspended,
    Token,
    ToolResult,
    WrongOwner,
    open_runtime,
)

from .conftest import make_agent, open_served


@asynccontextmanager
async def in_process(_):
    async with open_runtime(journal="memory:") as runtime:
        yield await runtime.start(make_agent())


@asynccontextmanager
async def over_http(_):
    async with open_served() as served, served.connect() as client:
        yield client.agent("clerk")


@asynccontextmanager
async def at_a_node(open_cluster):
    async with open_cluster() as cluster, cluster.node(make_agent()), cluster.connect() as client:
        yield client.agent("clerk")


@pytest.fixture(params=[in_process, over_http, at_a_node], ids=["in process", "over http", "at a node"])
async def agent(request, open_cluster):
    async with request.param(open_cluster) as opened:
        yield opened


async def look(value):
    """Return the value of a local attribute, or await the remote method of that name."""
    return await value() if callable(value) else value


class Heard:
    """Collects the deliveries to the handlers of a session."""

    def __init__(self, session):
        self.replies, self.results, self.failures, self.tokens, self.approvals = [], [], [], [], []
        session.on_conversation(self.replies.append)
        session.on_tool_result(self.results.append)
        session.on_exception(self.failures.append)
        session.on_token(self.tokens.append)
        session.on_approval(self.approvals.append)


async def test_too_large_message_raises(agent):
    """The error class is the same for the agent's limit and for the limit of the request body."""
    session = await agent.create_session("ada")
    with pytest.raises(MessageTooLarge):
        await session.chat("x" * 30_000_000)


async def test_conversation(agent):
    """Messages are answered, handlers receive the answers in order, and usage is counted."""
    session = await agent.create_session("ada", "first", session_id="s1")
    received = Heard(session)
    await session.chat("second", message_id="m2")
    await session.wait_idle()
    assert [reply.text for reply in received.replies] == ["you said: first ", "you said: second "]
    shown = [token.text for token in received.tokens if token.reply_id == received.replies[1].id]
    assert "".join(shown) == "you said: second "
    assert (session.id, session.agent_name, session.owner.name) == ("s1", "clerk", "ada")
    assert await look(session.status) == "idle"
    usage = await look(session.usage)
    assert (usage.input_tokens, usage.output_tokens) == (14, 6)
    assert received.replies[1].usage.input_tokens == 7
    page = await session.messages(limit=2)
    assert ([each.text for each in page], page.total) == (["second", "you said: second "], 4)
    history = await look(session.history)
    assert [each.sender.kind for each in history] == ["user", "assistant"] * 2


async def test_tags_and_metadata_of_sessions(agent):
    """The creation sets them, and changes merge with them, also those of a closed session."""
    session = await agent.create_session("ada", session_id="s1", tags=["b", "a"], metadata={"k": "1"})
    assert (await look(session.tags), dict(await look(session.metadata))) == (("a", "b"), {"k": "1"})
    await session.annotate(add_tags=["c"], remove_tags=["a"], metadata={"k": None, "l": "2"})
    assert (await look(session.tags), dict(await look(session.metadata))) == (("b", "c"), {"l": "2"})
    again = await agent.ensure_session("ada", "s1", tags=["x"])
    assert await look(again.tags) == ("b", "c")
    with pytest.raises(ConfigurationError, match="invalid tag"):
        await session.annotate(add_tags=["a,b"])
    await session.aclose()
    await session.annotate(add_tags=["late"])
    assert await look(session.tags) == ("b", "c", "late")


async def test_metadata_roles_and_descriptions(agent):
    """Metadata of messages, roles of senders, and the description of a session."""
    session = await agent.create_session("ada", session_id="s1")
    await session.chat("first", metadata={"ticket": 7})
    await session.wait_idle()
    await agent.run("second", session=session, metadata={"ticket": 8})
    async with agent.stream("third", session=session, metadata={"ticket": 9}) as told:
        assert [each async for each in told]
    await agent.receive(session.create_message("fourth", metadata={"ticket": 10}))
    await session.wait_idle()
    later = await session.schedule("fifth", after=3600, metadata={"ticket": 11})
    assert later.metadata == {"ticket": 11}
    assert [each.metadata for each in await look(session.schedules)] == [{"ticket": 11}]
    page = await session.messages(roles=["user"], limit=3)
    assert [dict(each.metadata) for each in page] == [{"ticket": 8}, {"ticket": 9}, {"ticket": 10}]
    assert (page.first, page.last, page.total) == (2, 6, 8)
    assert await look(session.description) == ""
    with pytest.raises(ConfigurationError, match="at most 16000"):
        await session.chat("x", metadata={"long": "y" * 20_000})


async def test_run_returns_the_answer(agent):
    """`run` works with and without a session. The same message id returns the same answer."""
    alone = await agent.run("hello")
    assert (alone.text, alone.usage.total.input_tokens) == ("you said: hello ", 7)
    session = await agent.create_session("ada", session_id="s1")
    first = await agent.run("one", session=session, message_id="m1")
    again = await agent.run("one", session=session, message_id="m1")
    assert first == again
    assert (await session.messages()).total == 2


async def test_stream_has_all_deliveries_of_a_turn(agent):
    """Tokens, then results and replies of only this turn. The stream ends with the turn."""
    session = await agent.create_session("ada")
    await agent.run("before", session=session)
    async with agent.stream("recite 9", session=session) as deliveries:
        received = [each async for each in deliveries]
    kinds = [type(each) for each in received]
    assert [each.content for each in received if isinstance(each, ToolResult)] == ["x" * 9]
    assert [each.text for each in received if isinstance(each, Reply)] == ["done: xxxxxxxxx "]
    assert "".join(each.text for each in received if isinstance(each, Token)) == "done: xxxxxxxxx "
    assert kinds.index(ToolResult) < kinds.index(Reply) == len(kinds) - 1


async def test_long_results_are_complete(agent):
    """Handlers receive complete results, although the event stream truncates them."""
    session = await agent.create_session("ada")
    received = Heard(session)
    await session.chat("recite 9000")
    await session.wait_idle()
    assert [len(result.content) for result in received.results] == [9000]


async def test_failures_have_the_same_classes(agent):
    """A failed model is a `ModelError` for callers, and a `Failure` of that kind for handlers."""
    session = await agent.create_session("ada")
    received_items = Heard(session)
    with pytest.raises(ModelError, match="the model is down"):
        await agent.run("fail", session=session)
    await session.wait_idle()
    assert [(each.kind, type(each.error)) for each in received_items.failures] == [("model", ModelError)]
    async with agent.stream("fail", session=session) as deliveries:
        received = [each async for each in deliveries]
    assert [type(each) for each in received] == [Failure]


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (Approve(), "done: deployed to mars "),
        (Edit({"place": "venus"}), "done: deployed to venus "),
        (Respond("it is there"), "done: it is there "),
        (Reject("no"), "done:  "),
    ],
)
async def test_approval_resumes_a_turn(agent, decision, answer):
    """A turn with an open approval raises `Suspended`. A decision resumes it once."""
    session = await agent.create_session("ada", session_id="s1")
    with pytest.raises(Suspended) as waiting:
        await agent.run("deploy mars", session=session)
    (approval,) = await look(session.approvals)
    assert (waiting.value.ids, waiting.value.tools) == ((approval.id,), ("deploy",))
    assert (approval.tool_name, approval.arguments, approval.is_genuine) == (
        "deploy",
        {"place": "mars"},
        True,
    )
    assert [each.id for each in await agent.approvals()] == [approval.id]
    with pytest.raises(Suspended):
        await agent.run("something else", session=session)
    reply = await agent.resume({approval.id: decision})
    assert reply.text.partition("\n")[0].strip() == answer.strip()
    with pytest.raises(ApprovalAlreadyDecided):
        await session.answer(approval.id, Approve())
    assert (await session.messages()).total == 4


async def test_suspended_turn_is_followed(agent):
    """A stream ends when an approval is requested. `follow` streams the rest after the decision."""
    session = await agent.create_session("ada")
    async with agent.stream("deploy mars", session=session) as deliveries:
        received = [each async for each in deliveries]
    approval = received[-1]
    async with agent.follow(session) as deliveries:
        await session.answer(approval, Approve())
        rest = [each async for each in deliveries]
    assert [each.text for each in rest if isinstance(each, Reply)] == ["done: deployed to mars "]


async def test_sessions_are_opened_and_closed(agent):
    """Ids are unique, owners find their sessions, and closed sessions raise. The errors have the same classes."""
    session = await agent.create_session("ada", session_id="s1")
    with pytest.raises(SessionExists):
        await agent.create_session("ada", session_id="s1")
    with pytest.raises(SessionNotFound):
        await agent.open_session("s2")
    with pytest.raises(WrongOwner):
        await agent.open_session("s1", owner="bob")
    assert (await agent.open_session("s1", owner="ada")).id == "s1"
    assert (await agent.ensure_session("ada", "s1")).id == "s1"
    await session.aclose()
    with pytest.raises(SessionClosed):
        await session.chat("hello")
    with pytest.raises(SessionClosed):
        await agent.open_session("s1")


async def test_invalid_arguments_are_configuration_errors(agent):
    """An empty message, a misspelt priority and an invalid time raise before any effect."""
    session = await agent.create_session("ada")
    for wrong in (
        lambda: session.chat("  "),
        lambda: session.chat("x", priority="urgnet"),
        lambda: session.schedule("x", cron="never"),
        lambda: agent.run("x", session="s1"),
        lambda: agent.run("x", message_id="m1"),
    ):
        with pytest.raises(ConfigurationError):
            await wrong()


async def test_schedules(agent):
    """A key creates one schedule, which is listed and removed once."""
    session = await agent.create_session("ada")
    made = await session.schedule("look", after=1000, key="k")
    await session.schedule("look", after=1000, key="k")
    assert [each.id for each in await look(session.schedules)] == [made.id]
    assert [await session.unschedule(made.id) for _ in range(2)] == [True, False]


async def test_observations(agent):
    """Past and new observations are the same, and have the same filter."""
    session = await agent.create_session("ada")
    async with session.observe(types=["TOOL_CALL", "TOOL_EXECUTION"]) as observations:
        await agent.run("recite 3", session=session)
        live = [await observations.receive() for _ in range(2)]
        assert observations.cursor == live[-1].number
    assert live == list(await session.observations(types=["TOOL_CALL", "TOOL_EXECUTION"]))
    assert [each.type for each in live] == ["TOOL_CALL", "TOOL_EXECUTION"]
    assert live[1].parent == live[0].id


async def test_observing_begins_before_the_block(agent, monkeypatch):
    """An observation that the block causes is received, even if the server answers the first request late."""
    fetch_now = RemoteSession.fetch

    async def fetch_late(self):
        await trio.sleep(0.3)
        return await fetch_now(self)

    monkeypatch.setattr(RemoteSession, "fetch", fetch_late)
    session = await agent.create_session("ada")
    async with session.observe(types=["FINAL_RESPONSE"]) as observations:
        await agent.run("one", session=session)
        with trio.fail_after(30):
            assert (await observations.receive()).content == "you said: one "


async def test_handlers_are_attached_for_a_block(agent):
    """A handler of a block receives its events. An exception of a handler is delivered to exception handlers."""
    session = await agent.create_session("ada")
    inside, failed = [], []

    def fail(reply):
        raise ValueError("mine")

    with session.listening(on_conversation=inside.append):
        await session.chat("one")
        await session.wait_idle()
    session.on_exception(failed.append)
    session.on_conversation(fail)
    await session.chat("two")
    await session.wait_idle()
    assert [reply.text for reply in inside] == ["you said: one "]
    assert [(each.kind, str(each.error.__cause__)) for each in failed] == [("handler", "mine")]
    session.remove_handler(fail)
    await session.chat("three")
    await session.wait_idle()
    assert len(failed) == 1


async def test_run_with_a_timeout_stops_its_turn(agent):
    """After a timeout or a cancellation the turn is stopped, and the session stays usable."""
    session, seconds = await agent.create_session("ada"), 0.3
    received = Heard(session)
    with trio.fail_after(100):
        while not received.failures:  # on a slow machine the timeout may end before the first token
            with pytest.raises(DeadlineExceeded):
                await agent.run("wait", session=session, timeout=seconds)
            await session.wait_idle()
            seconds *= 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(agent.run, "wait", session=session))
            while await look(session.status) != "working":  # noqa: ASYNC110 - another process changes this state
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        assert (await agent.run("hello", session=session)).text == "you said: hello "
        await session.wait_idle()
    stopped = [each.text for each in await session.messages()].count("wait")
    assert stopped >= 2
    assert [failure.kind for failure in received.failures] == ["interrupted"] * stopped


async def test_run_cancelled_at_any_time_leaves_no_turn(agent):
    """Cancelled before, while or after its message is sent: the turn is stopped or never starts."""
    for milliseconds in range(0, 30, 2):
        session = await agent.create_session("ada")
        with trio.move_on_after(milliseconds / 1000):
            await agent.run("wait", session=session)
        with trio.fail_after(60):
            assert (await agent.run("hello", session=session)).text == "you said: hello "
            await session.wait_idle()


MISSING = {
    Session: {
        "children": "GET /sessions?parent= lists them: client.sessions()",
        "parent": "the same",
        "budget": "GET /sessions/{id} has it",
        "clock": "the server's clock is its own",
        "database": "tables of the program's own, beside its agents",
        "inject": "handlers of this process are called by this process",
        "deps": "a program gives them to its agents",
        "own_deps": "the same",
        "store_created_deps": "the same",
        "follow": "records are for who may read the journal; observe() tells the same as people read it",
        "hand_back": "not asked for over HTTP",
        "handoff_agent": "the same",
        "message_trace": "GET /sessions/{id}/observations?turn= has them",
        "is_durable": "a session behind a server always is",
        "mode_changes": "the session's state has them",
        "on_busy": "what it was made with",
    },
    Agent: dict.fromkeys(
        "accompany as_tool open_toolsets ref system_prompt toolsets guard on_message on_query on_session "
        "remove_hook run_sync core_type default_protocol narration_type inbox_bounds model_clients".split(),
        "an agent is put together where it runs",
    )
    | {"process": "run gives the reply, and the session and its observations tell the rest"},
    LongTermMemory: dict.fromkeys(
        "remember recall associate dissociate mark marks change_together reindex".split(),
        "agents and programs write memories where they run",
    )
    | dict.fromkeys("page get owners export".split(), "browse(), history() and owner_page() read them"),
}
"""Members that a client does not have, with the reason."""
LEFT_OUT = {
    "sender",
    "enhance_prompt",
    "model",
    "prompt",
    "output",
    "temperature",
    "max_tokens",
    "limits",
    "deps",
    "history",
    "parent",
    "filters",
}
"""Arguments that exist only on the server."""


@pytest.mark.parametrize(
    ("local", "remote"),
    [(Session, RemoteSession), (Agent, RemoteAgent), (LongTermMemory, RemoteLongTermMemory)],
)
def test_client_has_all_methods_of_the_runtime(local, remote):
    """Each public method of the local class exists in the remote class with the same arguments.

    `MISSING` and `LEFT_OUT` list the exceptions.
    """
    hints = "actgent.support.unknown_name_hints"
    words = {
        name
        for name, value in vars(local).items()
        if not name.startswith("_") and type(value).__module__ != hints
    }
    missing = {name for name in words if not hasattr(remote, name)}
    words -= {"id", "owner", "agent_name"}  # attributes of its instances
    missing &= words
    assert missing == {name for name in MISSING[local] if name in words}
    for name in words - missing:
        mine, theirs = getattr(remote, name), getattr(local, name)
        if inspect.isfunction(theirs) and inspect.isfunction(mine):
            expected = set(inspect.signature(theirs).parameters) - LEFT_OUT - {"deadline", "by", "unknown"}
            assert expected <= set(inspect.signature(mine).parameters) | {"priority", "deadline"}, name
