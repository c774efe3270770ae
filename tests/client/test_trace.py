"""The trace of a client continues in the server."""

from actgent import connect
from actgent.messages import traceparent
from tests.web.conftest import open_served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_message_of_a_client_belongs_to_the_trace_of_its_task():
    async with open_served() as served, connect(served.gateway.url, token=served.tokens["ada"]) as client:
        session = await client.agent("helper").create_session(session_id="s1")
        traceparent.set(PARENT)
        await session.chat("in the trace", message_id="m1")
        traceparent.set(None)
        await session.chat("outside of it", message_id="m2")
        await session.wait_idle()
        found = await served.runtime.agents.opener("helper").find("s1")
        told = {each.id: each.traceparent for each in found.conversation.messages}
    assert (told["m1"], told["m2"]) == (PARENT, None)
