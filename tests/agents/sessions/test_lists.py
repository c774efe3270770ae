"""Lists of sessions, and sessions with an imported history."""

import pytest
import trio

from actgent import (
    BareAgent,
    ChatMessage,
    ConfigurationError,
    LimitReached,
    Limits,
    ScriptedLLM,
    SessionClosed,
    ShortTermMemory,
    Text,
    ToolCall,
    ToolResult,
    WrongOwner,
    open_runtime,
    tool,
)
from actgent.testing import check_transcript

SAID = (
    ChatMessage("user", (Text("2 + 3?"),)),
    ChatMessage(
        "assistant", (Text("I add."), ToolCall("add", {"a": 2}, id="c1"), ToolCall("add", {"a": 3}, id="c2"))
    ),
    ChatMessage(
        "tool",
        (
            ToolResult(call_id="c1", tool_name="add", content="2"),
            ToolResult(call_id="c2", tool_name="add", content="5"),
        ),
    ),
    ChatMessage("assistant", (Text("5."),)),
)
TEXTS = ["2 + 3?", "I add.", "", "5."]


@pytest.fixture(params=["none", "memory", "sqlite"])
def journal(request, tmp_path):
    """Without a journal, and with each kind that needs no server."""
    return {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agents.db"}[request.param]


def clerk(name="clerk", *answers, **options):
    return BareAgent(name, llm=ScriptedLLM(list(answers) or ["Noted."], repeat=True), **options)


# --- lists ----------------------------------------------------------------------------------------


async def all_of(runtime, **wanted):
    """The ids of all pages."""
    found, last = [], None
    while page := await runtime.sessions(after=last, **wanted):
        found += [each.session_id for each in page]
        last = page[-1]
    return found


async def test_pages_are_sorted_by_time_and_filtered(journal):
    """The filters are owner, agent and state. Each session is in one page."""
    async with open_runtime(journal=journal) as runtime:
        first, second = await runtime.start(clerk("first")), await runtime.start(clerk("second"))
        for agent in (first, second):
            for number in range(3):
                owner = "ada" if number else "bob"
                session = await agent.create_session(owner, "Hello", session_id=f"{agent.name}-{number}")
                await session.wait_idle()
        assert await all_of(runtime, limit=2) == [
            f"{name}-{number}" for name in ("second", "first") for number in (2, 1, 0)
        ]
        assert await all_of(runtime, owner="ada", agent="first", limit=1) == ["first-2", "first-1"]
        assert await all_of(runtime, state="working") == []
        assert len(await all_of(runtime, state="idle")) == 6
        summary = (await runtime.sessions(owner="bob", limit=1))[0]
        assert (summary.agent, summary.owner, summary.state) == ("second", "bob", "idle")
        assert summary.created_at <= summary.updated_at


async def test_running_session_is_listed_as_working(journal):
    going = trio.Event()

    async def answer(chat):
        going.set()
        await trio.sleep_forever()

    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([answer, answer]), grace=0))
        await agent.create_session("ada", "Hello", session_id="busy")
        await agent.create_session("ada", session_id="idle")
        await going.wait()
        assert await all_of(runtime, state="working") == ["busy"]
        assert await all_of(runtime, state="idle") == ["idle"]


@pytest.mark.parametrize("wrong", [{"state": "wroking"}, {"limit": 0}, {"limit": "2"}])
async def test_invalid_list_filter_is_rejected(journal, wrong):
    """The error names the problem."""
    async with open_runtime(journal=journal) as runtime:
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            await runtime.sessions(**wrong)


# --- a history --------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [False, True])
async def test_a_history_precedes_the_new_message(journal, also):
    """The request has the history with its calls and results. Hooks and handlers receive nothing of it."""
    received, shown = [], []

    def answer(chat):
        shown.append(chat)
        return "Noted."

    agent = BareAgent("clerk", llm=ScriptedLLM(answer))
    agent.on_message(lambda message: received.append(message.text))
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        description = "And now?" if also else ""
        session = await agent.create_session("ada", description, session_id="s", history=SAID)
        if not also:
            await session.chat("And now?")
        await session.wait_idle()
        assert [message.text for message in session.history] == [*TEXTS, "And now?", "Noted."]
        assert session.history[0].sender == session.owner
    assert shown[0].messages[:4] == SAID
    assert check_transcript(shown[0]) == []
    assert received == ["And now?", "Noted."]


