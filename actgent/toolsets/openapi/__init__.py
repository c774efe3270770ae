"""Tools from OpenAPI documents: an operation is a tool."""

from .toolset import OpenAPI

__all__ = ["OpenAPI"]
