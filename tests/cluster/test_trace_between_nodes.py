"""A request to a session at another node is one trace with three spans: client, receiving node, owning node."""

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import BareAgent, ScriptedLLM
from tests.cluster.nodes.pairs import PATIENCE, wait_balanced
from tests.observe.conftest import Recorder


async def test_a_relayed_request_stays_in_the_trace_of_its_client(open_cluster):
    """The client sends both requests to node one, and node two owns the session."""
    recorder = Recorder()
    one_agent, two_agent = (BareAgent("clerk", llm=ScriptedLLM(["hi"], repeat=True)) for _ in range(2))
    tracer = recorder.tracers.get_tracer("program")
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(one_agent, node="one", telemetry=recorder.telemetry()) as one,
            cluster.node(two_agent, node="two", telemetry=recorder.telemetry()) as two,
        ):
            await wait_balanced(one, two)
            cluster.balancer.ports[:] = cluster.balancer.ports[:1]
            async with cluster.connect() as client:
                target = two.journal.new_session_id()
                session = await client.agent("clerk").create_session(session_id=target)
                with tracer.start_as_current_span("ask") as ask:
                    await session.chat("hello")
                await session.wait_idle()
    found = [
        span
        for span in recorder.of("POST /v1/sessions/{id}/messages")
        if span.context.trace_id == ask.get_span_context().trace_id
    ]
    received, served = found
    assert received.parent.span_id == ask.get_span_context().span_id
    assert served.parent.span_id == received.context.span_id
    (turn,) = recorder.of("invoke_agent")
    assert turn.parent.span_id == served.context.span_id
