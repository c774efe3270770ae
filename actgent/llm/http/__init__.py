"""What the clients of all providers share: requests that are tried again, streams, keys, errors and prices."""

from .client import Fold, Remote, RemoteOptions
from .failures import provider_error
from .keys import find_url
from .media import PDF, PICTURES, Takes, attached
from .names import wire_id, wire_name
from .schemas import (
    ANTHROPIC_STYLE,
    STYLES,
    Inexpressible,
    SchemaStyle,
    offered_tools,
    provider_form,
)
from .sdk import Sdk, set_platform
from .sse import EventTooLarge, LineDecoder
from .wire import (
    CALL_FIELDS,
    INVALID_JSON,
    Body,
    base64_text,
    count,
    data_url,
    described,
    read_arguments,
    read_call,
    result_text,
    to_json,
    whole_calls,
    write_arguments,
    write_object,
)

__all__ = [
    "ANTHROPIC_STYLE",
    "CALL_FIELDS",
    "INVALID_JSON",
    "PDF",
    "PICTURES",
    "STYLES",
    "Body",
    "EventTooLarge",
    "Fold",
    "Inexpressible",
    "LineDecoder",
    "Remote",
    "RemoteOptions",
    "SchemaStyle",
    "Sdk",
    "Takes",
    "attached",
    "base64_text",
    "count",
    "data_url",
    "described",
    "find_url",
    "offered_tools",
    "provider_error",
    "provider_form",
    "read_arguments",
    "read_call",
    "result_text",
    "set_platform",
    "to_json",
    "whole_calls",
    "wire_id",
    "wire_name",
    "write_arguments",
    "write_object",
]
