"""Tools that call an API over HTTP, and the guard that every connection goes through."""

from .auth import APIKey, Auth, Basic, Bearer, Credentials, check_auth, credentials_of
from .exchange import APIRequest, Connections, WorthRepeating, decode_text, read_decoded
from .guard import Guard
from .tool import EFFECTS, OURS, HTTPTool, api_tool, plain, readable
from .urls import is_http_url, origin_of

__all__ = [
    "EFFECTS",
    "OURS",
    "APIKey",
    "APIRequest",
    "Auth",
    "Basic",
    "Bearer",
    "Connections",
    "Credentials",
    "Guard",
    "HTTPTool",
    "WorthRepeating",
    "api_tool",
    "check_auth",
    "credentials_of",
    "decode_text",
    "is_http_url",
    "origin_of",
    "plain",
    "read_decoded",
    "readable",
]
