"""Statistics by day, agent, model and owner, in every storage."""

import datetime as dt

import pytest

from actgent import (
    LLM,
    BareAgent,
    ConfigurationError,
    ModelError,
    ModelResponse,
    Text,
    ToolCall,
    Usage,
    open_runtime,
    tool,
)
from actgent.session_index.record_indexing import bucket_of, seconds_of
from actgent.session_index.search_and_trend_queries import duration_percentile


class Counting(LLM):
    """Answer yes, call the named tool, or fail."""

    name = "counting"

    async def complete(self, chat, on_text=None):
        usage = Usage(input_tokens=10, output_tokens=2, cached_tokens=4, cost=0.5)
        last = chat.messages[-1].parts[0]
        text = getattr(last, "text", "")
        if text == "fail":
            raise ModelError("the model is down")
        if text == "call":
            return ModelResponse(
                parts=(ToolCall("broken", {}),), stop="tool_use", usage=usage, model="counting"
            )
        return ModelResponse(parts=(Text("yes"),), usage=usage, model="counting")


@tool
def broken() -> str:
    """Always fails."""
    raise ValueError("broken")


def agent_of(name="clerk"):
    return BareAgent(name, llm=Counting(), tools=[broken])


async def say(agent, owner, *texts):
    session = await agent.create_session(owner)
    session.on_exception(lambda _: None)
    for text in texts:
        await session.chat(text)
        await session.wait_idle()
    return session


async def test_a_new_journal_at_the_place_of_a_removed_one_has_no_earlier_trends(tmp_path):
    """The index of a removed journal file is emptied. The index of the same journal keeps amounts of erased sessions."""
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    async with open_runtime(journal=url, index=True) as runtime:
        session = await say(await runtime.start(agent_of()), "ada", "hello", "call")
        assert (await trends(runtime)).total.turns == 2
        await runtime.delete_session(session.id)
    async with open_runtime(journal=url, index=True) as runtime:
        assert (await trends(runtime)).total.turns == 2
    for path in tmp_path.glob("agents.db*"):
        path.unlink()
    assert (tmp_path / "agents.index.data.db").exists()
    async with open_runtime(journal=url, index=True) as runtime:
        assert (await trends(runtime)).total.turns == 0
        await say(await runtime.start(agent_of()), "ada", "hello")
        assert (await trends(runtime)).total.turns == 1
        assert len((await runtime.search("hello")).hits) == 1


async def trends(runtime, by="day", **expected):
    await runtime.index.wait_filled()
    return await runtime.trends(by, **expected)


async def test_statistics_count_turns_and_usage(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of())
        await say(agent, "ada", "hello", "call", "fail")
        found = await trends(runtime)
    (day,) = found.items
    assert day.name == dt.datetime.now(dt.UTC).date().isoformat()
    assert (day.turns, day.errors, day.model_calls, day.tool_calls, day.tool_failures) == (3, 1, 3, 1, 1)
    assert (day.input_tokens, day.output_tokens, day.cached_tokens, day.cost) == (30, 6, 12, 1.5)
    assert 0 < day.p50 <= day.p95 <= day.p99
    assert (found.total.turns, found.total.cost) == (3, 1.5)


async def test_statistics_are_grouped_and_filtered(url):
    async with open_runtime(journal=url, index=True) as runtime:
        clerk, helper = await runtime.start(agent_of()), await runtime.start(agent_of("helper"))
        await say(clerk, "ada", "hello")
        await say(helper, "bob", "hello", "hello")
        by_agent = await trends(runtime, "agent")
        assert [(each.name, each.turns) for each in by_agent.items] == [("helper", 2), ("clerk", 1)]
        by_owner = await trends(runtime, "owner", agent="clerk")
        assert [(each.name, each.turns) for each in by_owner.items] == [("ada", 1)]
        by_model = await trends(runtime, "model", owner="bob")
        assert [(each.name, each.turns) for each in by_model.items] == [("counting", 2)]
        assert (await trends(runtime, until=86_400.0)).items == ()
        assert (await trends(runtime, owner="x\0y")).total.turns == 0


async def test_statistics_survive_a_restart_and_are_counted_once(lasting_url):
    for number in (1, 2):
        async with open_runtime(journal=lasting_url, index=True) as runtime:
            agent = await runtime.start(agent_of())
            await say(agent, "ada", "hello")
            assert (await trends(runtime)).total.turns == number


async def test_statistics_of_erased_sessions_are_kept(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of())
        session = await say(agent, "ada", "hello")
        await runtime.index.wait_filled()
        await runtime.delete_session(session.id)
        assert (await trends(runtime)).total.turns == 1


async def test_sessions_of_single_requests_are_counted_before_they_are_erased(lasting_url):
    """They are erased when the runtime closes, at the latest."""
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        agent = await runtime.start(agent_of())
        await runtime.index.wait_filled()
        for _ in range(3):
            await agent.run("hello")
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        assert await runtime.sessions() == ()
        assert (await trends(runtime)).total.turns == 3


async def test_unknown_group_is_rejected():
    async with open_runtime(journal="memory:", index=True) as runtime:
        with pytest.raises(ConfigurationError, match="by='days'"):
            await runtime.trends("days")


@pytest.mark.parametrize("seconds", [0.002, 0.4, 1.0, 17.0, 5000.0])
def test_durations_are_kept_within_5_percent(seconds):
    assert seconds_of(bucket_of(seconds)) == pytest.approx(seconds, rel=0.05)


def test_percentiles_are_computed_from_counts():
    counts = {1: 50, 2: 45, 3: 5}
    assert [duration_percentile(counts, share, float) for share in (0.5, 0.95, 0.99)] == [1.0, 2.0, 3.0]
    assert duration_percentile({}, 0.5, float) is None
