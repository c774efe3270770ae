"""Repair of JSON-RPC messages and results that deviate from the protocol. Imported with the SDK.

The SDK rejects such a message. The result of a call that ran would be lost, or the call would wait until its timeout.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types
from pydantic import TypeAdapter, ValidationError

from actgent.errors.text_escaping import shown
from actgent.support.json_rpc_decoding import decode_message
from actgent.support.safe_logging import logger_of

MAX_UNKNOWN_BLOCK_CHARACTERS = 2_000
"""Maximum length of the JSON that replaces a content block of an unknown type."""
_log = logger_of(__name__)
_Block: TypeAdapter[mcp_types.ContentBlock] = TypeAdapter(mcp_types.ContentBlock)
_BLOCK_MEMBERS = ("type", "text", "data", "mimeType", "uri", "name", "description", "resource")
_LISTED: Mapping[str, tuple[str, type[Any], tuple[str, ...]]] = {
    "tools/list": (
        "tools",
        mcp_types.Tool,
        ("name", "title", "description", "inputSchema", "outputSchema", "annotations"),
    ),
    "prompts/list": ("prompts", mcp_types.Prompt, ("name", "title", "description", "arguments")),
    "resources/list": ("resources", mcp_types.Resource, ("uri", "name", "description", "mimeType")),
}
"""By method: the member with the list, the type of its items, and the members of an item that this package reads."""


def read_messages(data: bytes) -> list[mcp_types.JSONRPCMessage]:
    """Parse the JSON-RPC message in `data`, or the messages of a batch.

    Invalid UTF-8 and unpaired surrogates, as JavaScript creates by cutting text, become U+FFFD. A response without a
    result object becomes an error response.

    Raises:
        ValueError: The data is not a JSON-RPC message.
    """
    try:
        return [mcp_types.jsonrpc_message_adapter.validate_json(data, by_name=False)]
    except ValueError:
        pass
    value = decode_message(data)
    return [_repair_message(each) for each in (value if isinstance(value, list) else [value])]


def error_response(number: Any, message: str, *, code: int = mcp_types.INTERNAL_ERROR) -> dict[str, Any]:
    """Return a JSON-RPC error response to the request with the id `number`."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _repair_message(item: Any) -> mcp_types.JSONRPCMessage:
    if not isinstance(item, dict) or not ("jsonrpc" in item or item.keys() <= {"id", "result", "error"}):
        raise ValueError("not a JSON-RPC message")
    number, error = item.get("id"), item.get("error")
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    fixed: dict[str, Any]
    if "method" in item:
        fixed = {"jsonrpc": "2.0", "method": item["method"]}
        if isinstance(item.get("params"), dict):
            fixed["params"] = item["params"]
        if number is not None:
            fixed["id"] = number
    elif error is None and isinstance(item.get("result"), dict):
        fixed = {"jsonrpc": "2.0", "id": number, "result": item["result"]}
    elif isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        fixed = error_response(
            number,
            message if isinstance(message, str) else json.dumps(error),
            code=code if type(code) is int else mcp_types.INTERNAL_ERROR,
        )
    else:
        if number is None and error is None:
            raise ValueError("the JSON-RPC message is neither a request nor a response")
        reason = "the response has no result object" if error is None else str(error)
        fixed = error_response(number, reason)
    return mcp_types.jsonrpc_message_adapter.validate_python(fixed, by_name=False)


