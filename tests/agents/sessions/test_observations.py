"""Observations of a session: a view of its records, with history, filters, several subscribers, and thoughts that grow."""

import functools
import json

import attrs
import pytest
import trio
import trio.testing

from actgent import Approve, BareAgent, PlanAgent, ScriptedLLM, SimpleAgent, ToolCall, open_runtime, tool
from actgent.errors import InvalidCursor, ModelTimeout
from actgent.sessions.subscriptions import growing_thoughts

NAMES = {"role": "clerk", "goal": "help", "capabilities": "words"}


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Return the depth of a lake."""
    return {"Baikal": 1642}[lake]


PLAN = json.dumps(
    {
        "thoughts": "One lookup will do.",
        "title": "Depth",
        "intent": "know how deep Baikal is",
        "plan": ["look it up"],
        "toolCalls": [{"toolName": "depth", "arguments": {"lake": "Baikal"}}],
    }
)


async def collected(reader, until):
    """Return the observations up to the first of the given type."""
    found = []
    with trio.fail_after(60):
        while not (found and found[-1].type == until):
            found.append(await reader.receive())
    return found


@pytest.fixture(params=[None, "memory:"])
async def runtime(request):
    """Without a journal the records are kept in memory, and the observations are the same."""
    async with open_runtime(journal=request.param) as opened:
        yield opened


def planner(**options):
    """An agent that plans, looks something up and answers."""
    return PlanAgent(
        "planner", llm=ScriptedLLM([PLAN, "It is 1642 m deep."], **options), tools=[depth], **NAMES
    )


async def test_a_turn_is_observed_in_order(runtime):
    """The order is intent, plan, thoughts, each call once with its result, and the answer. All have the same turn."""
    session = await (await runtime.start(planner())).create_session("ada", session_id="s")
    async with session.observe() as reader:
        message = await session.chat("How deep is Baikal?")
        found = await collected(reader, "FINAL_RESPONSE")
        await session.wait_idle()
    whole = [each for each in found if each.is_whole and each.type != "STATE_UPDATE"]
    assert [each.type for each in whole] == ["THOUGHTS", "INTENT", "PLAN", "TOOL_EXECUTION", "FINAL_RESPONSE"]
    thoughts, intent, plan, result, answer = whole
    assert (thoughts.content, intent.content) == ("One lookup will do.", "know how deep Baikal is")
    assert plan.content["title"] == "Depth"
    assert (result.content, result.metadata["status"]) == ("1642", "success")
    assert answer.content == "It is 1642 m deep."
    assert {each.turn for each in found} == {message}
    assert len({each.id for each in whole}) == len(whole)
    assert all(each.title and each.at for each in whole)
    assert [each.number for each in whole] == sorted(each.number for each in whole)
    history = await session.observations()
    assert [each for each in history if each.type != "STATE_UPDATE"] == whole


async def test_native_calls_are_the_parents_of_their_results(runtime):
    """Each call is observed when it is requested and once when its result exists, also for concurrent calls."""
    calls = [ToolCall("depth", {"lake": "Baikal"}), ToolCall("depth", {"lake": "Baikal"})]
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([calls, "done"]), tools=[depth]))
    session = await agent.create_session("ada")
    await session.chat("twice")
    await session.wait_idle()
    history = await session.observations()
    made = [each for each in history if each.type == "TOOL_CALL"]
    done = [each for each in history if each.type == "TOOL_EXECUTION"]
    assert [each.content for each in made] == [{"name": "depth", "arguments": {"lake": "Baikal"}}] * 2
    assert sorted(each.parent for each in done) == sorted(each.id for each in made)
    assert {each.parent for each in made} == {history[0].turn}


async def test_subscribers_receive_filtered_observations(runtime):
    """One subscriber filters by type, one by turn, and one leaves. None affects the others."""
    session = await (
        await runtime.start(BareAgent("a", llm=ScriptedLLM(["one", "two", "three"])))
    ).create_session("ada")
    async with session.observe(types=["FINAL_RESPONSE"]) as answers:
        async with session.observe() as leaving:
            await session.chat("1")
            assert (await leaving.receive()).content == "one"
        await session.wait_idle()
        second = await session.chat("2")
        await session.wait_idle()
        async with session.observe(turn=second, after=0) as late:
            assert (await late.receive()).content == "two"
        with pytest.raises(trio.ClosedResourceError):
            await leaving.receive()
        assert [(await answers.receive()).content for _ in range(2)] == ["one", "two"]
        cursor = answers.cursor
    await session.chat("3")
    await session.wait_idle()
    async with session.observe(after=cursor) as resumed:
        assert (await resumed.receive()).content == "three"
    assert [each.content for each in await session.observations(turn=second)] == ["two"]
    assert [each.content for each in await session.observations(limit=2)] == ["one", "two"]
    assert [each.content for each in await session.observations(after=cursor)] == ["three"]


async def test_failures_and_suspensions_are_observed(runtime):
    """Observations have the cause of a failed turn, the suspension, and the resumption."""

    @tool(approval=True, effect="once")
    async def pay() -> str:
        """Pay."""
        return "paid"

    script = [ToolCall("pay", {}), ModelTimeout("no answer within 60 s", model="m")]
    agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(script), tools=[pay]))
    session = await agent.create_session("ada")
    session.on_exception(print)
    async with session.observe() as reader:
        await session.chat("pay")
        await session.wait_idle()
        (approval,) = session.approvals
        await session.answer(approval, Approve())
        found = await collected(reader, "ERROR")
    assert [each.type for each in found] == [
        "TOOL_CALL",
        "AGENT_SUSPENDED",
        "AGENT_RESUMED",
        "TOOL_EXECUTION",
        "ERROR",
    ]
    assert found[1].content == [approval.id]
    assert found[-1].metadata == {"kind": "model", "error": "ModelTimeout"}
    assert "no answer within 60 s" in found[-1].content


async def test_typed_answers_and_changes_of_the_state_are_observed(runtime):
    """The answer is the one that handlers receive. A state change has the value with its name."""
    text = json.dumps({"messageType": "DIRECT_RESPONSE", "content": "Good day."})
    agent = await runtime.start(SimpleAgent("a", llm=ScriptedLLM([text]), **NAMES))
    session = await agent.create_session("ada")
    session.state.dispatch(("color", "red"))
    await session.chat("hello")
    await session.wait_idle()
    changed, answer = await session.observations()
    assert (changed.type, changed.content, changed.turn) == ("STATE_UPDATE", {"color": "red"}, "")
    assert (answer.type, answer.content) == ("FINAL_RESPONSE", "Good day.")
    assert answer.metadata["message_type"] == "DIRECT_RESPONSE"


async def test_state_updates_have_a_title_and_structured_content(runtime):
    """The title is the action's name, or the keys that changed; a plan is an object, not JSON text."""

    def set_color(state):
        return ("color", "red")

    text = json.dumps({"intent": "know", "todoList": [{"id": "s1", "description": "look"}]})
    script = [text, json.dumps({"content": "1642"}), "1642 m."]
    session = await (
        await runtime.start(PlanAgent("p", llm=ScriptedLLM(script), tools=[depth]))
    ).create_session("ada")
    session.state.dispatch(set_color)
    session.state.dispatch(lambda _: [("size", 1), ("note", '{"kept": "as text"}')])
    session.state.dispatch(functools.partial(set_color))
    await session.chat("How deep is Baikal?")
    await session.wait_idle()
    color, size, again, *plans = await session.observations(types=["STATE_UPDATE"])
    assert (color.title, color.content) == ("Set color", {"color": "red"})
    assert (size.title, size.content) == ("State: size, note", {"size": 1, "note": '{"kept": "as text"}'})
    assert again.title == "Set color"
    assert {each.title for each in plans} == {"State: plan"}
    assert plans[0].content["plan"]["items"][0]["description"] == "look"
    assert not any("lambda" in json.dumps(attrs.asdict(each)["content"]) for each in plans)


