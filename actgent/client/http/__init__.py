"""The way to a gateway over HTTP."""

from .transport import HTTPTransport

__all__ = ["HTTPTransport"]
