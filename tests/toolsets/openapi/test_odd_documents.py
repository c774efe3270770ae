"""Invalid, unusual and hostile documents: only the operations that cannot be tools are left out."""

import copy
import random

import pytest

from actgent import OpenAPI
from actgent.errors import ConfigurationError
from actgent.toolsets.openapi.document import APIDocument, read_document

PETS = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://{env}.example/v1", "variables": {"env": {"default": "api"}}}],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "getPet",
                "summary": "One pet.",
                "tags": ["pets"],
                "parameters": [
                    {
                        "name": "q",
                        "in": "query",
                        "style": "deepObject",
                        "schema": {
                            "type": "object",
                            "properties": {"x": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}},
                        },
                    },
                    {"name": "h", "in": "header", "content": {"application/json": {"schema": {"type": "string"}}}},
                    {"name": "c", "in": "cookie", "schema": {"type": "string", "nullable": True, "enum": ["a"]}},
                ],
            },
            "put": {"operationId": "put Pet!", "requestBody": {"$ref": "#/components/requestBodies/Pet"}},
        },
        "/form": {
            "post": {"requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object"}}}}}
        },
        "/again": {"$ref": "#/paths/~1form"},
    },
    "components": {
        "parameters": {"Id": {"name": "id", "in": "path", "schema": {"$ref": "#/components/schemas/Id"}}},
        "requestBodies": {
            "Pet": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}
        },
        "schemas": {
            "Id": {"type": "integer"},
            "Pet": {
                "type": "object",
                "properties": {
                    "kids": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                    "tag": {"allOf": [{"$ref": "#/components/schemas/Id"}]},
                },
            },
        },
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
    },
}  # fmt: skip
ODD = (
    None, [], {}, 0, "x", True, [None], ["x"], {"x": None}, {1: 2}, float("nan"), [[]], b"\xff", "http://[",
    {"$ref": "#/x"}, {"$ref": "#/components/schemas/Pet"}, {"$ref": 3},
)  # fmt: skip


def places(node, above=()):
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def replaced(document, place, value):
    changed = node = copy.deepcopy(document)
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    return changed


def small(paths, **more):
    return {"openapi": "3.1.0", "servers": [{"url": "https://api.example"}], "paths": paths, **more}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_malformed_node_of_a_document_is_reported_or_skipped(version):
    document = {**PETS, "openapi": version}
    each_place = list(places(document))
    chance = random.Random(version)
    refused = made = 0
    for place in each_place:
        for value in chance.sample(ODD, 8):
            try:
                api = OpenAPI(replaced(document, place, value), auth={"key": "s"})
            except ConfigurationError:
                refused += 1
            else:
                made += len(api.tools)
    assert refused > 20
    assert made > 1_000


def test_a_broken_path_is_reported_and_other_paths_work():
    document = replaced(PETS, ("paths", "/form"), {"$ref": "#/nowhere"})
    api = OpenAPI(document)
    assert {tool.name for tool in api.tools} >= {"getPet"}
    assert "has no target" in api.skipped["/form"]


def test_exploding_aliases_are_rejected_before_their_expansion():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "openapi: 3.1.0\nservers: [{url: 'https://api.example'}]\npaths: {}\n" + "\n".join(lines)
    with pytest.raises(ConfigurationError, match="aliases"):
        APIDocument(read_document(text, name="bomb"))


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 100_000, "{" * 1_500, "a: 2020-99-99"])
def test_invalid_document_text_is_a_configuration_error(text):
    with pytest.raises(ConfigurationError):
        APIDocument(read_document(f"openapi: 3.1.0\npaths: {{}}\n{text}" if ":" in text else text, name="it"))


@pytest.mark.parametrize("path", ["@evil.example/x", ".evil.example", ":81/x"])
def test_a_path_cannot_continue_the_host(path):
    with pytest.raises(ConfigurationError, match="must begin with /"):
        OpenAPI(small({path: {"get": {}}}), server="https://api.example").tools  # noqa: B018 - is made at once


def test_argument_never_becomes_part_of_the_host():
    where = {"name": "tenant", "in": "path", "schema": {"type": "string"}}
    document = small(
        {"/x/{tenant}": {"get": {"parameters": [where]}}}, servers=[{"url": "https://{tenant}.example"}]
    )
    with pytest.raises(ConfigurationError, match="pass server="):
        OpenAPI(document)


def test_argument_names_are_valid_and_distinct():
    values = [
        ("filter[name]", "query"),
        ("filter(name)", "query"),
        ("body", "query"),
        ("body_query", "query"),
        ("x" * 80, "query"),
    ]
    parameters = [{"name": name, "in": place, "schema": {"type": "string"}} for name, place in values]
    (tool,) = OpenAPI(small({"/x": {"get": {"parameters": parameters}}})).tools
    names = list(tool.parameters["properties"])
    assert len(names) == 5
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in names)
    request = tool.request(dict(zip(names, "abcde", strict=True)))
    assert request.query == tuple((name, value) for (name, _), value in zip(values, "abcde", strict=True))


