"""Long results: the conversation has their beginning, and `read_result` the rest."""

import pytest

from actgent import BareAgent, Limits, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.toolsets.ready import read_result

LONG = "".join(f"line {n}\n" for n in range(20_000))


@tool(thread=False, effect="pure")
def long_text() -> str:
    """Return a long text."""
    return LONG


def agent_with(*steps, tools=(long_text, read_result)):
    return BareAgent(
        "a", llm=ScriptedLLM(list(steps)), tools=list(tools), limits=Limits(result_characters=1000)
    )


def results_of(session):
    return [result for message in session.history for result in message.tool_results]


def read(**arguments):
    return [ToolCall("read_result", {"id": "c", **arguments})]


@pytest.mark.parametrize("journal", [False, True])
async def test_the_rest_is_read_and_searched_also_after_a_restart(journal, tmp_path):
    """The record has the beginning only; the text is kept once."""
    place = f"sqlite:///{tmp_path}/j.db" if journal else None
    steps = (
        [[ToolCall("long_text", {}, id="c")], "ok"],
        [read(start=5000, length=100), read(search="line 19999"), "ok"],
    )
    if not journal:
        steps = ([*steps[0], *steps[1]],)
    for life, script in enumerate(steps):
        agent = agent_with(*script)
        async with open_runtime(**({"journal": place} if journal else {})) as runtime:
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
    assert sum(LONG in str(value) for value in session.state.values()) == 1


async def test_without_read_result_nothing_is_kept():
    """It is cut, as ever, and the state stays empty."""
    async with agent_with([ToolCall("long_text", {})], "ok", tools=[long_text]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        assert "[cut: " in results_of(session)[0].content
        assert dict(session.state) == {}


async def test_another_session_reads_nothing_of_it():
    """Each has its own results; an id that is not known is an error for the model."""
    async with agent_with([ToolCall("long_text", {}, id="c")], "ok", read(), "ok") as agent:
        await agent.run("go", session=await agent.create_session("ada"))
        other = await agent.create_session("bob")
        await agent.run("go", session=other)
        assert [result.status for result in results_of(other)] == ["error"]


async def test_what_is_kept_is_bounded():
    """Beyond that results are cut."""

    @tool(thread=False, effect="pure")
    def huge(n: int) -> str:
        """Return a huge text."""
        return str(n) * 1_500_000

    calls = [ToolCall("huge", {"n": n}) for n in range(5)]
    async with agent_with(calls, "ok", tools=[huge, read_result]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        kept = ["read_result" in result.content for result in results_of(session)]
        assert kept == [True, True, False, False, False]
        assert sum(len(value) for value in session.state.values() if isinstance(value, str)) <= 4_000_000
