"""Several requests read one run of an unnamed session.

A closed request does not stop the run, and the last one ends it.
"""

import json

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolResult, tool
from actgent.interop import OpenAIProtocol
from tests.web.conftest import open_served

LOCATE = {"type": "function", "function": {"name": "locate", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "where am I?"}


def make_agent(release):
    """Return an agent that calls a tool of the client, and then a tool that waits for an event."""

    @tool(effect="pure")
    async def hold() -> str:
        """Wait."""
        await release.wait()
        return "released"

    def script(chat):
        results = [part for part in chat.messages[-1].parts if isinstance(part, ToolResult)]
        if not results:
            return ToolCall("locate", {})
        return ToolCall("hold", {}) if results[0].tool_name == "locate" else results[0].content

    return BareAgent("holder", llm=ScriptedLLM(script), tools=[hold])


async def first_call(client):
    """Start the conversation, and return the request with the result of the client's tool."""
    body = {"model": "holder", "messages": [USER], "tools": [LOCATE]}
    message = (await client.post("/openai/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Berlin"}
    return {**body, "messages": [USER, message, result], "stream": True}


async def streams_of(served):
    async with served.client("root") as client:
        text = (await client.get("/v1/metrics")).text
    (line,) = [each for each in text.splitlines() if each.startswith("actgent_http_streams ")]
    return int(float(line.split()[1]))


async def until(found):
    with trio.fail_after(60):
        while not await found():  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.01)


async def sessions_of(served):
    async with served.client() as client:
        return [each["status"] for each in (await client.get("/v1/sessions")).json()["items"]]


async def read(served, body, texts, started, scope):
    """Stream an answer until the scope is cancelled."""
    address = "/openai/v1/chat/completions"
    with scope:
        async with served.client() as client, client.stream("POST", address, json=body) as response:
            async for line in response.aiter_lines():
                started.set()
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        texts.append(choice["delta"].get("content", ""))


async def test_reader_that_leaves_does_not_stop_the_run_of_another_one():
    release, texts = trio.Event(), ([], [])
    async with open_served(agents=[make_agent(release)], protocols=[OpenAIProtocol()]) as served:
        async with served.client() as client:
            body = await first_call(client)
        scopes = [trio.CancelScope() for _ in texts]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for index, scope in enumerate(scopes):
                    started = trio.Event()
                    nursery.start_soon(read, served, body, texts[index], started, scope)
                    await started.wait()
                scopes[0].cancel()
                await until(lambda: _equals(streams_of(served), 1))
                release.set()
        assert ("".join(texts[0]), "".join(texts[1])) == ("", "released")
        await until(lambda: _equals(sessions_of(served), ["closed"]))


async def test_run_stops_after_its_last_reader():
    async with open_served(agents=[make_agent(trio.Event())], protocols=[OpenAIProtocol()]) as served:
        async with served.client() as client:
            body = await first_call(client)
        scope, started = trio.CancelScope(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, served, body, [], started, scope)
            await started.wait()
            scope.cancel()
        await until(lambda: _equals(sessions_of(served), ["closed"]))


async def _equals(found, expected):
    return await found == expected


async def test_wrong_result_leaves_the_session_as_it_was():
    agents = [make_agent(trio.Event())]
    async with open_served(agents=agents, protocols=[OpenAIProtocol()]) as served, served.client() as client:
        body = await first_call(client)
        call_id = body["messages"][-1]["tool_call_id"]
        wrong = {**body["messages"][-1], "tool_call_id": f"x{call_id[1:]}"}
        changed = {**body, "messages": [USER, wrong], "stream": False}
        refused = await client.post("/openai/v1/chat/completions", json=changed)
        assert refused.status_code in (400, 404)
        assert await sessions_of(served) != ["closed"]
