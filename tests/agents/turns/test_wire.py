"""Requests of agents as real clients send them to the loopback provider."""

import itertools

import pytest
import trio

from actgent import (
    Anthropic,
    BareAgent,
    Image,
    Limits,
    MissingKey,
    OpenAI,
    OpenAIResponses,
    ProviderUnavailable,
    ReActAgent,
    Sender,
    SimpleAgent,
    ToolCall,
    tool,
)
from actgent.llm.model_interface import ModelResponse
from actgent.llm.retry_policy import Retry
from actgent.messages import Thinking
from actgent.testing import ErrorStatus, assert_no_leaks, assert_valid_transcript, open_provider, refused_url

CLIENTS = {
    "openai": (OpenAI, "openai_url"),
    "openai-responses": (OpenAIResponses, "openai_url"),
    "anthropic": (Anthropic, "anthropic_url"),
}


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@pytest.fixture(params=sorted(CLIENTS))
def dialect(request):
    """Each of the three wires."""
    return request.param


def connect(dialect, provider, **options):
    client, url = CLIENTS[dialect]
    options = {"base_url": getattr(provider, url), "retry": Retry(attempts=1), **options}
    return client("any-model", api_key="any", **options)


def roles(request):
    return [message.role for message in request.chat.messages]


async def test_senders_have_their_roles_for_every_provider(dialect):
    """Users have the role user, and agents in the history assistant. The last message is never the model's."""
    async with open_provider(lambda _: "ok") as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm, role="tutor") as agent:
            session = await agent.create_session("ada", "hi")
            for sender in (None, Sender("helper", "agent"), Sender("clock", "system"), "tool", "bob"):
                await session.chat("more", sender)
                await session.wait_idle()
        await llm.aclose()
        for request in provider.requests:
            assert not request.problems
            assert request.chat.system == agent.system_prompt
            assert request.chat.messages[-1].role == "user"
            assert "system" not in roles(request)


async def test_pictures_reach_every_provider_unchanged(dialect):
    picture = Image(media_type="image/png", data=b"\x89PNG\r\n")
    async with open_provider(["A dot."]) as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm) as agent:
            assert str(await agent.run(["What is it?", picture])) == "A dot."
        await llm.aclose()
    parts = [part for message in provider.requests[0].chat.messages for part in message.parts]
    assert [part.data for part in parts if isinstance(part, Image)] == [b"\x89PNG\r\n"]


@pytest.mark.parametrize("kind", [BareAgent, SimpleAgent, ReActAgent])
async def test_prefix_of_a_long_session_never_changes(dialect, kind):
    """System prompt, tools and earlier messages are equal in each request, with any tail."""
    turns = 12
    answers = {
        BareAgent: "done",
        SimpleAgent: '{"messageType": "DIRECT_RESPONSE", "content": "done"}',
        ReActAgent: '{"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_description": "done",'
        ' "response_content": {}}}',
    }

    def answer(request):
        if request.number % 2 == 0:
            return answers[kind]
        return ["Let me see.", ToolCall("add", {"a": request.number, "b": 1})]

    async with open_provider(answer) as provider:
        llm = connect(dialect, provider)
        async with kind("a", llm=llm, tools=[add], goal="add") as agent:
            session = await agent.create_session("ada")
            for number in range(turns):
                # In turns, so that the strategy of react chooses both of its modes.
                await session.chat(f"calculate step by step {number}" if number % 2 else "hi")
                await session.wait_idle()
        await llm.aclose()
    assert len(provider.requests) == 2 * turns
    conversations = [request.chat for request in provider.requests]
    for number, (before, after) in enumerate(itertools.pairwise(conversations)):
        assert before.system == after.system
        assert before.tools == after.tools
        kept = [part for message in after.messages for part in message.parts]
        earlier = [part for message in before.messages for part in message.parts]
        shared = next(
            (i for i, (a, b) in enumerate(zip(earlier, kept, strict=False)) if a != b), len(earlier)
        )
        assert len(earlier) - shared <= (kind is ReActAgent), number  # only the tail of this one call may go