async def test_without_a_journal_the_newest_observations_are_kept(monkeypatch):
    """Memory is bounded, and the numbers of the retained observations do not change."""
    monkeypatch.setattr("actgent.sessions.recent_records_without_journal.MAX_RECORDS", 40)
    monkeypatch.setattr("actgent.sessions.recent_records_without_journal.RecentRecords.TRIM_AT", 50)
    async with BareAgent("a", llm=ScriptedLLM(lambda chat: chat.messages[-1].parts[0].text)) as agent:
        session = await agent.create_session("ada")
        for n in range(5):
            await agent.run(f"q{n}", session=session)
        (first, *_) = kept = await session.observations()
        for n in range(5, 30):
            await agent.run(f"q{n}", session=session)
        newest = await session.observations()
        assert [each.content for each in kept] == [f"q{n}" for n in range(5)]
        assert newest[-1].content == "q29"
        assert 5 < len(newest) < 15
        assert newest[-1].number - newest[-2].number == kept[-1].number - kept[-2].number
        async with session.observe(after=first.number) as reader:
            assert (await reader.receive()) == newest[0]


async def test_a_subscription_ends_with_a_session_without_a_journal():
    """Earlier observations are received first."""
    async with BareAgent("a", llm=ScriptedLLM(["one"])) as agent:
        session = await agent.create_session("ada")
        async with session.observe() as reader:
            await agent.run("1", session=session)
            await session.aclose()
            assert [each.content async for each in reader] == ["one"]
        assert [each.content for each in await session.observations()] == ["one"]


