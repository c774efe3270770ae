"""Tools that call APIs over HTTP, and the guard that checks every connection."""

from .api_credentials import APIKey, Auth, Basic, Bearer, Credentials, check_auth, get_credentials
from .bounded_http_requests import APIRequest, Connections, RetryableHTTPToolError, decode_text, read_decoded
from .connection_guard import Guard
from .http_tool import METHOD_EFFECTS, RESERVED_HEADERS, HTTPTool, api_tool, to_parameter_text, to_tool_result
from .http_url_parsing import is_http_url, origin_of

__all__ = [
    "METHOD_EFFECTS",
    "RESERVED_HEADERS",
    "APIKey",
    "APIRequest",
    "Auth",
    "Basic",
    "Bearer",
    "Connections",
    "Credentials",
    "Guard",
    "HTTPTool",
    "RetryableHTTPToolError",
    "api_tool",
    "check_auth",
    "decode_text",
    "get_credentials",
    "is_http_url",
    "origin_of",
    "read_decoded",
    "to_parameter_text",
    "to_tool_result",
]
