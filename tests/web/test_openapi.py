"""The OpenAPI document of the gateway, and its documentation page."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TypedDict

import httpx2
import jsonschema_rs
import pytest
import trio
import trio.lowlevel

from actgent import ConfigurationError, open_gateway, open_runtime
from actgent.web import gateway_setup
from actgent.web.api_documentation_page import render_page
from actgent.web.routes.endpoint_table import ENDPOINTS
from actgent.web.routes.endpoints import JSON, READS_JOURNAL, Endpoint, HTTPCall
from actgent.web.routes.openapi import document_of

from .conftest import find_document, make_agents

ROOT = Path(__file__).parents[2]


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
        assert ("requestBody" in each) == (verb in ("post", "put", "patch"))
    assert document["openapi"] == "3.1.0"


def test_the_guide_lists_each_endpoint():
    """The guide shortens the path of a single object of a list to `.../{s}`."""
    guide = (ROOT / "docs/guides/gateway.md").read_text(encoding="utf-8")
    paths = {re.sub(r"(?<=.)/\{\w+\}$", "", each.path) for each in ENDPOINTS}
    assert {path for path in paths if path not in guide} == set()


async def test_document_states_required_bodies_and_parameters(serving):
    """The server rejects a request without a required body or query parameter, an integer above the documented maximum, and a media part with two sources."""
    async with serving(index=True) as served, served.client("root") as root:
        document = (await root.get("/v1/openapi.json")).json()
        for path, verbs in document["paths"].items():
            for verb, operation in verbs.items():
                address = re.sub(r"\{\w+\}", "x", path)
                needed = [each["name"] for each in operation["parameters"] if each["required"]]
                query = {each["name"]: each["schema"] for each in operation["parameters"]}
                if operation.get("requestBody", {}).get("required"):
                    assert (await root.request(verb, address)).status_code == 415, path
                for name in {*needed} & {"version"}:
                    answer = (await root.request(verb, address)).json()
                    assert answer["detail"].endswith(f"the parameter {name}"), path
                if verb == "get" and "limit" in query and not needed:
                    maximum = query["limit"]["maximum"]
                    statuses = [
                        (await root.get(address, params={"limit": each})).status_code
                        for each in (maximum, maximum + 1)
                    ]
                    assert statuses == [200, 422], path
        await root.put("/v1/sessions/s1", json={"agent": "clerk"})
        part = {"type": "image", "media_type": "image/png"}
        data, url = {"data": "AA=="}, {"url": "https://example.com/a.png"}
        for more, status in (({}, 422), (data, 202), (url, 202), (data | url, 422)):
            answer = await root.post("/v1/sessions/s1/messages", json={"input": [part | more]})
            assert answer.status_code == status, more
    bodies = [
        operation["requestBody"]["required"]
        for verbs in document["paths"].values()
        for operation in verbs.values()
        if "requestBody" in operation
    ]
    assert sum(bodies) >= 15


async def test_integers_may_have_a_fraction_of_zero(served):
    """JSON Schema counts 3.0 as an integer. So the server reads limits and record numbers in this form, up to the documented maximum."""
    async with served.client() as ada:
        for session_id, calls, status in (("s1", 3.0, 201), ("s1", 3, 200), ("s2", 1e300, 422)):
            body = {"agent": "clerk", "limits": {"model_calls": calls, "seconds": 60.5}}
            assert (await ada.put(f"/v1/sessions/{session_id}", json=body)).status_code == status, calls
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello"}, headers={"prefer": "wait=30"})
        for at, status in ((1.0, 201), (1e300, 422)):
            forked = await ada.post("/v1/sessions/s1/fork", json={"at": at})
            assert forked.status_code == status, at
        compared = await ada.post("/v1/sessions/s1/compare", json={"at": 2.0})
        assert (compared.status_code, compared.json()["number"]) == (200, 2)


def walk(value, place="#"):
    """Yield each location of a document with its value."""
    yield place, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        if key not in ("example", "examples", "enum", "const", "required"):
            yield from walk(each, f"{place}/{key}")


def schemas_in(document):
    """Yield each schema of an OpenAPI document with its location: parameters, bodies, responses, events and components."""
    starts = [
        (f"#/components/schemas/{name}", each) for name, each in document["components"]["schemas"].items()
    ]
    for place, value in walk({"paths": document["paths"], "components": document["components"]}):
        if isinstance(value, dict):
            starts += [(f"{place}/{key}", value[key]) for key in ("schema", "x-item-schema") if key in value]
    while starts:
        place, schema = starts.pop()
        yield place, schema
        starts += [
            (f"{place}/properties/{name}", each) for name, each in schema.get("properties", {}).items()
        ]
        starts += [(f"{place}/{key}", schema[key]) for key in ("items", "propertyNames") if key in schema]
        if isinstance(schema.get("additionalProperties"), dict):
            starts.append((f"{place}/additionalProperties", schema["additionalProperties"]))
        starts += [(f"{place}/{key}", each) for key in ("anyOf",) for each in schema.get(key, ())]
        starts += [(f"{place}/oneOf", each) for each in schema.get("oneOf", ()) if set(each) != {"required"}]


TYPED = ({"$ref"}, {"type"}, {"const"}, {"enum"}, {"oneOf"}, {"anyOf"}, {"allOf"})


def test_every_schema_names_its_type():
    """Objects have fields, or are explicitly open. Arrays have items. So client generators find no untyped value."""
    document = document_of(ENDPOINTS)
    untyped = []
    for place, schema in schemas_in(document):
        kinds = schema.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        is_open = "properties" not in schema and "additionalProperties" not in schema
        if (
            not any(each <= schema.keys() for each in TYPED)
            or (kinds == ["object"] and is_open)
            or (kinds == ["array"] and "items" not in schema)
        ):
            untyped.append(place)
    assert untyped == []


async def read_events(answer, last):
    """Return the events of a stream up to the event of this name, as name, id and data."""
    found, event = [], {}
    with trio.fail_after(60):
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field in ("event", "id", "data"):
                event[field] = json.loads(value) if field == "data" else value
            elif not line and "event" in event:
                found.append(event)
                if event["event"] == last:
                    return found
                event = {}
    raise AssertionError(found)


def find_mistakes(events, schema):
    """Return the events that do not match a component of the document. Only the last event of a record has an id."""
    components = find_document()[0]
    validator = jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{schema}", "components": components}
    )
    known = [{"event": each["event"], "data": each["data"]} for each in events]
    return [each for each in known if not (validator.is_valid(each) or validator.is_valid({**each, "id": 1}))]


async def test_events_of_streams_match_the_document(serving):
    """The document describes session events with live events, observations, and changes in all sessions. The events include an approval and a failure."""
    watch = "/v1/events?watch=heads,agents,approvals,errors"
    live = {
        "actgent-events": "message,turn,answer,tools,result,reply,approval,decision,ended,closed,token,growing,progress"
    }
    agents = make_agents(chunk=4, chunk_delay=0.05)  # a fast answer may have no partial text
    async with serving(agents=agents) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        async with (
            ada.stream("GET", watch) as changes,
            ada.stream("GET", "/v1/sessions/s1/events", headers=live) as events,
            ada.stream("GET", "/v1/sessions/s1/observations") as observations,
        ):
            wait = {"prefer": "wait=30"}
            await ada.post("/v1/sessions/s1/messages", json={"input": "hello"}, headers=wait)
            asked = await ada.post("/v1/sessions/s1/messages", json={"input": "deploy"}, headers=wait)
            (approval,) = asked.json()["waits_for"]
            await ada.post(f"/v1/approvals/{approval['id']}/decision", json={"approve": {}})
            await ada.get(f"/v1/sessions/s1/runs/{asked.json()['message_id']}", headers=wait)
            await ada.post("/v1/sessions/s1/messages", json={"input": "deploy"}, headers=wait)
            await ada.post("/v1/sessions/s1/interrupt", json={})
            found = await read_events(changes, "error")
            await ada.post("/v1/sessions/s1/close", json={})
            of_session = await read_events(events, "closed")
            observed = await read_events(observations, "end")
    assert {"agent", "head", "approval", "decision", "error"} <= {each["event"] for each in found}
    assert {"token", "turn", "approval", "decision", "result", "ended"} <= {
        each["event"] for each in of_session
    }
    assert len(observed) > 5
    assert find_mistakes(found, "ChangeEvent") == []
    assert find_mistakes(of_session, "SessionStreamEvent") == []
    assert find_mistakes(observed, "ObservationEvent") == []


def test_answers_events_and_errors_have_types():
    """Each JSON response refers to a component, each stream names its events, and each error is a problem."""
    document = document_of(ENDPOINTS)
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for status, answer in operation["responses"].items():
                if status == "default" or int(status) >= 400:
                    problem = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
                    assert "application/problem+json" in problem["content"], (path, verb, status)
                elif status not in ("204", "304"):
                    for media, content in answer["content"].items():
                        schema = content["x-item-schema" if media == "text/event-stream" else "schema"]
                        assert "$ref" in schema or not media.endswith("json"), (path, verb, media)
                        # generators read an object without properties as one that is always empty
                        assert (
                            "object" not in content["schema"].get("type", ())
                            or (content["schema"]["additionalProperties"])
                        ), (path, verb, media)


def test_examples_match_their_schemas():
    """The document has a valid example of each body and response."""
    document = document_of(ENDPOINTS)
    checked = 0
    for place, value in walk({"paths": document["paths"], "responses": document["components"]["responses"]}):
        if (
            isinstance(value, dict)
            and "application" in place.rpartition("/content/")[2]
            and "schema" in value
        ):
            if "example" not in value:
                assert not place.endswith("json"), place
                continue
            schema = {**value["schema"], "components": document["components"]}
            assert [
                str(each) for each in jsonschema_rs.validator_for(schema).iter_errors(value["example"])
            ] == [], place
            checked += 1
    assert checked > 60


async def test_unsupported_method_is_405(served):
    """The response names the supported methods."""
    async with served.client() as ada:
        answer = await ada.post("/v1/sessions/s1", json={})
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PATCH, PUT")
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
    ("options", "answer"),
    [
        ({"bind": "0.0.0.0:0"}, "needs tokens"),
        ({"bind": "0.0.0.0:0", "tokens": []}, "needs the host names that clients use"),
        ({"bind": "127.0.0.1"}, "HOST:PORT"),
        ({"bind": "127.0.0.1:99999"}, "HOST:PORT"),
        ({"tokens": "none.toml"}, "cannot be read"),
        ({"hosts": "agents.example.com"}, r"hosts= must be a list: write hosts=\['agents.example.com'\]"),
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
async def test_unprotected_gateway_does_not_start(options, answer):
    """On an address other than loopback, tokens and host names are required. Other mistakes are reported before it listens."""
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match=answer):
            async with open_gateway(runtime, **options):
                pass


async def test_gateway_requires_a_journal():
    """Without a journal, clients could not resume."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="memory:"):
            async with open_gateway(runtime, bind=None):
                pass