async def test_a_runtime_without_a_journal_observes_sessions_of_its_agents():
    """Sessions are found by agent and id, as with a journal."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        session = await agent.create_session("ada", session_id="s")
        async with runtime.observe("s", agent="a") as reader:
            await agent.run("1", session=session)
            assert (await reader.receive()).content == "one"
        assert [each.content for each in await runtime.observations("s", agent="a")] == ["one"]


async def test_cursor_ahead_of_the_records_is_rejected():
    """Such a cursor belongs to another session."""
    async with BareAgent("a", llm=ScriptedLLM([])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(InvalidCursor):
            async with session.observe(after=7):
                pass


async def test_messages_answered_together_are_one_turn_with_and_without_a_journal():
    """The last message names the turn."""
    for journal in (None, "memory:"):
        async with open_runtime(journal=journal) as runtime:
            release = trio.Event()

            async def answer(chat, release=release):
                await release.wait()
                return f"{len(chat.messages)}"

            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer), on_busy="collect"))
            session = await agent.create_session("ada", "first")
            second, third = await session.chat("second"), await session.chat("third")
            release.set()
            await session.wait_idle()
            assert second != third
            assert [each.turn for each in await session.observations()][-1] == third


async def test_thoughts_are_observed_while_the_model_writes_them(runtime):
    """Partial thoughts have the id of the complete ones."""
    send, receive = trio.open_memory_channel(0)
    agent = planner(chunk=20)
    complete = agent._models.clients["default"].complete

    async def slowly(chat, *, on_text=None):
        async def gated(text, attempt):
            await receive.receive()
            await on_text(text, attempt)

        return await complete(chat, on_text=None if on_text is None else gated)

    agent._models.clients["default"].complete = slowly
    session = await (await runtime.start(agent)).create_session("ada")
    async with session.observe(types=["THOUGHTS"]) as reader, session.observe(types=["PLAN"]) as plans:
        await session.chat("How deep is Baikal?")
        grown = []
        with trio.fail_after(60):
            while not grown or len(grown[-1].content) < len("One lookup will do."):
                await send.send(None)
                await trio.testing.wait_all_tasks_blocked()
                with trio.move_on_after(0.02):
                    grown.append(await reader.receive())
            async with receive, trio.open_nursery() as nursery:

                async def let_all() -> None:
                    while True:
                        await send.send(None)

                nursery.start_soon(let_all)
                plan = await plans.receive()
                whole = await reader.receive()
                while not whole.is_whole:
                    whole = await reader.receive()
                await session.wait_idle()
                nursery.cancel_scope.cancel()
    assert plan.type == "PLAN"
    assert [each.content for each in grown] == sorted({each.content for each in grown}, key=len)
    assert len(grown) > 1
    assert {each.id for each in grown} == {whole.id}
    assert (whole.content, whole.is_whole, grown[0].number) == ("One lookup will do.", True, 0)


@pytest.mark.parametrize(
    ("text", "thoughts"),
    [
        ("", ""),
        ("<think>so it", "so it"),
        ("<think>so it</thi", "so it"),
        ("<think>so it</think>The answer", "so it"),
        ('{"plan": [], "thoughts": "a \\"b\\" \\u00e', 'a "b" '),
        ('{"thoughts": "one\\ntwo", "x"', "one\ntwo"),
        ('{"tool_thought": "\\ud83d', ""),
        ('{"tool_thought": "\\ud83d\\ude00', "\U0001f600"),
        ('{"thought": "why', "why"),
        ("plain words", ""),
    ],
)
def test_partial_thoughts_are_parsed(text, thoughts):
    """Thoughts are in tags or in a member of a JSON answer."""
    assert growing_thoughts(text) == thoughts
