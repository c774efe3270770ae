"""The description of the gateway, and what it says of itself."""

import re

import jsonschema_rs
import pytest

from actgent import ConfigurationError, open_gateway, open_runtime
from actgent.web.routes.endpoint_table import ENDPOINTS


async def test_openapi_document_has_each_endpoint(served):
    """Each endpoint is an operation with parameters, scope, responses and a unique id."""
    async with served.client() as ada:
        document = (await ada.get("/v1/openapi.json")).json()
    operations = {
        (path, verb): each for path, verbs in document["paths"].items() for verb, each in verbs.items()
    }
    assert operations.keys() == {(f"/v1{each.path}", each.verb.lower()) for each in ENDPOINTS}
    assert len({each["operationId"] for each in operations.values()}) == len(operations)
    for (path, verb), each in operations.items():
        named = {one["name"] for one in each["parameters"] if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path)), path
        assert each["summary"], path
        assert ("requestBody" in each) == (verb in ("post", "put"))
        for content in (each.get("requestBody", {}).get("content", {})).values():
            jsonschema_rs.validator_for(content["schema"])
    assert document["openapi"] == "3.1.0"


async def test_unsupported_method_is_405(served):
    """The response names the supported methods."""
    async with served.client() as ada:
        answer = await ada.patch("/v1/sessions/s1", json={})
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
        assert answer.json()["type"] == "/errors/method-not-allowed"


async def test_agents_are_described(served):
    """Agents are listed with modes, tools and queue lengths. An agent that does not run is not listed."""
    async with served.client() as ada, served.client("root") as root:
        clerk, helper = (await ada.get("/v1/agents")).json()["items"]
        assert (clerk["name"], clerk["goal"], helper["modes"]) == ("clerk", "help", None)
        assert "act" in clerk["modes"]
        assert "deploy" in [tool["name"] for tool in clerk["tools"]]
        assert (await ada.get("/v1/agents/clerk")).json() == clerk
        assert (await ada.get("/v1/agents/nobody")).status_code == 404
        assert (await ada.get("/v1/statistics")).json().keys() == {"agents"}
        assert (await root.get("/v1/statistics")).json()["sessions"]["closed"] == 0


async def test_health_reports_liveness_and_readiness(serving):
    """A process with agents is live and ready; one without agents is live and not ready."""
    async with serving() as served, served.client() as ada:
        assert [(await ada.get(f"/v1/health/{what}")).status_code for what in ("live", "ready")] == [200, 200]
    async with serving(agents=[]) as served, served.client() as ada:
        assert [(await ada.get(f"/v1/health/{what}")).status_code for what in ("live", "ready")] == [200, 503]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bind": "0.0.0.0:0"}, "needs tokens"),
        ({"bind": "0.0.0.0:0", "tokens": []}, "needs the host names that clients use"),
        ({"bind": "127.0.0.1"}, "HOST:PORT"),
        ({"bind": "127.0.0.1:99999"}, "HOST:PORT"),
        ({"tokens": "none.toml"}, "cannot be read"),
        ({"hosts": "agents.example.com"}, r"hosts= must be a list: hosts=\['agents.example.com'\]"),
        ({"hosts": ["https://agents.example.com"]}, r"\(--host\) .* the expected form is agents.example.com"),
        ({"origins": "https://app.example.com"}, "origins= must be a list"),
        (
            {"origins": ["https://app.example.com/"]},
            r"\(--origin\) .* the expected form is https://app.example.com",
        ),
        ({"origins": ["app.example.com"]}, "is invalid: the expected form"),
        ({"origins": [None]}, "is invalid: the expected form"),
        ({"origins": ["https://*.example.com"]}, "is invalid: the expected form"),
        ({"hosts": ["*"]}, "is invalid: the expected form"),
        ({"hosts": ["!!"]}, "is invalid: the expected form"),
        ({"origins": ["https://!!"]}, "is invalid: the expected form"),
    ],
)
async def test_unprotected_gateway_does_not_start(options, said):
    """On an address other than loopback, tokens and host names are required. Other mistakes are reported before it listens."""
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match=said):
            async with open_gateway(runtime, **options):
                pass


async def test_gateway_requires_a_journal():
    """Without a journal, clients could not resume."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="memory:"):
            async with open_gateway(runtime, bind=None):
                pass


async def test_application_can_be_mounted(served):
    """Below a prefix of another application it answers as without it."""
    import httpx2
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from actgent import Gateway

    async with open_gateway(served.runtime, bind=None, hosts=["example.com"]) as gateway:
        assert isinstance(gateway, Gateway)
        transport = httpx2.ASGITransport(Starlette(routes=[Mount("/agents", gateway.app)]))
        token = {"authorization": f"Bearer {gateway.key}"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://example.com/agents", headers=token
        ) as client:
            assert (await client.put("/v1/sessions/s1", json={"agent": "clerk"})).status_code == 201
            assert (await client.get("/v1/sessions/s1%2Fchild")).status_code == 404
            assert (await client.get("/v1/sessions/s1")).json()["id"] == "s1"
