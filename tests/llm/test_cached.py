"""A model with cached answers, in agents and called directly."""

import json
from functools import partial

import pytest
import trio

from actgent import (
    BareAgent,
    CachedModel,
    ConfigurationError,
    GoalAgent,
    ModelResponse,
    ScriptedLLM,
    Text,
    ToolCall,
    Usage,
    run_agent,
    tool,
)
from actgent.llm.model_interface import LLM, ModelRequest
from actgent.messages import ChatMessage


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


def ok(state, args):
    """Give one."""
    return ("v", 1)


def decide(chat, *, native=True):
    """Return a call first and an evaluation once the tool result is in the conversation."""
    content = str(chat.messages)
    if "'v'" not in content and '"v"' not in content:
        call = ToolCall("ok", {}) if native else Text(act("execute", tool="ok"))
        return ModelResponse(parts=(call,), usage=Usage(input_tokens=5, cost=1.0))
    text = act("evaluate", achieved=True, answer="done")
    return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=5, cost=1.0))


@pytest.mark.parametrize("native", [True, False])
async def test_repeated_goal_calls_no_model(native):
    """A second run of a goal calls no model: same decisions and result, no tokens, new call ids."""
    llm = CachedModel(ScriptedLLM(partial(decide, native=native)))
    first = await run_agent("find v", llm, tools=[ok])
    second = await run_agent("find v", llm, tools=[ok])
    assert (first.text, first.raw_data) == (second.text, second.raw_data) == ("done", {"v": 1})
    assert (len(llm.llm.chats), llm.hits, llm.misses) == (2, 2, 2)
    assert (first.metrics.tokens, second.metrics.tokens) == (10, 0)
    assert (first.metrics.cost, second.metrics.cost) == (2.0, 0.0)
    assert second.iterations == 2  # limits also count cached decisions
    await run_agent("find w", llm, tools=[ok])
    assert len(llm.llm.chats) == 4


async def test_different_tool_results_miss_the_cache():
    """The conversation contains the tool results, so a different result is a cache miss."""
    values = iter([1, 2])

    def changing(state, args):
        return ("v", next(values))

    llm = CachedModel(ScriptedLLM(decide))
    for _ in range(2):
        await run_agent("find v", llm, tools={"ok": changing})
    assert (len(llm.llm.chats), llm.hits) == (3, 1)


async def test_owners_do_not_share_cache_entries():
    """Equal messages of two owners are separate entries. Sessions of one owner share entries."""
    llm = CachedModel(ScriptedLLM(lambda chat: f"Hello, {chat.owner}."))
    async with BareAgent("clerk", llm=llm) as clerk:
        texts = []
        for owner in ("ada", "bob", "ada", "bob"):
            session = await clerk.create_session(owner)
            texts.append(str(await clerk.run("Good morning!", session=session)))
    assert texts == ["Hello, ada.", "Hello, bob."] * 2
    assert (len(llm.llm.chats), llm.hits) == (2, 2)


async def test_cache_is_bounded():
    """A full cache drops the least recently used answer."""
    llm = CachedModel(ScriptedLLM(lambda chat: chat.messages[-1].parts[0].text), capacity=2)

    async def ask(text):
        await llm.complete(ModelRequest(messages=[ChatMessage("user", (Text(text),))], owner="ada"))

    for text in ("a", "b", "a", "c", "a", "b"):
        await ask(text)
    assert (llm.hits, llm.misses) == (2, 4)
    llm.clear()
    await ask("a")
    assert llm.misses == 5


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"system": "x"}, {"max_tokens": 5}, {"owner": "bob"}]
)
async def test_cache_key_contains_the_whole_request(change):
    """A different prompt, temperature, limit or owner is a different key."""
    llm = CachedModel(ScriptedLLM(["one", "two"]))
    chat = {"messages": [ChatMessage("user", (Text("hi"),))], "owner": "ada"}
    assert (await llm.complete(ModelRequest(**chat))).text == "one"
    assert (await llm.complete(ModelRequest(**{**chat, **change}))).text == "two"
    assert (await llm.complete(ModelRequest(**chat))).text == "one"


