"""The owner of a run of an outside protocol is killed during the model call.

The clients reconnect to another node.
"""

import itertools

import httpx2
import psycopg
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.journal.postgres.session_partitioning import partition_of_slot, slot_of
from tests.clusters import TOKEN
from tests.interop.sse import events_of

from .conversations import PATIENCE
from .test_protocols import A2A, MCP, agui, call_tool, completion, message, rpc, vercel

TEXT = "slowly " + " ".join(f"w{number}" for number in range(40))
ANSWER = f"you said: {TEXT}"


def owned(nodes, name):
    """Return the partitions of a node."""
    address, _, schema = nodes.cluster.journal.partition("?schema=")
    with psycopg.connect(address) as database:
        found = database.execute(
            f"SELECT p FROM {schema}.partitions WHERE owner LIKE %s AND NOT clean", [f"{name}-%"]
        )
        return {number for (number,) in found.fetchall()}


async def id_at(nodes, name, word):
    """A session id that a node owns now."""
    partitions = await trio.to_thread.run_sync(owned, nodes, name)
    ids = (f"{word}-{number}" for number in itertools.count())
    return next(each for each in ids if partition_of_slot(slot_of(each), DEFAULT_PARTITIONS) in partitions)


def client_of(nodes, name):
    host, port = nodes.ports[name]
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    return httpx2.AsyncClient(base_url=f"http://{host}:{port}", headers=headers, timeout=PATIENCE)


async def read_until_killed(nodes, client, name, path, body, **headers):
    """Stream a run, and kill a node after some of its text.

    Return the received data; a broken connection is an error.
    """
    pieces = []

    async def read():
        async with client.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200
            async for piece in response.aiter_text():
                pieces.append(piece)
                if "w5" in "".join(pieces) and nodes.running[name].poll() is None:
                    nodes.kill(name)
                    nodes.running[name].wait()

    with pytest.raises(httpx2.RemoteProtocolError):
        await read()
    return "".join(pieces)


def joined(text, kind, member="delta"):
    events = [each for each in events_of(text) if each != "[DONE]"]
    return "".join(each[member] for each in events if each.get("type") == kind)


async def ag_ui(nodes, client, session_id, name):
    body = agui(session_id, TEXT)
    await read_until_killed(nodes, client, name, "/agui/clerk", body)
    again = await client.post("/agui/clerk", json=body)
    assert joined(again.text, "TEXT_MESSAGE_CONTENT") == ANSWER
    assert events_of(again.text)[-1]["type"] == "RUN_FINISHED"


async def vercel_ui(nodes, client, session_id, name):
    body = vercel(session_id, TEXT)
    await read_until_killed(nodes, client, name, "/vercel/clerk", body)
    again = await client.post("/vercel/clerk", json=body)
    assert joined(again.text, "text-delta") == ANSWER


async def chat_completions(nodes, client, session_id, name):
    path, headers = "/openai/v1/chat/completions", {"x-session-id": session_id, "idempotency-key": "k1"}
    body = completion(TEXT, stream=True)
    await read_until_killed(nodes, client, name, path, body, **headers)
    again = await client.post(path, json=completion(TEXT), headers=headers)
    assert again.json()["choices"][0]["message"]["content"] == ANSWER


async def responses(nodes, client, session_id, name):
    """The client resumes the stream after its last event and gets each event once."""
    await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk"})
    path, previous = "/openai/v1/responses", f"resp_{session_id}_none"
    body = {"model": "clerk", "input": TEXT, "stream": True, "previous_response_id": previous}
    text = await read_until_killed(nodes, client, name, path, body)
    came = events_of(text.rpartition("\n\n")[0])
    response_id, last = came[0]["response"]["id"], came[-1]["sequence_number"]
    query = {"stream": "true", "starting_after": last}
    rest = await client.get(f"{path}/{response_id}", params=query)
    events = [*came, *events_of(rest.text)]
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    numbers = [each["sequence_number"] for each in events]
    assert numbers == sorted(set(numbers))


async def a2a(nodes, client, session_id, name):
    """The client subscribes to its task again, according to the specification."""
    body = rpc("SendStreamingMessage", message(TEXT, contextId=session_id))
    text = await read_until_killed(nodes, client, name, "/a2a/clerk", body, **A2A)
    task_id = events_of(text)[0]["result"]["task"]["id"]
    rest = await client.post("/a2a/clerk", json=rpc("SubscribeToTask", {"id": task_id}), headers=A2A)
    assert events_of(rest.text)[-1]["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    found = await client.post("/a2a/clerk", json=rpc("GetTask", {"id": task_id}), headers=A2A)
    assert found.json()["result"]["artifacts"][0]["parts"] == [{"text": ANSWER}]


async def mcp(nodes, client, session_id, name):
    """The gateway calls the agent again at the next owner. The client notices nothing."""
    body = call_tool(TEXT, arguments={"session_id": session_id})
    headers = {**MCP, "mcp-method": "tools/call", "mcp-name": "clerk"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_at_work, nodes, name)
        answer = await client.post("/mcp", json=body, headers=headers)
    assert ANSWER in answer.text


async def whole_completion(nodes, client, session_id, name):
    """The same completion without a stream."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_at_work, nodes, name)
        answer = await client.post(
            "/openai/v1/chat/completions", json=completion(TEXT), headers={"x-session-id": session_id}
        )
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER


async def kill_at_work(nodes, name):
    before = nodes.calls[TEXT]
    while nodes.calls[TEXT] == before:  # noqa: ASYNC110 - another process changes this state
        await trio.sleep(0.01)
    nodes.kill(name)


CASES = (ag_ui, vercel_ui, chat_completions, responses, a2a, mcp, whole_completion)


async def test_a_run_continues_at_the_next_owner_after_a_kill(nodes):
    """The stream breaks instead of ending as if it were complete.

    The same request gives the whole answer of one turn.
    """
    with trio.fail_after(4 * PATIENCE):
        nodes.options = ("protocols",)
        await nodes.start("stays")
        async with client_of(nodes, "stays") as client:
            for number, case in enumerate(CASES):
                name = f"n{number}"
                await nodes.start(name)
                await nodes.settle(["stays", name])
                session_id = await id_at(nodes, name, case.__name__)
                await case(nodes, client, session_id, name)
                records = (await client.get(f"/v1/sessions/{session_id}/messages")).json()["items"]
                kinds = [each["sender"]["kind"] for each in records]
                assert kinds == ["user", "assistant"], case.__name__
