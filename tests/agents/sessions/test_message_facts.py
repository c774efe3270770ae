"""Metadata, descriptions and links of messages and sessions, and searches for messages."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import trio

from actgent import (
    Agent,
    BareAgent,
    ConfigurationError,
    ReActAgent,
    ScriptedLLM,
    Sender,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.messages import traceparent


@tool
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


def direct(**more):
    action = {
        "response_purpose": "DIRECT_RESPONSE",
        "response_description": "It is 5.",
        "response_content": {"n": 5},
    }
    return json.dumps({"primary_action": action, **more})


REASONED = {
    "question_nature": "SIMPLE",
    "context": {"understanding": "a sum", "approach": "add", "considerations": ["none"]},
    "additional_info": {"results": "5", "analysis": "exact", "next_steps": []},
}

# --- what a ReAct agent says about its answer -----------------------------------------------


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_reasoning_fields_are_in_the_reply(journal):
    """question_nature, context and additional_info are in the reply; an answer without them has None."""
    llm = ScriptedLLM([direct(**REASONED), direct(), direct(context="", question_nature="COMPLEX")])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(ReActAgent("tutor", llm=llm))
        session = await agent.create_session("ada")
        received = []
        session.on_conversation(received.append)
        reply = await agent.run("2+3?", session=session)
        assert (reply.text, reply.reasoning) == ("It is 5.", REASONED)
        assert received == [reply]
        assert (await agent.run("again?", session=session)).reasoning is None
        assert (await agent.run("and?", session=session)).reasoning == {"question_nature": "COMPLEX"}
        if journal:
            found = await session.observations(types=["FINAL_RESPONSE"])
            assert [each.metadata.get("reasoning") for each in found][:2] == [REASONED, None]


# --- metadata --------------------------------------------------------------------------------


async def test_metadata_is_kept_and_never_shown_to_a_model(tmp_path):
    """Metadata is set by chat, run and create_message. Hooks receive it, and it survives a restart."""
    noted = {"ticket": 7, "tags": ["a", "b"]}
    llm, seen = ScriptedLLM(["one", "two", "three", "four"]), []
    address = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        agent.on_query(lambda message: seen.append(message.metadata))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("first", metadata=noted)
        await session.wait_idle()
        await agent.run("second", session=session, metadata={"k": 1})
        made = session.create_message("third", metadata=noted)
        noted["ticket"] = 8  # theirs from now on
        await agent.receive(made)
        await session.wait_idle()
        assert "ticket" not in repr([chat.messages for chat in llm.chats])
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        messages = [each for each in (await agent.open_session("s")).history if each.sender.kind == "user"]
    kept = {"ticket": 7, "tags": ["a", "b"]}
    assert [dict(each.metadata) for each in messages] == [kept, {"k": 1}, kept]
    assert seen == [kept, {"k": 1}, kept]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({1: "x"}, "texts as keys"),
        ("text", "mapping"),
        ({"x": object()}, "must be JSON data"),
        ({"x": float("nan")}, "must be JSON data"),
        ({"x": "y" * 16_000}, "at most 16000"),
    ],
)
async def test_metadata_is_plain_and_bounded(wrong, expected):
    """Values that are not JSON or too long raise an error in the call, and no message is sent."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=expected):
            await session.chat("hi", metadata=wrong)
        assert session.history == ()


async def test_metadata_and_descriptions_are_redacted(tmp_path):
    """`redact=` applies to both, as to message texts."""
    address = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=address, redact=lambda text: text.replace("secret", "***")) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["a", "b"])))
        session = await agent.create_session("ada", "my secret", session_id="s")
        await session.chat("x", metadata={"note": "secret", "n": 1})
        await session.wait_idle()
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.open_session("s")
        assert (session.description, session.history[2].metadata) == ("my ***", {"note": "***", "n": 1})


# --- description -----------------------------------------------------------------------------


