"""Generates the gateway's OpenAPI 3.1 document from the endpoint table against which requests are validated."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from actgent.web.problems import MEDIA_TYPE, TITLES

from .endpoints import Endpoint

_NAMES = re.compile(r"\{(\w+)\}")
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"enum": [f"/errors/{kind}" for kind in TITLES]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "description": "The id of the request."},
        "retry_after": {"type": "number", "description": "Seconds."},
    },
    "required": ["type", "title", "status", "detail", "instance"],
}


def document_of(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(f"/v1{endpoint.path}", {})[endpoint.verb.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "actgent",
            "version": "1",
            "description": "Agents over HTTP: new fields and events may come.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    problem = {
        "description": "A problem (RFC 9457).",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    operation: dict[str, Any] = {
        "operationId": endpoint.answer.__name__,
        "summary": (endpoint.answer.__doc__ or "").partition("\n")[0],
        "parameters": [*_in_path(endpoint), *_in_query(endpoint), *_in_headers(endpoint)],
        "responses": {str(status): _success(endpoint, status) for status in endpoint.statuses}
        | {"default": problem},
        "security": [] if endpoint.scope is None else [{"token": []}],
    }
    if endpoint.scope is not None:
        operation["x-scope"] = endpoint.scope
    if endpoint.verb in ("POST", "PUT"):
        schema = endpoint.body or {"type": "object", "maxProperties": 0}
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": endpoint.body is not None, "content": content}
    return operation


def _success(endpoint: Endpoint, status: int) -> dict[str, Any]:
    if status in (204, 304):
        return {"description": "Done, without a body." if status == 204 else "Nothing is new."}  # noqa: PLR2004 - the HTTP statuses without a body
    kinds: dict[str, Any] = {endpoint.gives: {"schema": _form_of(endpoint)}}
    if endpoint.streams:
        kinds["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "Done.", "content": kinds}


def _form_of(endpoint: Endpoint) -> dict[str, Any]:
    return {"type": "object"} if endpoint.gives == "application/json" else {}


def _in_path(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    for name in _NAMES.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    for name, schema in endpoint.query.items():
        yield {"name": name, "in": "query", "required": False, "schema": dict(schema)}


def _in_headers(endpoint: Endpoint) -> Iterable[Mapping[str, Any]]:
    for name, words in endpoint.headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": words,
            "schema": {"type": "string"},
        }
