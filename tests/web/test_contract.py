"""Random requests from the gateway's OpenAPI document. No request causes a 500."""

import random
import string
from urllib.parse import quote

import pytest
import trio

STRANGE = (
    None, True, 0, -1, 2**53, 1e308, "", " ", "s1", "\x00", "\r\nx: y", "../..", "%2e%2e", "🜁" * 40, "'; DROP TABLE--", "x" * 5000, [], [[]], {}, {"$ref": "#"}, {"type": "text"},
)  # fmt: skip
"""Values of wrong types, and hostile texts."""
WORDS = ("s1", "m1", "clerk", "helper", "act", "x", "0.s1", "1", "2027-01-31T12:00:00Z")
MALFORMED = ("{", "[1", '{"a": 1, "a": 2}', "\ud800", "nul")
SEEDS = 4


def made(draw, schema):
    """Return a random value that usually matches the schema."""
    if draw.random() < 0.15:
        return draw.choice(STRANGE)
    several = schema.get("oneOf") or schema.get("anyOf")
    if several and "properties" not in schema:
        return made(draw, draw.choice(several))
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema.get("type")
    return MAKERS.get(draw.choice(kind) if isinstance(kind, list) else kind, a_word)(draw, schema)


def an_object(draw, schema):
    known = schema.get("properties", {})
    expected = {*schema.get("required", ()), *(name for name in known if draw.random() < 0.4)}
    if "oneOf" in schema:
        expected.update(draw.choice(schema["oneOf"]).get("required", ()))
    return {name: made(draw, known.get(name, {})) for name in sorted(expected)}


def an_array(draw, schema):
    return [made(draw, schema.get("items", {})) for _ in range(draw.randrange(3))]


def a_number(draw, schema):
    return draw.choice((schema.get("minimum", 0), schema.get("maximum", 7), 1, 2, 0.5, 10**6))


def a_word(draw, _):
    return draw.choice(WORDS)


def a_truth(draw, _):
    return draw.choice((True, False))


MAKERS = {"object": an_object, "array": an_array, "integer": a_number, "number": a_number, "boolean": a_truth}


def text_of(draw, value):
    """Return a value as text for a URL."""
    text = value if isinstance(value, str) else str(value)
    return quote(text, safe="" if draw.random() < 0.9 else "/:@") or "%20"


def request_of(draw, path, verb, operation):
    """Return the path, query, headers and body of a request to an operation."""
    query, headers = [], {}
    for each in operation["parameters"]:
        value = made(draw, each["schema"])
        if each["in"] == "path":
            path = path.replace("{" + each["name"] + "}", text_of(draw, value))
        elif each["in"] == "query" and draw.random() < 0.5:
            query.append(f"{each['name']}={text_of(draw, value)}")
        elif each["in"] == "header" and draw.random() < 0.3:
            printable = "".join(char for char in str(value) if char in string.printable[:95])
            headers[each["name"]] = printable.strip()[:200]
    if draw.random() < 0.1:
        query.append(draw.choice(("token=x", "unknown=1", "limit=", "%", "=", "after=AAAA", "after=W10")))
    sent = {}
    if "requestBody" in operation:
        (media,) = operation["requestBody"]["content"].values()
        sent["json"] = made(draw, media["schema"])
        if draw.random() < 0.1:
            sent = {
                "content": draw.choice(MALFORMED).encode("utf-8", "surrogatepass"),
                "headers": {"content-type": "application/json"},
            }
    sent["headers"] = {**sent.get("headers", {}), **headers}
    return verb.upper(), path + ("?" + "&".join(query) if query else ""), sent


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["ada", "root"])
async def test_no_request_causes_an_internal_error(serving, seed, name, caplog):
    """A failed request returns a problem with type, status and request id. Streams start, and the gateway works afterwards."""
    from actgent.web.gateway_limits import GatewayLimits

    draw = random.Random(f"{seed} {name}")
    limits = GatewayLimits(rate=1e6, burst=1_000_000, messages=100_000, grace=1)
    async with serving(limits=limits) as served, served.client(name) as client:
        document = (await client.get("/v1/openapi.json")).json()
        paths, schemas = document["paths"], document["components"]["schemas"]
        for operation in (each for verbs in paths.values() for each in verbs.values()):
            for media in operation.get("requestBody", {"content": {}})["content"].values():
                if "$ref" in media["schema"]:
                    media["schema"] = schemas[media["schema"]["$ref"].rpartition("/")[2]]
        operations = [(path, verb, each) for path, verbs in paths.items() for verb, each in verbs.items()]
        for _ in range(6):
            for path, verb, operation in draw.sample(operations, len(operations)):
                await client.put("/v1/sessions/s1", json={"agent": "clerk"})
                sent = request_of(draw, path, verb, operation)
                answer = await ask(client, *sent)
                assert answer.status_code < 500 or answer.status_code == 503, (sent, answer.status_code)
                if answer.status_code >= 400:
                    told = answer.json()
                    assert answer.headers["content-type"] == "application/problem+json", sent
                    assert told["status"] == answer.status_code, sent
                    assert told["instance"] == answer.headers["x-request-id"], sent
                    assert told["type"].startswith("/errors/"), sent
        assert (await client.get("/v1/health/ready")).status_code == 200
    assert [
        record
        for record in caplog.records
        if "failed" in record.getMessage() and record.name == "actgent.web.asgi_app"
    ] == []


async def ask(client, verb, path, sent):
    """Send a request. Of a stream, only the beginning is read."""
    request = client.build_request(verb, "/", timeout=20, **sent)
    request.url = request.url.copy_with(raw_path=path.encode())
    with trio.fail_after(60):
        answer = await client.send(request, stream=True)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aread()
        await answer.aclose()
        return answer
