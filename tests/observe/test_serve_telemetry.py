"""`actgent serve --telemetry` exports to an OTLP receiver according to the standard environment variables."""

import os
import signal

import httpx2
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")

from tests.web.server_process import open_servers, until

from .otlp_receiver import open_otlp_receiver, values_of

TEAM = """
from actgent import BareAgent, ScriptedLLM

clerk = BareAgent("clerk", llm=ScriptedLLM(["hello"], repeat=True))
"""
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def serve(tmp_path, commands, no_keys):
    """Return `serve(**variables)`, which starts a server with telemetry."""
    (tmp_path / "team.py").write_text(TEAM)
    with open_servers(commands, tmp_path, "--telemetry") as start:
        yield lambda **variables: start(env=os.environ | variables)


def test_a_server_exports_spans_and_metrics(serve):
    """The request, the turn and the model call are one trace with the client's span.

    The last spans arrive when the server ends.
    """
    with open_otlp_receiver() as receiver:
        process = serve(
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_SERVICE_NAME="team",
            OTEL_BSP_SCHEDULE_DELAY="60000",
        )
        url = until(process.stdout, r"at (http\S+)/v1")
        key = until(process.stdout, r"(act_\S+)")
        headers = {"authorization": f"Bearer {key}", "traceparent": PARENT, "prefer": "wait=60"}
        with httpx2.Client(base_url=url, headers=headers, timeout=120) as client:
            made = client.post("/v1/sessions", json={"agent": "clerk"}).json()
            client.post(f"/v1/sessions/{made['id']}/messages", json={"input": "hi"}).raise_for_status()
            assert client.get("/v1/health/live").status_code == 200
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        spans = {span.name: (resource, scope, span) for resource, scope, span in receiver.spans()}
    assert set(spans) == {
        "POST /v1/sessions",
        "POST /v1/sessions/{id}/messages",
        "invoke_agent clerk",
        "chat scripted",
    }
    resource, scope, turn = spans["invoke_agent clerk"]
    _, _, request = spans["POST /v1/sessions/{id}/messages"]
    _, _, call = spans["chat scripted"]
    assert values_of(resource.attributes)["service.name"] == "team"
    assert (scope.scope.name, scope.scope.version) == ("actgent", "0.1.0")
    assert scope.schema_url.startswith("https://opentelemetry.io/schemas/")
    assert request.trace_id.hex() == PARENT.split("-")[1]
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    assert (turn.parent_span_id, call.parent_span_id) == (request.span_id, turn.span_id)
    found = values_of(request.attributes)
    assert (found["http.request.method"], found["http.route"]) == ("POST", "/v1/sessions/{id}/messages")
    assert found["http.response.status_code"] == 200
    assert "gen_ai.input.messages" not in values_of(call.attributes)
    assert {"gen_ai.invoke_agent.duration", "http.server.request.duration"} <= receiver.metric_names()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin"),
        ({"OTEL_METRICS_EXPORTER": "x"}, "=x"),
    ],
    ids=["traces", "metrics"],
)
def test_an_unknown_exporter_is_named(serve, variables, expected):
    """The error also lists the installed exporters."""
    process = serve(**variables)
    output = " ".join(process.stderr.read().decode().split())
    assert process.wait(timeout=120) == 2
    assert expected in output
    assert "otlp" in output
    assert "Traceback" not in output
