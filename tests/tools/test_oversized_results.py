"""Long results: the conversation has their beginning, and `read_result` returns the rest."""

import pytest
import trio

from actgent import (
    BareAgent,
    Deferred,
    Limits,
    Mode,
    Modes,
    ScriptedLLM,
    Session,
    StaticToolset,
    ToolCall,
    ToolError,
    open_runtime,
    tool,
)

LONG = "".join(f"line {n}\n" for n in range(20_000))


@tool(thread=False, effect="pure")
def long_text() -> str:
    """Return a long text."""
    return LONG


def agent_with(*steps, tools=(long_text,)):
    return BareAgent(
        "a", llm=ScriptedLLM(list(steps)), tools=list(tools), limits=Limits(result_characters=1000)
    )


def results_of(session):
    return [result for message in session.history for result in message.tool_results]


def read(**arguments):
    return [ToolCall("read_result", {"id": "c", **arguments})]


@pytest.mark.parametrize("journal", [False, True])
async def test_the_rest_is_read_and_searched_also_after_a_restart(journal, tmp_path):
    """The record has only the beginning. The full text is stored once."""
    path = f"sqlite:///{tmp_path}/j.db" if journal else None
    steps = (
        [[ToolCall("long_text", {}, id="c")], "ok"],
        [read(start=5000, length=100), read(search="line 19999"), "ok"],
    )
    if not journal:
        steps = ([*steps[0], *steps[1]],)
    for life, script in enumerate(steps):
        agent = agent_with(*script)
        async with open_runtime(**({"journal": path} if journal else {})) as runtime:
            await runtime.start(agent)
            session = (
                await agent.open_session("s") if life else await agent.create_session("ada", session_id="s")
            )
            for _ in range(1 if journal else 2):
                await agent.run("go", session=session)
            results = results_of(session)
    first, piece, found = results
    assert len(first.content) <= 1000
    assert f"of {len(LONG)} characters" in first.content
    assert f'id "{first.call_id}"' in first.content
    assert LONG.startswith(first.content.split("\n[the first ")[0])
    assert piece.content == f"[characters 5000 to 5100 of {len(LONG)}]\n{LONG[5000:5100]}"
    assert "line 19999" in found.content
    assert found.content.startswith(f"[at {LONG.index('line 19999')}]")
    with pytest.raises(KeyError):
        session.state[f"_result/{first.call_id}"]
    assert LONG not in str([*session.state.values()])


async def test_limit_of_zero_stores_no_result_and_offers_no_tool():
    """With a storage limit of 0 a result is cut, `read_result` is not offered, and the state is empty."""
    llm = ScriptedLLM([[ToolCall("long_text", {})], "ok"])
    limits = Limits(result_characters=1000, kept_characters=0)
    async with BareAgent("a", llm=llm, tools=[long_text], limits=limits) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        assert "[truncated: " in results_of(session)[0].content
        assert dict(session.state) == {}
    assert [spec.name for spec in llm.chats[0].tools] == ["long_text"]


async def test_turn_limit_of_zero_stores_no_result():
    """The limits of a turn apply: its long results are cut. The tool is still offered."""
    async with agent_with([ToolCall("long_text", {})], "ok", [ToolCall("long_text", {})], "ok") as agent:
        session = await agent.create_session("ada")
        limits = Limits(result_characters=1000, kept_characters=0)
        await agent.run("go", session=session, limits=limits)
        await agent.run("go", session=session)
        assert ["read_result" in each.content for each in results_of(session)] == [False, True]


@pytest.mark.parametrize("tools", [[], [long_text], [Deferred(StaticToolset("all", [long_text]))]])
async def test_every_agent_with_tools_is_offered_it(tools):
    """The tool is offered from the start, so that the prompt prefix never changes. An agent without tools does not offer it."""
    llm = ScriptedLLM(["hello"])
    async with BareAgent("a", llm=llm, tools=tools) as agent:
        await agent.run("hi")
    names = [spec.name for spec in llm.chats[0].tools]
    assert ("read_result" in names) is bool(tools)
    assert bool(names) is bool(tools)