def repair_result(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """Repair the result of a request with the method `method` in place, and return it.

    Items of lists and blocks of content that are still invalid are left out, or replaced by text.
    """
    if method in _LISTED:
        _repair_list(result, *_LISTED[method])
    elif method == "tools/call" and "inputRequests" not in result and "requestState" not in result:
        _repair_content(result)
    elif method == "initialize":
        _repair_handshake(result)
    return result


def _repair_list(result: dict[str, Any], member: str, kind: type[Any], members: tuple[str, ...]) -> None:
    if not isinstance(result.get("nextCursor"), str):
        result.pop("nextCursor", None)
    if isinstance(items := result.get(member), list):
        result[member] = [each for item in items if (each := _repair_item(item, member, kind, members))]


def _repair_item(item: Any, member: str, kind: type[Any], members: tuple[str, ...]) -> dict[str, Any] | None:
    """Return a listed item that is valid, or None after a warning."""
    if not isinstance(item, dict):
        reason = "it is not an object"
    elif kind is mcp_types.Tool and (wrong := _repair_schemas(item)):
        reason = wrong
    elif _is_valid(kind.model_validate, item):
        return item
    else:
        plain = {name: item[name] for name in members if name in item}
        for name in ("title", "description", "mimeType"):
            if not isinstance(plain.get(name), str):
                plain.pop(name, None)
        if not _is_valid(kind.model_validate, plain):
            plain.pop("annotations", None)
        try:
            kind.model_validate(plain)
        except ValidationError as error:
            reason = describe_faults(error)
        else:
            return plain
    label = str(item.get("name") if isinstance(item, dict) else item)[:100]
    _log.warning(
        "the %s %s of an MCP server is left out: %s", member.removesuffix("s"), shown(label), shown(reason)
    )
    return None


def _repair_schemas(tool: dict[str, Any]) -> str:
    """Add the type `object` to the input schema of a listed tool if the schema has no type, and drop unusable output schemas.

    Return an error text if the input schema has another type, because models can only pass objects. Otherwise return an
    empty text.
    """
    schema = tool.get("inputSchema")
    if not schema or not isinstance(schema, dict):
        schema = tool["inputSchema"] = {"type": "object", "properties": {}}
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        return f"the type of its arguments is {str(kinds)[:100]}, not object"
    schema["type"] = "object"
    for member, expected in (("properties", dict), ("required", list)):
        if member in schema and not isinstance(schema[member], expected):
            del schema[member]
    output = tool.get("outputSchema")
    if output is not None and not (isinstance(output, dict) and output.get("type") == "object"):
        del tool["outputSchema"]  # the SDK accepts only objects; without a schema results are not validated
    return ""


def _repair_content(result: dict[str, Any]) -> None:
    content, structured = result.get("content"), result.get("structuredContent")
    if content is None:
        rest = {name: each for name, each in result.items() if name not in ("_meta", "isError", "content")}
        content = [json.dumps(rest)] if rest and not isinstance(structured, dict) else []
    elif not isinstance(content, list):
        content = [content]
    result["content"] = [_repair_block(block) for block in content]
    if structured is not None and not isinstance(structured, dict):
        del result["structuredContent"]
        if not content:
            result["content"] = [_text(json.dumps(structured, ensure_ascii=False))]
    for member, expected in (("_meta", dict), ("isError", bool | str)):
        if member in result and not isinstance(result[member], expected):
            del result[member]


def _repair_block(block: Any) -> Any:
    """Return a valid content block. A block of unknown type or with a missing member becomes a text with its JSON."""
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, dict) and "type" in block and _is_valid(_Block.validate_python, block):
        return block
    if isinstance(block, dict):
        plain = {name: block[name] for name in _BLOCK_MEMBERS if name in block}
        plain.setdefault("type", "text")
        plain.setdefault("mimeType", "")
        plain.setdefault("name", plain.get("uri"))
        if _is_valid(_Block.validate_python, plain):
            return plain
        if isinstance(block.get("text"), str):
            return _text(block["text"])
    text = json.dumps(block, ensure_ascii=False)
    if len(text) > MAX_UNKNOWN_BLOCK_CHARACTERS:
        text = f"{text[:MAX_UNKNOWN_BLOCK_CHARACTERS]}... ({len(text):,} characters)"
    return _text(text)


def _repair_handshake(result: dict[str, Any]) -> None:
    info, capabilities = result.get("serverInfo"), result.get("capabilities")
    known = info if isinstance(info, dict) else {}
    result["serverInfo"] = {name: str(known.get(name) or "") for name in ("name", "version")}
    offered = capabilities if isinstance(capabilities, dict) else {}
    result["capabilities"] = {
        name: each if isinstance(each, dict) else {}
        for name, each in offered.items()
        if each or isinstance(each, dict)
    }
    if not isinstance(result.get("instructions"), str):
        result.pop("instructions", None)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_valid(validate: Callable[[Any], object], value: Any) -> bool:
    try:
        validate(value)
    except ValidationError:
        return False
    return True


def describe_faults(error: ValidationError) -> str:
    """Describe at most three faults of an invalid result, without the internals of the validator."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)[:3]
    )
