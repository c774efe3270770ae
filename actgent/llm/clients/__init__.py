"""Clients of providers with their own API, and of providers with an OpenAI-compatible API."""

from .providers import COMPATIBLE

__all__ = ["COMPATIBLE"]
