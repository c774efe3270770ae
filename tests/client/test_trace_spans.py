"""Spans of a client's program and of the gateway are one trace."""

import httpx2
import trio

from actgent import Approve, BareAgent, ScriptedLLM, ToolCall, connect, open_gateway, open_runtime, tool
from actgent.web.access_tokens import new_token
from tests.observe.conftest import Recorder


@tool(approval=True, effect="once")
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_a_span_of_the_clients_program_is_the_parent_of_the_request():
    """The approval is decided by another request. The tool span links to the span of that request."""
    recorder = Recorder()
    tracer = recorder.tracers.get_tracer("program")
    secret, token = new_token("ada", owner="ada", scopes=("chat", "read", "approve"))
    agent = BareAgent("clerk", llm=ScriptedLLM([ToolCall("pay", {}, "c1"), "Paid."]), tools=[pay])
    async with open_runtime(journal="memory:", telemetry=recorder.telemetry()) as runtime:
        await runtime.start(agent)
        async with (
            open_gateway(runtime, bind="127.0.0.1:0", tokens=[token]) as gateway,
            connect(gateway.url, token=secret) as client,
        ):
            session = await client.agent("clerk").create_session(session_id="s1")
            with tracer.start_as_current_span("ask") as ask, trio.fail_after(30):
                await session.chat("pay")
                await session.wait_idle()
            with tracer.start_as_current_span("decide") as decide, trio.fail_after(30):
                (approval,) = await client.approvals()
                await session.answer(approval.id, Approve())
                await session.wait_idle()
    recorder.check()
    (message,) = recorder.of("POST /v1/sessions/{id}/messages")
    assert message.kind.name == "SERVER"
    assert message.parent.span_id == ask.context.span_id
    assert message.attributes["http.response.status_code"] == 202
    first, second = recorder.of("invoke_agent")
    assert first.parent.span_id == second.parent.span_id == message.context.span_id
    (run,) = recorder.of("execute_tool")
    (link,) = run.links
    deciders = [span for span in recorder.spans if span.context.span_id == link.context.span_id]
    assert [span.name for span in deciders] == ["POST /v1/approvals/{id}/decision"]
    assert deciders[0].parent.span_id == decide.context.span_id
    points = recorder.metrics()["http.server.request.duration"]
    assert {point.attributes["http.route"] for point in points} >= {
        "/v1/sessions/{id}/messages",
        "/v1/approvals",
    }


async def test_client_errors_are_no_errors_of_the_server():
    """Without a trace context in the request, a request begins its own trace. Requests without a token have no span."""
    recorder = Recorder()
    secret, token = new_token("ada", owner="ada", scopes=("read",))
    async with (
        open_runtime(journal="memory:", telemetry=recorder.telemetry()) as runtime,
        open_gateway(runtime, bind="127.0.0.1:0", tokens=[token]) as gateway,
        httpx2.AsyncClient(base_url=gateway.url) as http,
    ):
        answer = await http.get("/v1/sessions/none", headers={"authorization": f"Bearer {secret}"})
        assert answer.status_code == 404
        assert (await http.get("/v1/sessions/none")).status_code == 401
    (span,) = recorder.spans
    assert (span.name, span.parent) == ("GET /v1/sessions/{id}", None)
    assert span.attributes["http.response.status_code"] == 404
    assert "error.type" not in span.attributes