def test_connection_headers_are_not_arguments():
    parameters = [{"name": name, "in": "header"} for name in ("Host", "Content-Length", "Cookie", "X-Fine")]
    (tool,) = OpenAPI(small({"/x": {"get": {"parameters": parameters}}})).tools
    assert list(tool.parameters["properties"]) == ["X-Fine"]


@pytest.mark.parametrize("place", ["9" * 5_000, "\u0663", "-1", "1_0"])
def test_reference_with_an_invalid_index_is_skipped(place):
    """An operation with an invalid list index in a reference is left out."""
    body = {"content": {"application/json": {"schema": {"$ref": f"#/servers/{place}"}}}}
    assert OpenAPI(small({"/x": {"post": {"requestBody": body}}, "/y": {"get": {}}})).tools[0].name == "get_y"


def test_shared_definitions_are_translated_once():
    """No operation repeats the translation, and long reference chains are complete."""
    count = 300
    schemas = {
        f"S{n}": {"properties": {"next": {"$ref": f"#/components/schemas/S{(n + 1) % count}"}}}
        for n in range(count)
    }
    paths = {
        f"/x{n}": {
            "get": {
                "parameters": [{"name": "q", "in": "query", "schema": {"$ref": f"#/components/schemas/S{n}"}}]
            }
        }
        for n in range(count)
    }
    api = OpenAPI(small(paths, components={"schemas": schemas}))
    assert api.skipped == {}
    first, last = api.tools[0].parameters["$defs"], api.tools[-1].parameters["$defs"]
    assert [*first] == [f"S{n}" for n in range(count)]
    assert [*last] == [f"S{(n - 1) % count}" for n in range(count)]
    assert all(first[name] is last[name] for name in first)


def test_equal_definition_names_are_distinguished_per_tool():
    """A tool that refers to both definitions gets distinct names, in the order of its references."""
    both = {"schemas": {"A": {"type": "object", "properties": {"a": {"$ref": "#/components/parameters/A"}}}}}
    components = {**both, "parameters": {"A": {"type": "string"}}}
    one, other = (
        {"name": "q", "in": "query", "schema": {"$ref": f"#/components/{kind}/A"}}
        for kind in ("schemas", "parameters")
    )
    paths = {f"/{n}": {"get": {"parameters": [dict(each, name=f"q{i}") for i, each in enumerate(given)]}}
             for n, given in enumerate([[one], [other], [other, one]])}  # fmt: skip
    by_schema, alone, together = [
        tool.parameters for tool in OpenAPI(small(paths, components=components)).tools
    ]
    assert alone["$defs"] == {"A": {"type": "string"}}
    assert by_schema["$defs"] == {
        "A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A_1"}}},
        "A_1": {"type": "string"},
    }
    assert together["$defs"] == {
        "A": {"type": "string"},
        "A_1": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}},
    }
    assert [each["$ref"] for each in together["properties"].values()] == ["#/$defs/A", "#/$defs/A_1"]


def operation_of(path="/x", method="get", **members):
    (tool,) = OpenAPI(small({path: {method: members}})).tools
    return tool


COLORS, RGB = ["blue", "black"], {"R": 100, "G": 200}
STYLES = [
    ("path", "simple", False, COLORS, "blue,black"),
    ("path", "simple", False, RGB, "R,100,G,200"),
    ("path", "simple", True, RGB, "R=100,G=200"),
    ("path", "simple", False, ["a,b", "c/d"], "a%2Cb,c%2Fd"),
    ("path", "label", False, COLORS, ".blue,black"),
    ("path", "label", True, COLORS, ".blue.black"),
    ("path", "label", True, RGB, ".R=100.G=200"),
    ("path", "matrix", False, "blue", ";c=blue"),
    ("path", "matrix", False, RGB, ";c=R,100,G,200"),
    ("path", "matrix", True, COLORS, ";c=blue;c=black"),
    ("path", "matrix", True, RGB, ";R=100;G=200"),
    ("query", "form", True, {"a": [1, 2]}, "a=1&a=2"),
    ("query", "form", False, [1, None, 2], "c=1,2"),
    ("query", "form", False, [], ""),
    ("query", "deepObject", True, {"a": {"b": 1}, "l": [1, None]}, "c[a][b]=1&c[l][0]=1"),
    ("header", "simple", True, RGB, "R=100,G=200"),
    ("header", "simple", False, None, None),
    ("cookie", "form", True, None, None),
]