async def test_a_history_survives_a_restart(tmp_path):
    """The journal has it in the first step of the session, with or without later messages."""
    url, llm = f"sqlite:///{tmp_path}/agents.db", ScriptedLLM(["Noted."], repeat=True)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        quiet = await agent.create_session("ada", session_id="quiet", history=SAID)
        spoken = await agent.create_session("ada", "And now?", session_id="spoken", history=quiet.history)
        await spoken.wait_idle()
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        for name in ("quiet", "spoken"):
            session = await agent.open_session(name)
            assert [message.text for message in session.history][:4] == TEXTS
            await agent.run("And then?", session=session)
            assert llm.chats[-1].messages[:4] == SAID


async def test_calls_of_a_history_keep_their_ids(journal):
    """A later call for which the provider repeats one of the ids gets a new id."""
    again = ToolCall("add", {"a": 4}, provider_id="c1")

    async def add(a: int) -> int:
        """Add."""
        return a

    agent = BareAgent("clerk", llm=ScriptedLLM([[again], "Done."]), tools=[tool(add)])
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", history=SAID)
        assert str(await agent.run("And 4?", session=session)) == "Done."
        ids = [call.id for message in session.history for call in message.tool_calls]
        assert len(ids) == len(set(ids)) == 3


async def test_a_history_is_made_from_dictionaries(journal):
    """Dictionaries of other programs are accepted; memory counts the history as other messages."""
    old = [{"role": role, "content": "long " * 50} for role in ("user", "assistant") * 10]
    agent = clerk(memory=ShortTermMemory(max_tokens=200))
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", history=old)
        await agent.run("Hello", session=session)
        assert len(session.history) == 22


def one_by_one(call_id="call_0"):
    """Return two calls with one id and a message for each result, as from servers that count ids anew in each answer."""
    calls = tuple(ToolCall("add", {"a": a}, id=call_id) for a in (1, 2))
    results = [
        ChatMessage("tool", (ToolResult(call_id=call_id, tool_name="add", content=str(a)),)) for a in (1, 2)
    ]
    return [ChatMessage("user", (Text("Add."),)), ChatMessage("assistant", calls), *results]


REPEATED = {
    "a later turn": [*SAID, *SAID],
    "one answer": one_by_one(),
    "no ids": [*one_by_one(""), *one_by_one("")],
    "results with the next words": [
        *one_by_one()[:2],
        ChatMessage("user", (*one_by_one()[2].parts, *one_by_one()[3].parts, Text("And now?"))),
        ChatMessage("assistant", ()),
        *one_by_one(),
    ],
}


@pytest.mark.parametrize("name", REPEATED)
async def test_repeated_call_ids_of_a_history_are_renamed(name, tmp_path):
    """Live answers are treated equally. Each result stays with its call, also after a restart."""
    url, llm = f"sqlite:///{tmp_path}/agents.db", ScriptedLLM(["Noted."], repeat=True)
    for number in range(2):
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=llm))
            if number:
                session = await agent.open_session("s")
            else:
                session = await agent.create_session("ada", session_id="s", history=REPEATED[name])
            await agent.run("And then?", session=session)
            calls = [call for message in session.history for call in message.tool_calls]
            results = [result for message in session.history for result in message.tool_results]
            assert [call.id for call in calls] == [result.call_id for result in results]
            assert len({call.id for call in calls}) == len(calls) == 2 * (1 + (len(REPEATED[name]) > 4))
            assert all(call.id for call in calls)
            values = [part for message in REPEATED[name] for part in message.parts]
            assert [call.arguments for call in calls] == [
                part.arguments for part in values if isinstance(part, ToolCall)
            ]
            assert [result.content for result in results] == [
                part.content for part in values if isinstance(part, ToolResult)
            ]
            assert check_transcript(llm.chats[-1]) == []