async def test_session_has_its_description(tmp_path):
    """The description is bounded and survives a restart; a session without one has None."""
    address = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["a", "b"])))
        session = await agent.create_session("ada", "book a flight", session_id="s")
        assert session.description == "book a flight"
        assert (await agent.create_session("ada")).description == ""
        long = await agent.create_session("ada", "x" * 3000)
        await long.wait_idle()
        assert (len(long.description), len(long.history[0].text)) == (2000, 3000)
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        assert (await agent.open_session("s")).description == "book a flight"


# --- finding messages --------------------------------------------------------------------------


async def test_messages_are_found_by_role_and_date(monkeypatch):
    """Roles, dates and positions can be combined; pages continue by first and last."""
    monkeypatch.setattr("actgent.sessions.subscriptions.message_search.PAGE_SIZE", 3)
    async with BareAgent("clerk", llm=ScriptedLLM([f"a{n}" for n in range(6)])) as agent:
        session = await agent.create_session("ada")
        for n in range(6):
            await agent.run(f"q{n}", session=session)
            await trio.sleep(0.002)
        users = await session.messages(roles=["user"], limit=4)
        assert [each.text for each in users] == ["q2", "q3", "q4", "q5"]
        assert (users.first, users.last, users.total) == (4, 10, 12)
        before = await session.messages(roles=["user"], limit=4, before=users.first)
        assert [each.text for each in before] == ["q0", "q1"]
        behind = await session.messages(roles=("assistant",), after=3, limit=2)
        assert [each.text for each in behind] == ["a2", "a3"]
        more = await session.messages(roles=("assistant",), after=behind.last)
        assert [each.text for each in more] == ["a4", "a5"]
        at = datetime.fromtimestamp(session.history[6].created_at - 0.001, UTC)
        later = await session.messages(after=at, limit=2)
        assert [each.text for each in later] == ["q3", "a3"]
        earlier = await session.messages(before=at, limit=2)
        assert [each.text for each in earlier] == ["q2", "a2"]
        day = timedelta(days=1)
        between = await session.messages(after=at - day, before=at, roles=["assistant"])
        assert [each.text for each in between] == ["a0", "a1", "a2"]
        nothing = await session.messages(roles=["tool"])
        assert (nothing.messages, nothing.last) == ((), -1)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"roles": ["assistent"]}, "assistant"),
        ({"roles": "user"}, "list of kinds"),
        ({"before": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is refused
        ({"roles": ["user"], "limit": 0}, "at least 1"),
        ({"roles": ["user"], "before": 1, "after": 2}, "not both"),
    ],
)
async def test_invalid_message_search_is_rejected(query, expected):
    """Cases: an unknown role, a date without a time zone, a limit below 1, and two positions."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=expected):
            await session.messages(**query)


# --- links ---------------------------------------------------------------------------------------


async def test_message_trace_has_calls_and_observations():
    """A question leads to its whole turn, and an answer to its own calls. An unknown id raises an error."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = ToolCall("look", {"what": "sums"}, id="c1")
    llm = ScriptedLLM([[call], "It is 5.", "Bye."])
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(Agent("tutor", llm=llm, tools=[look]))
        session = await agent.create_session("ada")
        token = traceparent.set(trace)
        await agent.run("2+3?", session=session, message_id="m1")
        traceparent.reset(token)
        await agent.run("bye", session=session, message_id="m2")
        _, calling, results, answer = session.history[:4]
        links = await session.message_trace("m1")
        assert (links.turn, links.trace_id, links.cause) == ("m1", trace.split("-")[1], None)
        assert (links.calls, [each.content for each in links.results]) == ((call,), ["found sums"])
        assert links.effects == (calling.id, results.id)
        kinds = [each.type for each in links.observations]
        assert kinds == ["TOOL_CALL", "TOOL_EXECUTION", "FINAL_RESPONSE"]
        of_answer = await session.message_trace(answer)
        assert (of_answer.turn, of_answer.cause, of_answer.calls) == ("m1", results.id, (call,))
        assert (of_answer.results, of_answer.steps) == (links.results, (calling, results))
        assert [each.type for each in of_answer.observations] == kinds
        of_calling = await session.message_trace(calling)
        assert (of_calling.message, of_calling.calls, of_calling.effects) == (calling, (call,), ())
        assert of_calling.steps == ()
        assert [each.type for each in of_calling.observations] == ["TOOL_CALL", "TOOL_EXECUTION"]
        other = await session.message_trace("m2")
        assert (other.trace_id, other.calls) == (None, ())
        assert [each.content for each in other.observations] == ["Bye."]
        with pytest.raises(ConfigurationError, match="no message 'nope'"):
            await session.message_trace("nope")