async def test_application_can_be_mounted(served):
    """Below a prefix of another application the gateway sends the same responses."""
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


class Weather(TypedDict):
    """Weather of a place."""

    place: str
    """Name of the place."""


async def get_weather(call: HTTPCall) -> JSON[Weather]:
    """Return the weather of a place."""
    await trio.lowlevel.checkpoint()
    return JSON({"place": call.path["id"]})


async def test_endpoint_is_written_down_once(served, monkeypatch):
    """One row defines the route, the scope, the documentation with the response type, and the CORS headers."""
    planted = Endpoint(
        verb="GET",
        path="/weather/{id}",
        answer=get_weather,
        scope="read",
        query={"unit": {"type": "string", "enum": ["c", "f"]}},
        headers={"Weather-Source": "Name of a source."},
        forwarding=READS_JOURNAL,
    )
    monkeypatch.setattr(gateway_setup, "ENDPOINTS", (*ENDPOINTS, planted))
    origin = "https://app.example.com"
    async with (
        open_gateway(served.runtime, bind="127.0.0.1:0", origins=[origin]) as gateway,
        httpx2.AsyncClient(base_url=gateway.url) as client,
    ):
        headers = {"authorization": f"Bearer {gateway.key}"}
        answer = await client.get("/v1/weather/berlin?unit=c", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"place": "berlin"})
        assert (await client.get("/v1/weather/berlin?unit=k", headers=headers)).status_code == 422
        assert (await client.get("/v1/weather/berlin")).status_code == 401
        preflight = await client.options("/v1/weather/berlin", headers={"origin": origin})
        assert "weather-source" in preflight.headers["access-control-allow-headers"].split(", ")
        document = (await client.get("/v1/openapi.json")).json()
    operation = document["paths"]["/v1/weather/{id}"]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Weather"}
    assert document["components"]["schemas"]["Weather"] == {
        "type": "object",
        "description": "Weather of a place.",
        "properties": {"place": {"type": "string", "description": "Name of the place."}},
        "required": ["place"],
    }