async def test_read_result_respects_the_time_limit_of_tools(monkeypatch, autojump_clock):
    """If the journal does not answer, `read_result` fails after the time limit of tools, and the turn continues."""

    async def read_forever(self, **options):
        await trio.sleep_forever()

    monkeypatch.setattr(Session, "messages", read_forever)
    llm = ScriptedLLM([read(), "ok"])
    async with BareAgent("a", llm=llm, tools=[long_text], limits=Limits(tool_timeout=5)) as agent:
        session = await agent.create_session("ada")
        assert (await agent.run("go", session=session)).text == "ok"
        (result,) = results_of(session)
    assert result.status == "error"
    assert "5" in result.error


async def test_custom_read_result_tool_is_kept():
    """The custom tool is offered, and no result is stored, because the custom tool cannot read it."""

    @tool(thread=False, effect="pure")
    def read_result(page: int) -> str:
        """Read a page of exam results."""
        return f"page {page}"

    calls = [ToolCall("long_text", {}), ToolCall("read_result", {"page": 3})]
    async with agent_with(calls, "ok", tools=[long_text, read_result]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        cut, page = results_of(session)
        assert "[truncated: " in cut.content
        assert page.content == "page 3"
        assert dict(session.state) == {}


async def test_long_error_is_stored():
    """A raised error can be as long as a result, for example the output of a failed build."""

    @tool(thread=False, effect="pure")
    def build() -> str:
        """Build."""
        raise ToolError(LONG)

    steps = ([ToolCall("build", {}, id="c")], read(start=5000, length=100))
    async with agent_with(*steps, "ok", tools=[build]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        failed, piece = results_of(session)
        assert failed.status == "error"
        assert len(failed.error) <= 1000
        assert 'read_result with id "c"' in failed.error
        assert LONG[5000:5100] in piece.content


async def test_every_mode_permits_read_result():
    """`read_result` changes nothing and returns only text of the session, so every mode permits it."""
    modes = Modes(Mode("look", ["long_text"]), ready=False)
    steps = ([ToolCall("long_text", {}, id="c")], read(start=5000, length=100))
    llm = ScriptedLLM([*steps, "ok"])
    limits = Limits(result_characters=1000)
    async with BareAgent("a", llm=llm, tools=[long_text], modes=modes, limits=limits) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        assert LONG[5000:5100] in results_of(session)[1].content


async def test_stored_result_is_private_to_its_session():
    """Each session has its own results. An unknown id is an error for the model."""
    async with agent_with([ToolCall("long_text", {}, id="c")], "ok", read(), "ok") as agent:
        await agent.run("go", session=await agent.create_session("ada"))
        other = await agent.create_session("bob")
        await agent.run("go", session=other)
        assert [result.status for result in results_of(other)] == ["error"]


async def test_stored_results_are_bounded():
    """Above the limit results are cut."""

    @tool(thread=False, effect="pure")
    def huge(n: int) -> str:
        """Return a huge text."""
        return str(n) * 1_500_000

    calls = [ToolCall("huge", {"n": n}) for n in range(5)]
    async with agent_with(calls, "ok", tools=[huge]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        kept = ["read_result" in result.content for result in results_of(session)]
        assert kept == [True, True, False, False, False]
        assert sum(len(value) for value in session.state.values() if isinstance(value, str)) <= 4_000_000


@tool(thread=False, effect="pure")
def no_text() -> str:
    """Return an empty text."""
    return ""


@pytest.mark.parametrize(("name", "call_id"), [("long_text", "unknown"), ("no_text", "c")])
async def test_read_result_refuses_an_id_without_a_text_result(name, call_id):
    """For an unknown id and for an empty result, the error names the id and the location of valid ids."""
    steps = [[ToolCall(name, {}, id="c")], [ToolCall("read_result", {"id": call_id})], "ok"]
    async with agent_with(*steps, tools=(long_text, no_text)) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        result = results_of(session)[-1]
    assert result.status == "error"
    assert (
        f"no text result with the id '{call_id}': use the id at the end of a shortened result" in result.error
    )
