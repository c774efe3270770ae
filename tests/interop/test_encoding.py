"""Values that some JSON libraries cannot encode: integers of more than 64 bits, unpaired surrogates, foreign objects."""

import json

import pytest
import trio.testing

from actgent.interop.acp.json_rpc import JSONRPCConnection
from actgent.interop.runs_of_protocol_requests import to_sse
from actgent.web.routes.endpoints import JSON
from actgent.web.streaming.sse import frame

from .sse import events_of

VALUES = {"n": 2**70, "text": "half \ud800", "objects": {range(3)}, 7: None}


async def acp_line(value):
    """Return the parameters of a notification as an ACP client receives them."""
    to_agent, agent_in = trio.testing.memory_stream_one_way_pair()
    agent_out, from_agent = trio.testing.memory_stream_one_way_pair()
    connection = JSONRPCConnection(agent_in, agent_out, handlers={}, notification_handlers={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        await connection.notify("session/update", value)
        await to_agent.aclose()
        data = b"".join([chunk async for chunk in from_agent])
    assert data.count(b"\n") == 1
    return json.loads(data)["params"]


@pytest.mark.parametrize("way", ["event", "frame", "document", "acp"])
async def test_rare_values_are_encoded(way):
    match way:
        case "event":
            (found,) = events_of(to_sse(VALUES).decode())
        case "frame":
            (found,) = events_of(frame("x", VALUES).decode())
        case "document":
            found = json.loads(JSON(VALUES).body)
        case "acp":
            found = await acp_line(VALUES)
    objects = found.pop("objects")
    assert "range(0, 3)" in str(objects)
    assert found == {"n": 2**70, "text": "half \ufffd", "7": None}