async def test_bytes_of_the_request_prefix_never_change():
    """The messages of a request to OpenAI begin with all messages of the request before."""
    async with open_provider(
        lambda r: "done" if r.tool_results else ToolCall("add", {"a": r.number, "b": 1})
    ) as provider:
        llm = connect("openai", provider)
        async with BareAgent("a", llm=llm, tools=[add], role="tutor") as agent:
            session = await agent.create_session("ada")
            for number in range(20):
                await session.chat(f"turn {number}")
                await session.wait_idle()
        await llm.aclose()
    bodies = [request.body for request in provider.requests]
    for before, after in itertools.pairwise(bodies):
        start = before.index(b'"messages":[') + len(b'"messages":[')
        end = before.index(b'}],"', start) if b'}],"' in before[start:] else before.rindex(b"}]")
        assert after[after.index(b'"messages":[') + len(b'"messages":[') :].startswith(before[start:end])
    tools = {request.body[request.body.index(b'"tools":') :][:200] for request in provider.requests}
    assert len(tools) == 1


async def test_thoughts_are_sent_back_only_with_an_answer(dialect):
    """A provider accepts its own thoughts, but none without a following answer."""
    data = {"type": "thinking", "thinking": "hm", "signature": "s"}
    thought = Thinking("hm", "anthropic", data)
    script = [ModelResponse(parts=(thought,)) if dialect == "anthropic" else "", "done"]
    async with open_provider(script) as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm) as agent:
            assert str(await agent.run("hi")) == "done"
        await llm.aclose()
    assert not any(request.problems for request in provider.requests)
    assert "assistant" not in roles(provider.requests[1])


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 529])
async def test_provider_error_is_a_failure_of_kind_model(dialect, status, listen):
    """The next message is answered."""
    async with open_provider([ErrorStatus(status), "fine"]) as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm) as agent:
            session = await agent.create_session("ada", "hi")
            received = listen(session)
            await session.wait_idle()
            await session.chat("again")
            await session.wait_idle()
        await llm.aclose()
    assert (received[0].kind, str(received[1])) == ("model", "fine")
    assert received[0].error.status in (status, None)


async def test_unreachable_provider_is_a_failure_of_kind_model(dialect, listen):
    """No server listens at the address; the session continues."""
    client, _ = CLIENTS[dialect]
    with refused_url() as url:
        llm = client("any-model", base_url=url, api_key="any", retry=Retry(attempts=2, first_delay=0.01))
        async with BareAgent("a", llm=llm) as agent:
            session = await agent.create_session("ada", "hi")
            received = listen(session)
            await session.wait_idle()
        await llm.aclose()
    assert received[0].kind == "model"
    assert isinstance(received[0].error, ProviderUnavailable)


async def test_a_slow_provider_fails_at_the_timeout(dialect, listen):
    """The limit of the agent applies, and no connection is left."""
    async with assert_no_leaks(), open_provider(["late"], delay=30) as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm, limits=Limits(model_timeout=0.2)) as agent:
            session = await agent.create_session("ada", "hi")
            received = listen(session)
            with trio.fail_after(25):
                await session.wait_idle()
        await llm.aclose()
    assert received[0].kind == "model"


def test_a_missing_key_is_reported_at_construction(no_keys):
    """The error names the variables and never a value."""
    with pytest.raises(MissingKey, match="OPENAI_API_KEY"):
        BareAgent("a", llm="openai:gpt-5.2")
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        BareAgent("a", llm="anthropic:claude")


async def test_a_model_by_name_is_closed_and_opened_with_its_agent(no_keys):
    """The agent may be opened again. It closes only the client that it created."""
    async with open_provider(["one", "two"]) as provider:
        no_keys.setenv("OPENAI_API_KEY", "any")
        no_keys.setenv("OPENAI_BASE_URL", provider.openai_url)
        agent = BareAgent("a", llm="openai:gpt-5.2")
        for text in ("one", "two"):
            async with agent:
                assert str(await agent.run("hi")) == text
    assert_valid_transcript(provider.requests[-1].json, "openai")


async def test_without_tools_no_tools_are_sent(dialect):
    """The request has no list of tools, because some providers reject an empty one."""
    async with open_provider(lambda _: "ok") as provider:
        llm = connect(dialect, provider)
        async with BareAgent("a", llm=llm) as agent:
            await agent.run("Hello")
        await llm.aclose()
        assert b'"tools"' not in provider.requests[0].body