class PageReader(HTMLParser):
    """A parser that collects the tags, ids, links and external resources of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.open = set(), [], set(), []

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.tags.add(tag)
        self.ids += [known["id"]] if "id" in known else []
        self.links |= {known[name] for name in ("href", "src", "action") if name in known}
        self.open += [] if tag == "meta" else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("dashboard", [True, False])
async def test_docs_page_shows_every_operation_without_outside_resources(serving, dashboard):
    """The page needs no token. Its links lead to anchors of the page or to the document. Its policy permits only its style."""
    async with (
        serving(dashboard=dashboard) as served,
        httpx2.AsyncClient(base_url=served.gateway.url) as client,
    ):
        page = await client.get("/docs")
        again = await client.get("/docs", headers={"if-none-match": page.headers["etag"]})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert again.status_code == 304
    reader = PageReader()
    reader.feed(page.text)
    document = document_of(ENDPOINTS)
    operations = {each["operationId"] for verbs in document["paths"].values() for each in verbs.values()}
    schemas = {f"schema-{name}" for name in document["components"]["schemas"]}
    assert operations | schemas < set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.links == {f"#{each}" for each in reader.ids} | {"v1/openapi.json"}
    assert (reader.open, reader.tags & {"script", "link", "img", "iframe"}) == ([], set())
    style = page.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")


def test_docs_page_escapes_texts():
    """Texts of the document are not markup."""
    document = json.loads(json.dumps(document_of(ENDPOINTS)))
    document["info"]["description"] = "<script>alert(1)</script>"
    document["components"]["schemas"]["Turn"]["description"] = "`a<b>`"
    text = render_page(document).decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<code>a&lt;b&gt;</code>" in text
    assert "<script" not in text
