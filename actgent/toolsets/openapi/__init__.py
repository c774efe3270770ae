"""Tools from OpenAPI documents: an operation is a tool."""

from .toolset import LARGEST, OpenAPI

__all__ = ["LARGEST", "OpenAPI"]
