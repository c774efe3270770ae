"""Tools from OpenAPI documents: one tool per operation."""

from .toolset import MAX_DOCUMENT_BYTES, OpenAPI

__all__ = ["MAX_DOCUMENT_BYTES", "OpenAPI"]
