"""Tools that call an API over HTTP, and the guard that every connection goes through."""

from .auth import APIKey, Basic, Bearer
from .guard import Guard
from .tool import HTTPTool, api_tool

__all__ = ["APIKey", "Basic", "Bearer", "Guard", "HTTPTool", "api_tool"]