WRONG = {
    "text": ("Hello", "a list of messages"),
    "role": (
        [{"role": "system", "content": "Be kind."}],
        r"history\[0\]: its role must be .*, not 'system'.*system_prompt=",
    ),
    "fields": ([{"role": "user", "text": "x"}], r"history\[0\]: it must be a ChatMessage"),
    "empty": ([{"role": "user", "content": " "}], r"history\[0\]: it has no content"),
    "no text": ([{"role": "user", "content": 7}], r"history\[0\]"),
    "no result": (SAID[:2], "must not end with tool calls that have no results: ."),
    "results left out": (
        [*SAID[:2], SAID[3]],
        r"history\[2\]: it must have the results of the calls .'c1', 'c2'.",
    ),
    "no call": ([SAID[0], SAID[2]], r"history\[1\]: it must have the results of the calls .."),
    "one result too many": ([*SAID[:3], SAID[2]], r"history\[3\]: it must have the results of the calls .."),
    "another id": (
        [*SAID[:2], ChatMessage("tool", (ToolResult(call_id="c3", tool_name="add"),))],
        r"history\[2\]: it must have the results of the calls .'c1', 'c2'., and it has results of .'c3'.",
    ),
    "a repeated id without result": (
        [*SAID, *SAID[:2], SAID[0]],
        r"history\[6\]: it must have the results of the calls",
    ),
    "no id": ([ChatMessage("assistant", (ToolCall("add", {}),))], "the id '' of a call is empty"),
    "a user's call": (
        [ChatMessage("user", (ToolCall("add", {}, id="a"),))],
        "role user cannot have a part of the class ToolCall",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("way", ["create", "ensure"])
async def test_invalid_history_is_rejected(journal, wrong, way):
    """The error names the position, and no session is created."""
    history, says = WRONG[wrong]
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        call = agent.create_session if way == "create" else agent.ensure_session
        with pytest.raises(ConfigurationError, match=says):
            await call("ada", session_id="s", history=history)
        assert await runtime.sessions() == ()


# --- found or made ------------------------------------------------------------------------------------


async def test_session_options_apply_to_the_first_creation(tmp_path):
    """One of several concurrent callers creates it; later callers find it unchanged, also after a restart."""
    url, llm = f"sqlite:///{tmp_path}/agents.db", ScriptedLLM(["Noted."], repeat=True)
    found = []
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))

        async def ensure(number):
            found.append(
                await agent.ensure_session(
                    "ada",
                    "ada-1",
                    prompt=f"Number {number}.",
                    history=SAID,
                    limits=Limits(model_calls=2),
                    on_busy="reject",
                )
            )

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(ensure, number)
        assert len({id(session) for session in found}) == 1
        assert len(found[0].history) == 4
        await agent.run("One", session=found[0])
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        session = await agent.ensure_session(
            "ada", "ada-1", prompt="Another.", limits=Limits(model_calls=100)
        )
        await agent.run("Two", session=session)
        systems = {chat.system for chat in llm.chats}
        assert len(systems) == 1
        assert "Number " in systems.pop()

        with pytest.raises(LimitReached):
            await agent.run("Three", session=session)
        with pytest.raises(WrongOwner):
            await agent.ensure_session("bob", "ada-1", limits=Limits(model_calls=100))
        await session.aclose()
        with pytest.raises(SessionClosed):
            await agent.ensure_session("ada", "ada-1")


@pytest.mark.parametrize("wrong", [{"limits": 7}, {"on_busy": "wait"}, {"history": "x"}])
async def test_invalid_options_are_rejected_for_existing_sessions(journal, wrong):
    """The error is raised at the first call, so a mistake is found before the first new user."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        await agent.ensure_session("ada", "ada-1")
        with pytest.raises(ConfigurationError):
            await agent.ensure_session("ada", "ada-1", **wrong)
