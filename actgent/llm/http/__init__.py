"""Shared parts of the HTTP clients of all providers: requests, retries, streams, keys, errors and prices."""

from .api_keys import find_url
from .base_provider_client import Remote, RemoteOptions, StreamAssembler
from .provider_errors import provider_error
from .provider_schemas import (
    ANTHROPIC_STYLE,
    STYLES,
    SchemaStyle,
    UnsupportedSchema,
    answer_schema,
    supported_tools,
)
from .sdk_client import Sdk, set_platform
from .sse import EventTooLarge, LineDecoder
from .stop_reasons import stop_reason
from .tool_name_encoding import provider_call_id, provider_tool_name
from .tool_result_media import PDF, PICTURES, AcceptsMedium, attach_media
from .wire_encoding import (
    CALL_FIELDS,
    INVALID_JSON,
    Body,
    base64_text,
    count,
    data_url,
    description_field,
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
    "AcceptsMedium",
    "Body",
    "EventTooLarge",
    "LineDecoder",
    "Remote",
    "RemoteOptions",
    "SchemaStyle",
    "Sdk",
    "StreamAssembler",
    "UnsupportedSchema",
    "answer_schema",
    "attach_media",
    "base64_text",
    "count",
    "data_url",
    "description_field",
    "find_url",
    "provider_call_id",
    "provider_error",
    "provider_tool_name",
    "read_arguments",
    "read_call",
    "result_text",
    "set_platform",
    "stop_reason",
    "supported_tools",
    "to_json",
    "whole_calls",
    "write_arguments",
    "write_object",
]
