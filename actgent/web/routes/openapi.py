"""OpenAPI 3.1 document of the gateway, generated from the endpoint table against which requests are validated."""

import re
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Union, get_args, get_origin, get_type_hints

from actgent.web import json_response_types
from actgent.web.problem_documents import MEDIA_TYPE, TITLES
from actgent.web.streaming.sse import StreamedEvents

from .common_request_schemas import ID
from .endpoints import BODY_VERBS, IDEMPOTENCY_KEY, JSON, MAX_QUERY_INTEGER, MAX_QUERY_TEXT_CHARS, Endpoint
from .response_type_schemas import Schema, TypeSchemas, example_of

_NAMES = re.compile(r"\{(\w+)\}")
_NO_BODY = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema of the body of a POST that needs no body."""
_PATH_VARIABLES: Mapping[str, tuple[str, str]] = {
    "a": ("Name of the agent.", "support"),
    "call": ("Id of the call.", "9f2c41d0.order-17"),
    "case": ("Name of the case, as the list of cases has it.", "greeting"),
    "d": ("Name of the dataset.", "support"),
    "evaluation": ("Id of the evaluation.", "20261127T090000.000000Z-1a2b"),
    "id": ("Id of the session.", "order-17"),
    "m": ("Id of the message.", "0197c2d6a1f4"),
    "media_id": ("Number of a record, and index of the picture or file in the record.", "12-0"),
    "l": ("Id of the dead letter.", "9f2c41d0a1b2-0000002a"),
    "memory": ("Id of the memory.", "m0f3c9a52d1b7e864"),
    "n": ("Number of the record.", "12"),
    "s": ("Id of the schedule.", "reminder"),
    "t": ("Id of the task.", "research"),
    "w": ("Id of the webhook.", "w1"),
}
"""Description and example of each variable segment of a path."""
_APPROVAL_ID = ("Id of the approval.", "9f2c41d0.order-17")
_RETRIED = (429, 503)
"""HTTP statuses of errors with the header `Retry-After`."""
_ANY_REQUEST = (401, 403, 429, 503)
_BODY_ERRORS = (408, 413, 415)
_VALUE_ERRORS = (400, 422)


@lru_cache(maxsize=4)
def document_of(endpoints: Iterable[Endpoint]) -> Mapping[str, Any]:
    """Return the OpenAPI 3.1 document that describes these endpoints."""
    builder = _DocumentBuilder()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.route, {})[endpoint.verb.lower()] = builder.operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "actgent",
            "version": "1",
            "summary": "Agents over HTTP.",
            "description": "Later versions add fields, events and values: ignore those that are unknown.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in sorted(builder.tags)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(builder.types.components.items())),
            "responses": builder.responses,
            "headers": _HEADERS,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token that `actgent token new` has created.",
                }
            },
        },
    }


_HEADERS = {
    "X-Request-Id": {
        "description": "Id of the request, under which the server log has the details of an error.",
        "schema": {"type": "string", "examples": ["0197c2d6a1f4"]},
    },
    "RateLimit": {
        "description": "`r`: requests that the token may send at once; `t`: seconds until the next one, if none is left.",
        "schema": {"type": "string", "examples": ['"requests";r=99']},
    },
    "RateLimit-Policy": {
        "description": "`q`: largest number of requests at once; `w`: seconds in which it is available again.",
        "schema": {"type": "string", "examples": ['"requests";q=100;w=5']},
    },
    "Retry-After": {
        "description": "Seconds after which the request can be sent again.",
        "schema": {"type": "integer", "minimum": 0, "examples": [1]},
    },
}


class _DocumentBuilder:
    """Builds the operations of an OpenAPI document, and collects the components (schemas, responses) that they refer to."""

    def __init__(self) -> None:
        self.types = TypeSchemas()
        self.responses: dict[str, Schema] = {"Problem": self._problem_response(None)}
        self.tags: set[str] = set()

    def operation(self, endpoint: Endpoint) -> dict[str, Any]:
        tag = endpoint.answer.__module__.rpartition(".")[2].replace("_", " ")
        self.tags.add(tag)
        summary, _, more = (endpoint.answer.__doc__ or "").partition("\n")
        operation: dict[str, Any] = {
            "operationId": endpoint.answer.__name__,
            "tags": [tag],
            "summary": summary,
            **({"description": " ".join(more.split())} if more.strip() else {}),
            "parameters": [
                *_path_parameters(endpoint),
                *_query_parameters(endpoint),
                *_header_parameters(endpoint),
            ],
            "responses": self._responses(endpoint),
            "security": [] if endpoint.scope is None else [{"token": []}],
        }
        if endpoint.scope is not None:
            operation["x-scope"] = endpoint.scope
        if endpoint.verb in BODY_VERBS:
            operation["requestBody"] = self._request_body(endpoint)
        return operation

    def _request_body(self, endpoint: Endpoint) -> Schema:
        if endpoint.body is None:
            content = {"schema": _NO_BODY, "example": {}}
            return {"required": not endpoint.ignores_body, "content": {"application/json": content}}
        words = endpoint.answer.__name__.split("_")
        name = "".join(map(str.capitalize, words)) + "Body"
        self.types.components[name] = dict(endpoint.body)
        example = example_of(endpoint.body, self.types.components)
        content = {"schema": {"$ref": f"#/components/schemas/{name}"}, "example": example}
        return {"required": True, "content": {"application/json": content}}

    def _responses(self, endpoint: Endpoint) -> dict[str, Any]:
        answers = {
            str(status): self._success(endpoint, status)
            for status in endpoint.statuses
            if status < HTTPStatus.BAD_REQUEST
        }
        errors = {str(status): self._error(status) for status in _error_statuses(endpoint)}
        return answers | errors | {"default": {"$ref": "#/components/responses/Problem"}}

    def _success(self, endpoint: Endpoint, status: int) -> dict[str, Any]:
        names = (
            ("X-Request-Id",) if endpoint.scope is None else ("X-Request-Id", "RateLimit", "RateLimit-Policy")
        )
        headers: dict[str, Any] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
        for name, text in endpoint.answer_headers.items():
            headers[name] = {"description": text, "schema": {"type": "string"}}
        answer: dict[str, Any] = {"description": f"{HTTPStatus(status).phrase}.", "headers": headers}
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            return answer
        content: dict[str, Any] = {}
        document, events = _answer_types(endpoint)
        if document is not None:
            schema = self.types.schema(document)
            content["application/json"] = {
                "schema": schema,
                "example": example_of(schema, self.types.components),
            }
        if events is not None and status == HTTPStatus.OK:
            text = "Server-sent events. `x-item-schema` describes the fields `event` and `data` of each event; `id` is its cursor."
            # Some tools check the text of the stream against this schema, and others check each event as an object.
            content["text/event-stream"] = {
                "schema": {"type": ["string", "object"], "additionalProperties": True, "description": text},
                "x-item-schema": self.types.schema(events),
            }
        if not content:
            content[endpoint.media_type] = {
                "schema": {"type": "string", "contentMediaType": endpoint.media_type}
            }
        return answer | {"content": content}

    def _error(self, status: int) -> Schema:
        name = HTTPStatus(status).phrase.replace(" ", "").replace("-", "")
        if name not in self.responses:
            self.responses[name] = self._problem_response(status)
        return {"$ref": f"#/components/responses/{name}"}

    def _problem_response(self, status: int | None) -> Schema:
        """Return the OpenAPI response object for problems with an HTTP status; None is for problems of any status."""
        kinds = [kind for kind, (number, _) in TITLES.items() if status in (None, number)]
        schema = self.types.schema(json_response_types.Problem)
        first = kinds[0]
        known = {"type": f"/errors/{first}", "title": TITLES[first][1], "status": TITLES[first][0]}
        example = known | {"detail": "the reason, in words for people", "instance": "0197c2d6a1f4"}
        headers: Schema = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
        if status in _RETRIED:
            headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
            example["retry_after"] = 1
        description = "A problem (RFC 9457)."
        if status is not None:
            types = [f"/errors/{kind}" for kind in kinds]
            schema = {
                "allOf": [schema, {"properties": {"type": {"enum": types}, "status": {"const": status}}}]
            }
            description = f"A problem of type {', '.join(f'`{each}`' for each in types)}."
        content = {MEDIA_TYPE: {"schema": schema, "example": example}}
        return {"description": description, "headers": headers, "content": content}


def _answer_types(endpoint: Endpoint) -> tuple[Any, Any]:
    """Return the type of an endpoint's JSON response and the type of its stream events. A missing type is None.

    They are read from the return annotation of the endpoint's handler.
    """
    returned = get_type_hints(endpoint.answer, include_extras=True)["return"]
    members = get_args(returned) if get_origin(returned) in (Union, types.UnionType) else (returned,)
    found = {get_origin(each): get_args(each)[0] for each in members if get_origin(each) is not None}
    return found.get(JSON), found.get(StreamedEvents)


def _error_statuses(endpoint: Endpoint) -> list[int]:
    """Return the HTTP statuses of all error responses of an endpoint, which follow from its scope, path and body."""
    statuses = {status for status in endpoint.statuses if status >= HTTPStatus.BAD_REQUEST}
    if endpoint.scope is not None:
        statuses |= set(_ANY_REQUEST)
    if "{" in endpoint.path:
        statuses |= {404}
    if "{id}" in endpoint.path or endpoint.body is not None:
        statuses |= {409}
    if endpoint.query or endpoint.body is not None or "{" in endpoint.path:
        statuses |= set(_VALUE_ERRORS)
    if endpoint.verb in BODY_VERBS:
        statuses |= set(_BODY_ERRORS)
    return sorted(statuses)


def _path_parameters(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    known = dict(_PATH_VARIABLES)
    if endpoint.path.startswith("/approvals/"):
        known["id"] = _APPROVAL_ID
    for name in _NAMES.findall(endpoint.path):
        text, example = known[name]
        is_chosen = endpoint.verb == "PUT" and HTTPStatus.CREATED in endpoint.statuses
        bounds = ID if is_chosen else {"type": "string", "minLength": 1, "maxLength": 2000}
        schema = {**bounds, "examples": [example]}
        yield {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _query_parameters(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    for name, schema in endpoint.query.items():
        bounds: Schema = {}
        if schema.get("type") == "integer":
            bounds = {"maximum": MAX_QUERY_INTEGER}
        elif schema.get("type") == "string" and "enum" not in schema:
            bounds = {"maxLength": MAX_QUERY_TEXT_CHARS}
        yield {
            "name": name,
            "in": "query",
            "required": name in endpoint.required_query,
            "schema": {**bounds, **schema},
        }


def _header_parameters(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    for name, text in endpoint.request_headers.items():
        schema = ID if name == IDEMPOTENCY_KEY else {"type": "string"}
        yield {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
