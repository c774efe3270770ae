"""The description of the gateway, and what it says of itself."""

import re

import jsonschema_rs
import pytest

from actgent import ConfigurationError, open_gateway, open_runtime
from actgent.web.routes.table import ENDPOINTS


async def test_the_description_has_each_address(served):
    """Each row of the table is an operation with its parameters, scope and answers, under an id of its own."""
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


async def test_an_address_that_takes_other_verbs_says_so(served):
    """A verb that an address does not take is a 405 that names those it takes."""
    async with served.client() as ada:
        answer = await ada.patch("/v1/sessions/s1", json={})
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
        assert answer.json()["type"] == "/errors/method-not-allowed"


async def test_agents_say_what_they_are(served):
    """Agents are listed with modes, tools and what waits for them; one that does not run is not there."""
    async with served.client() as ada, served.client("root") as root:
        clerk, helper = (await ada.get("/v1/agents")).json()["items"]
        assert (clerk["name"], clerk["goal"], helper["modes"]) == ("clerk", "help", None)
        assert "act" in clerk["modes"]
        assert "deploy" in [tool["name"] for tool in clerk["tools"]]
        assert (await ada.get("/v1/agents/clerk")).json() == clerk
        assert (await ada.get("/v1/agents/nobody")).status_code == 404
        assert (await ada.get("/v1/statistics")).json().keys() == {"agents"}
        assert (await root.get("/v1/statistics")).json()["sessions"]["closed"] == 0


async def test_health_says_whether_messages_are_taken(serving):
    """A process with agents is live and ready; one without agents is live and not ready."""
    async with serving() as served, served.client() as ada:
        assert [(await ada.get(f"/v1/health/{what}")).status_code for what in ("live", "ready")] == [200, 200]
    async with serving(agents=[]) as served, served.client() as ada:
        assert [(await ada.get(f"/v1/health/{what}")).status_code for what in ("live", "ready")] == [200, 503]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bind": "0.0.0.0:0"}, "needs tokens"),
        ({"bind": "0.0.0.0:0", "tokens": []}, "by which names"),
        ({"bind": "127.0.0.1"}, "HOST:PORT"),
        ({"bind": "127.0.0.1:99999"}, "HOST:PORT"),
        ({"tokens": "none.toml"}, "cannot be read"),
        ({"hosts": "agents.example.com"}, r"hosts= takes a list: hosts=\['agents.example.com'\]"),
        ({"hosts": ["https://agents.example.com"]}, r"\(--host\) .* write it as agents.example.com"),
        ({"origins": "https://app.example.com"}, "origins= takes a list"),
        ({"origins": ["https://app.example.com/"]}, r"\(--origin\) .* write it as https://app.example.com"),
        ({"origins": ["app.example.com"]}, "nothing that a browser sends"),
        ({"origins": [None]}, "nothing that a browser sends"),
        ({"origins": ["https://*.example.com"]}, "nothing that a browser sends"),
        ({"hosts": ["*"]}, "nothing that a browser sends"),
        ({"hosts": ["!!"]}, "nothing that a browser sends"),
        ({"origins": ["https://!!"]}, "nothing that a browser sends"),
    ],
)
async def test_a_gateway_that_would_be_open_to_all_does_not_start(options, said):
    """Off loopback there are tokens and names, or nothing; other mistakes are named before anything listens."""
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match=said):
            async with open_gateway(runtime, **options):
                pass


async def test_a_gateway_needs_a_journal():
    """Without one there is nothing for clients to go on from."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="memory:"):
            async with open_gateway(runtime, bind=None):
                pass


async def test_the_application_is_mounted_in_another_one(served):
    """Below a prefix of another application it answers as by itself."""
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