async def test_requests_without_an_owner_are_not_cached():
    """Requests without owner and session are not cached. A session without an owner has its own entries."""
    llm = CachedModel(ScriptedLLM(["one", "two", "three"]))
    chat = {"messages": [ChatMessage("user", (Text("hi"),))]}
    assert [(await llm.complete(ModelRequest(**chat))).text for _ in range(2)] == ["one", "two"]
    assert [(await llm.complete(ModelRequest(**chat, session="s"))).text for _ in range(2)] == [
        "three",
        "three",
    ]


async def test_truncated_and_failed_answers_are_not_cached():
    """Truncated answers and errors are not cached: the model is called again."""
    cut = ModelResponse(parts=(Text("half"),), stop="length")
    llm = CachedModel(ScriptedLLM([cut, ConfigurationError("no"), "whole"]))
    chat = ModelRequest(messages=[ChatMessage("user", (Text("hi"),))], owner="ada")
    assert (await llm.complete(chat)).text == "half"
    with pytest.raises(ConfigurationError):
        await llm.complete(chat)
    assert [(await llm.complete(chat)).text for _ in range(2)] == ["whole"] * 2


class Slow(LLM):
    """A model that answers after a delay."""

    name = "slow"

    def __init__(self):
        self.asked = 0

    async def complete(self, chat, *, on_text=None):
        self.asked += 1
        await trio.sleep(1)
        return ModelResponse(parts=(Text(f"answer {self.asked}"),))


async def test_concurrent_and_cancelled_requests_share_no_answer(autojump_clock):
    """Two concurrent equal requests both call the model. A cancelled request stores nothing."""
    llm = CachedModel(Slow())
    chat = ModelRequest(messages=[ChatMessage("user", (Text("hi"),))], owner="ada")
    with trio.move_on_after(0.5):
        await llm.complete(chat)
    assert llm.llm.asked == 1
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(llm.complete, chat)
    assert llm.llm.asked == 3
    await llm.complete(chat)
    assert (llm.llm.asked, llm.hits) == (3, 1)


async def test_cached_answer_is_streamed():
    """The cached answer is one delta."""
    llm = CachedModel(ScriptedLLM(["Good day."]))
    async with BareAgent("clerk", llm=llm) as clerk:
        for _ in range(2):
            received = []
            session = await clerk.create_session("ada")
            session.on_token(lambda token, received=received: received.append(token.text))
            await clerk.run("hi", session=session)
            assert "".join(received) == "Good day."
    assert llm.hits == 1


async def test_model_of_one_role_can_be_cached():
    """Only the evaluator's model is cached; the other roles call theirs."""
    evaluator = CachedModel(ScriptedLLM([act("evaluate", achieved=True, answer="done")]))

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def work(chat):
        has_seen = "Success: seen" in str(chat.messages)
        return act("summarize", summary="seen") if has_seen else act("execute", tool="look")

    async with GoalAgent(
        "worker", llm=ScriptedLLM(work), tools=[look], models={"evaluator": evaluator}
    ) as agent:
        for _ in range(2):
            session = await agent.create_session("ada")
            assert str(await agent.run("look", session=session)) == "done"
    assert (evaluator.hits, evaluator.misses) == (1, 1)


async def test_answers_with_result_ids_are_not_cached():
    """A decision that contains a result id is not cached, because the id is valid in one session only."""
    names = act("execute", tool="read_result", args={"id": "185eb1dc0aae-00000001/call/0"})
    llm = CachedModel(ScriptedLLM([names, "other"]))
    chat = ModelRequest(messages=[ChatMessage("user", (Text("hi"),))], owner="ada")
    assert [(await llm.complete(chat)).text for _ in range(2)] == [names, "other"]


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, None])
def test_invalid_cache_capacity_is_rejected(capacity):
    """A cache without capacity is a configuration error."""
    with pytest.raises(ConfigurationError, match="at least 1"):
        CachedModel(ScriptedLLM([]), capacity=capacity)