async def test_message_trace_needs_no_journal():
    """The observations are those in memory."""
    async with BareAgent("clerk", llm=ScriptedLLM(["Hello."])) as agent:
        session = await agent.create_session("ada")
        await agent.run("hi", session=session, sender=Sender("bob"), message_id="m")
        links = await session.message_trace("m")
        assert [each.content for each in links.observations] == ["Hello."]
        assert links.effects == (session.history[1].id,)


# --- of messages that come later, or go to other agents ----------------------------------------


async def test_a_schedule_has_metadata_for_its_messages_also_after_a_restart(autojump_clock, tmp_path):
    """The metadata is restored from the record and from a snapshot. It can be read, and is not sent to a model."""
    url, noted, received = f"sqlite:///{tmp_path}/agents.db", {"ticket": 7}, []
    llm = ScriptedLLM(lambda chat: str("ticket" in str(chat)))
    for life in range(3):
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=llm))
            session = await agent.ensure_session("ada", "s")
            if life == 0:
                made = await session.schedule("look", cron="* * * * *", key="k", metadata=noted)
                assert made.metadata == noted
            (known,) = session.schedules
            assert known.metadata == noted
            await trio.sleep(100)
            await session.wait_idle()
            received += [message for message in session.history if message.sender.kind == "system"]
            assert {message.text for message in session.history if message.sender.kind == "agent"} <= {
                "False"
            }
    assert len(received) >= 3
    assert all(message.metadata == noted for message in received)


async def test_a_task_has_metadata_also_after_a_restart(autojump_clock, tmp_path):
    """The session of the working agent has it, and its turn continues; the report has none."""
    url, noted, children = f"sqlite:///{tmp_path}/agents.db", {"ticket": 7}, []

    async def work(chat):
        await trio.sleep(100)
        return f"dug, {'ticket' in str(chat)}"

    for seconds in (50, 300):
        async with open_runtime(journal=url) as runtime:
            worker = BareAgent("worker", llm=ScriptedLLM(work), grace=0)
            worker.on_session(children.append)
            await runtime.start(worker)
            lead = await runtime.start(BareAgent("lead", llm=ScriptedLLM(["told"], repeat=True)))
            session = await lead.ensure_session("ada", "s")
            assert await session.delegate("worker", "dig", task_id="t", metadata=noted) == "t"
            await trio.sleep(seconds)
            told = session.history
    assert [[dict(each.metadata) for each in child.history][:1] for child in children] == [[noted], [noted]]
    assert "dug, False" in told[0].text
    assert told[0].metadata == {}


@pytest.mark.parametrize("metadata", ["x", {1: 2}, {"x": object()}, {"x": "y" * 20_000}])
async def test_invalid_metadata_creates_no_schedule_or_session(metadata):
    async with open_runtime() as runtime:
        await runtime.start(BareAgent("worker", llm=ScriptedLLM(["dug"])))
        lead = await runtime.start(BareAgent("lead", llm=ScriptedLLM([])))
        session = await lead.create_session("ada")
        with pytest.raises(ConfigurationError, match="metadata="):
            await session.schedule("look", after=1, metadata=metadata)
        with pytest.raises(ConfigurationError, match="metadata="):
            await session.delegate("worker", "dig", metadata=metadata)
        assert session.schedules == ()
        assert not session.children
        assert [each.session_id for each in await runtime.sessions()] == [session.id]