@pytest.mark.parametrize(("location", "style", "explode", "value", "expected"), STYLES, ids=repr)
def test_parameter_follows_the_styles_of_the_specification(location, style, explode, value, expected):
    """The values follow the table of styles (RFC 6570). Null values are not sent."""
    path = "/x/{c}" if location == "path" else "/x"
    parameter = {"name": "c", "in": location, "style": style, "explode": explode, "schema": {}}
    request = operation_of(path, parameters=[parameter]).request({"c": value})
    sent = {
        "path": request.url.removeprefix("https://api.example/x/"),
        "query": "&".join("=".join(pair) for pair in request.query),
        "header": request.headers.get("c"),
        "cookie": request.headers.get("Cookie"),
    }
    assert sent[location] == expected


def test_parameter_with_a_media_type_is_json():
    parameter = {"name": "c", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    assert operation_of(parameters=[parameter]).request({"c": {"a": 1}}).query == (("c", '{"a": 1}'),)


@pytest.mark.parametrize(
    ("media_type", "media", "body", "expected"),
    [
        ("application/x-www-form-urlencoded", {"encoding": {"m": {"style": "deepObject"}}}, {"m": {"k": ["v"]}}, "m%5Bk%5D%5B0%5D=v"),
        ("application/x-www-form-urlencoded", {"encoding": {"m": {"explode": False}}}, {"m": [1, 2]}, "m=1%2C2"),
        ("application/x-www-form-urlencoded", {"encoding": {"m": {"contentType": "text/plain"}}}, {"m": [1, 2]}, "m=1&m=2"),
        ("multipart/form-data", {"schema": {"properties": {"m": {"format": "binary"}}}}, {"m": "hi"}, 'name="m"; filename="m"\r\nContent-Type: application/octet-stream\r\n\r\nhi'),
        ("multipart/form-data", {"schema": {"properties": {"m": {"items": {"contentMediaType": "text/csv"}}}}}, {"m": ["hi"]}, 'filename="m"'),
        ("multipart/form-data", {}, {"m": {"a": 1}}, "Content-Type: application/json"),
        ("Application/JSON", {}, {"m": 1}, '{"m": 1}'),
    ],
)  # fmt: skip
def test_body_follows_the_encoding_of_the_document(media_type, media, body, expected):
    """Fields of forms have the style of the document. Files have a file name, so that a server reads them as files."""
    tool = operation_of(method="post", requestBody={"required": True, "content": {media_type: media}})
    assert expected in tool.request({"body": body}).content.decode()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"id": {"readOnly": True}, "n": {}}, "required": ["id", "n"]}, {"properties": {"n": {}}, "required": ["n"]}),
        ({"properties": {"n": {"type": "string", "required": True}}}, {"properties": {"n": {"type": "string"}}}),
        ({"properties": {"n": {"type": "float"}}}, {"properties": {"n": {}}}),
    ],
)  # fmt: skip
def test_request_schema_has_only_usable_parts(schema, expected):
    """Requests have no read-only properties. Common mistakes do not remove the operation."""
    tool = operation_of(method="post", requestBody={"content": {"application/json": {"schema": schema}}})
    assert tool.parameters["properties"]["body"] == expected


@pytest.mark.parametrize(
    "paths",
    [
        {"/a": {"get": {"operationId": "x"}, "put": {"operationId": "x"}}},
        {"/a/b": {"get": {}}, "/a_b": {"get": {}}},
    ],
)
def test_operations_with_equal_ids_are_distinct_tools(paths):
    """An operation with the id of another operation has a name made of its method and path."""
    api = OpenAPI(small(paths))
    assert len({tool.name for tool in api.tools}) == 2
    assert api.skipped == {}


@pytest.mark.parametrize("parameters", [[], [{"name": "ID", "in": "path", "schema": {"type": "integer"}}]])
def test_path_parameter_without_a_description_is_a_text(parameters):
    """The path decides which path parameters an operation has."""
    tool = operation_of("/x/{id}", parameters=parameters)
    assert tool.parameters["properties"] == {"id": {"type": "string"}}
    assert tool.request({"id": "a/b"}).url == "https://api.example/x/a%2Fb"


def test_server_variable_without_a_default_is_not_replaced():
    """An empty text would make another URL."""
    server = {"url": "https://api.example/{region}/v1", "variables": {"region": {"enum": ["eu"]}}}
    with pytest.raises(ConfigurationError, match="pass server="):
        OpenAPI(small({"/x": {"get": {}}}, servers=[server]))


@pytest.mark.parametrize(
    ("text", "expected"), [("a: 1\na: 2\n", 'duplicate key "a"'), ("a:\n\t- 1\n", "cannot start any token in line 2")]
)  # fmt: skip
def test_error_of_a_document_names_the_fault_and_the_line(text, expected):
    with pytest.raises(ConfigurationError, match=expected):
        read_document(text, name="it")
